"""What a run says about itself, made visible: log files, the live view, the report, trackers, Prometheus text.

Every module here only reads: telemetry events as they come, and a run's files and database. Nothing in this
room may change what a run does, and nothing in it imports torch.
"""
