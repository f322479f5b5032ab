"""`huilu config show|check|schema`: what a job file means, without running it."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import typer

from huilu.cli.options import JobFile, Json, Sets
from huilu.cli.output import print_json, print_rows
from huilu.config import explain
from huilu.config.load import load_job


def show(job: JobFile, sets: Sets = [], json: Json = False) -> int:  # noqa: B006 - typer copies it
    """Print every setting with where its value came from."""
    loaded = load_job(job, sets, os.environ)
    rows = explain.show(loaded)
    if json:
        settings = {row.key: {"value": row.value, "source": row.source} for row in rows}
        print_json({"schema_version": 1, "settings": settings})
    else:
        print_rows(str(job), ("setting", "value", "source"), [(row.key, row.text, row.source) for row in rows])
    return 0


def check(
    job: JobFile,
    sets: Sets = [],  # noqa: B006 - typer copies it
    json: Json = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings.")] = False,
) -> int:
    """Check a job file: unknown keys, types, bounds, and settings that contradict each other."""
    loaded = load_job(job, sets, os.environ)
    warnings = explain.checks(loaded.job)
    if json:
        print_json({"schema_version": 1, "job": loaded.job.name, "warnings": warnings})
    else:
        for warning in warnings:
            typer.echo(f"! {warning}")
        typer.echo(f"{job}: {'ok' if not warnings else f'{len(warnings)} warnings'}")
    return 1 if strict and warnings else 0


def schema() -> int:
    """Print the JSON Schema of job files, for editors."""
    typer.echo(msgspec.json.format(msgspec.json.encode(explain.schema()), indent=2).decode())
    return 0
