"""What lasts: the run's folder and its lock, the metadata database, and objects (weights, learner states)."""
