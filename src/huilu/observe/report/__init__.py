"""`huilu report`: one self-contained HTML file that shows a run. Reads the run's folder; writes only the file."""
