"""Zygotes from outside: what they are made of, the root that they are put into, and their processes."""
