"""The work of a run: the task queue, attempts at tasks, and worker processes for code that the job brought."""
