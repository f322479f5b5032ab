"""Checks of the machine and the job before and while it runs; one result type for all. No torch."""
