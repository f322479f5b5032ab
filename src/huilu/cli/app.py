"""The table of commands: the only place that names them. Called by `main` and by the docs' generator.

A command's module is imported only when that command is asked for, so that `huilu --help` answers at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import typer

import huilu

COMMANDS = {
    "run": ("huilu.cli.run:run", "Train: preflight, evaluate, rounds, evaluate, release or hold."),
    "eval": ("huilu.cli.model:evaluate", "Score a model on held-out tasks, greedily."),
    "generate": ("huilu.cli.model:generate", "Answer a prompt with a model, or with what a run released."),
    "bench": ("huilu.cli.bench:bench", "Measure what this machine does with a model, and what it allows."),
    "runs": ("huilu.cli.runs:runs", "List the runs, newest first: rounds, held-out score, release."),
    "report": ("huilu.cli.runs:report", "Write the run's report.html and print its path."),
    "config show": ("huilu.cli.config:show", "Print every setting with where its value came from."),
    "config check": ("huilu.cli.config:check", "Check a job file: keys, types, bounds, contradictions."),
    "config schema": ("huilu.cli.config:schema", "Print the JSON Schema of job files, for editors."),
    "data check": ("huilu.cli.data:check", "Read every task; report counts, leaks and lengths; try gold answers."),
}
"""Command -> where its function is, and its line of help."""
GROUPS = {"config": "Show, check and describe job files.", "data": "Look at a job's tasks."}


def build(arguments: Sequence[str] | None = None) -> typer.Typer:
    """The application: with every command, or only able to run the one that `arguments` ask for."""
    app = typer.Typer(
        name="huilu",
        help="Closed-loop post-training of language models: roll out, verify, learn, gate, release.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    groups = {name: typer.Typer(name=name, help=about, no_args_is_help=True) for name, about in GROUPS.items()}
    words = None if arguments is None else [each for each in arguments if not each.startswith("-")]
    for path, (place, about) in COMMANDS.items():
        *group, name = path.split()
        wanted = words is None or words[: len(group) + 1] == [*group, name]
        (groups[group[0]] if group else app).command(name, help=about)(load(place) if wanted else _unloaded)
    for group_app in groups.values():
        app.add_typer(group_app)
    app.callback(invoke_without_command=True)(_version)
    return app


def load(place: str) -> Callable[..., Any]:
    """The function at `module:function`."""
    module, _, function = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _unloaded() -> None:
    """Stands in the table for a command that was not asked for."""


def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(huilu.__version__)
        raise typer.Exit
