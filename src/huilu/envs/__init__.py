"""Environments: where tasks come from and how an answer is judged. One folder each, one line in `registry.py`.

Called by assembly (through `registry` and `sources`), preflight and `huilu data check`. Judging that runs code the
job brought goes through `Tools.calls`, code a model wrote through `Tools.sandbox`; neither ever runs in here.
"""
