"""`huilu runs` and `huilu report`: what was run, and the page that shows it."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from huilu import errors
from huilu.cli.options import Json
from huilu.cli.output import print_json, print_rows
from huilu.observe.journal import Journal, before_after, fold
from huilu.observe.report import write_report
from huilu.observe.runlog import read_events
from huilu.store.folder import RunFolder, runs_in

Root = Annotated[Path, typer.Option("--root", help="The folder that runs lie in.")]


def runs(root: Root = Path("runs"), json: Json = False) -> int:
    """List the runs, newest first: rounds done, held-out score before and after, release."""
    facts = [_facts(folder) for folder in runs_in(root)]
    if json:
        print_json({"schema_version": 1, "runs": facts})
        return 0
    if not facts:
        typer.echo(f"no runs in {root}; start one with: huilu run recipes/quickstart.yaml", err=True)
        return 0
    columns = ("run", "rounds", "before", "after", "release", "ended as", "changed")
    rows = [
        (
            fact["run_dir"],
            f"{fact['rounds']}/{fact['rounds_wanted']}",
            _score(fact["before"]),
            _score(fact["after"]),
            fact["release"],
            fact["state"],
            f"{datetime.fromtimestamp(fact['changed_at']):%Y-%m-%d %H:%M}",
        )
        for fact in facts
    ]
    print_rows("runs", columns, rows)
    return 0


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    json: Json = False,
) -> int:
    """Write the run's report.html and print its path."""
    folder = RunFolder(run)
    folder.read_job()
    path = write_report(folder, time.time())
    if json:
        print_json({"schema_version": 1, "run_dir": str(run), "report": str(path)})
    else:
        typer.echo(path)
    return 0


def _facts(folder: RunFolder) -> dict[str, Any]:
    try:
        wanted = folder.read_job().rounds
    except errors.HuiluError:
        wanted = 0
    journal = fold(read_events(folder.events))
    compared = before_after(journal)
    released = [moved.version for moved in journal.releases if moved.name == "production"]
    return {
        "run_id": folder.id,
        "run_dir": str(folder.path),
        "rounds": len(journal.rounds),
        "rounds_wanted": wanted,
        "before": compared[0].pass_rate if compared else None,
        "after": compared[1].pass_rate if compared else None,
        "release": f"v{released[-1]}" if released else "-",
        "state": _state(journal),
        "changed_at": folder.job.stat().st_mtime if not folder.events.exists() else folder.events.stat().st_mtime,
    }


def _state(journal: Journal) -> str:
    if journal.stage is not None and journal.stage.name == "done":
        return "done"
    if journal.error is not None:
        return f"error {journal.error.code}"
    return "unfinished"


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
