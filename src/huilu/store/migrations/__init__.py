"""The revisions of the tables; see `migrate`."""
