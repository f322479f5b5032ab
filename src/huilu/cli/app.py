"""The table of commands: the only place that names them. Called by `main` and by the docs generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import typer

import huilu
from huilu.cli import config, data, model, run, runs


def build() -> typer.Typer:
    """The typer application."""
    app = typer.Typer(
        name="huilu",
        help="Closed-loop post-training of language models: roll out, verify, learn, gate, release.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command("run")(run.run)
    app.command("eval")(model.evaluate)
    app.command("generate")(model.generate)
    app.command("runs")(runs.runs)
    app.command("report")(runs.report)
    app.add_typer(_group("config", "Show, check and describe job files.", config.COMMANDS))
    app.add_typer(_group("data", "Look at a job's tasks.", data.COMMANDS))
    app.callback(invoke_without_command=True)(_version)
    return app


def _group(name: str, about: str, commands: Mapping[str, Callable[..., object]]) -> typer.Typer:
    group = typer.Typer(name=name, help=about, no_args_is_help=True)
    for command, function in commands.items():
        group.command(command)(function)
    return group


def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(huilu.__version__)
        raise typer.Exit
