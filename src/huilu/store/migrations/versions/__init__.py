"""One file a revision, oldest first; each is frozen once released."""
