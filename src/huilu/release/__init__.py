"""Versions, the gate that judges them, and the pointers that users follow. No torch."""
