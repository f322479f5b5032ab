"""The job file: its typed tree, and how it is read from file, environment and flags."""
