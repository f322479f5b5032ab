"""`huilu report`: one self-contained HTML file that shows a run. Reads the run's folder; writes only the file."""

from huilu.observe.report.collect import write_report

__all__ = ["write_report"]
