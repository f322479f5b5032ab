"""`huilu run`: a job file through its rounds, live on stderr, its summary on stdout."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from huilu import errors
from huilu.assembly import control
from huilu.cli.options import JobFile, Json, Quiet, Sets
from huilu.cli.output import print_json, print_rows
from huilu.config import tree
from huilu.config.load import Loaded, load_job
from huilu.envs.registry import build_environment
from huilu.observe.journal import fold
from huilu.observe.live import watching
from huilu.observe.runlog import read_events
from huilu.observe.view import Ending
from huilu.store.folder import RunFolder, runs_in

INTERRUPTED = 130
SHORT_PROMPT = 80


def run(
    job: JobFile,
    sets: Sets = [],  # noqa: B006 - typer copies it
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="The run's folder; runs/NAME-TIME by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --run-dir, or the job's newest run.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the job and the machine, then stop.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Train: preflight, evaluate, rounds, evaluate, release or hold."""
    loaded = load_job(job, sets, os.environ)
    folder = _folder(loaded, run_dir, resume)
    if dry_run:
        return _dry_run(loaded, folder, job.parent, json)
    console = Console(stderr=True)
    ending = Ending(run_dir=str(folder.path), prompt=_sample_prompt(loaded.job, job.parent))
    journal = fold(read_events(folder.events)) if resume else None
    with watching(console, loaded.job.name, ending, quiet=quiet, journal=journal) as view:
        try:
            summary = asyncio.run(control.train(loaded.job, folder, base=job.parent, resume=resume, sink=view))
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut the message
            console.print(
                f"interrupted; nothing that ended is lost\n  next: {resume_command(job, folder)}", soft_wrap=True
            )
            return INTERRUPTED
        except errors.HuiluError as error:
            raise _with_next(error, job, folder) from error
    if json:
        print_json(summary)
    return 0


def resume_command(job: Path, folder: RunFolder) -> str:
    """The command that continues this run."""
    return f"huilu run {job} --run-dir {folder.path} --resume"


def _sample_prompt(job: tree.Job, base: Path) -> str:
    """A prompt of the job's own to try the result on, where one is short enough to type."""
    source = job.data.sources[0]
    content = build_environment(source.env, source.params, base).task(0).prompt[-1].content
    return content if len(content) <= SHORT_PROMPT and content.isprintable() and '"' not in content else ""


def _with_next(error: errors.HuiluError, job: Path, folder: RunFolder) -> errors.HuiluError:
    """The same error; where the run can go on and nothing better is known, say how."""
    if not error.fix and folder.database.exists() and not isinstance(error, errors.Locked):
        error.fix = resume_command(job, folder)
    return error


def _folder(loaded: Loaded, run_dir: Path | None, resume: bool) -> RunFolder:
    if run_dir is not None:
        return RunFolder(run_dir)
    root = Path("runs")
    if not resume:
        return RunFolder(root / f"{loaded.job.name}-{datetime.now():%Y%m%d-%H%M%S}")
    mine = [folder for folder in runs_in(root) if folder.read_job().name == loaded.job.name]
    if not mine:
        raise errors.NotFound(f"no run of {loaded.job.name} in {root}", fix="name its folder with --run-dir")
    return mine[0]


def _dry_run(loaded: Loaded, folder: RunFolder, base: Path, json: bool) -> int:
    checks = asyncio.run(control.check(loaded.job, folder, base=base))
    if json:
        print_json({"schema_version": 1, "job": loaded.job, "checks": checks})
    else:
        print_rows(
            "preflight",
            ("status", "check", "observed", "expected"),
            [(check.status, check.title, check.observed, check.expected) for check in checks],
        )
    failed = any(check.status == "fail" for check in checks)
    sys.stdout.flush()
    return errors.PreflightFailed.exit_status if failed else 0
