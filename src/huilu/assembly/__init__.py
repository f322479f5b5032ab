"""Job file to wired parts, one process at a time: `control` (no torch) and `model` (torch). Nothing else names both."""
