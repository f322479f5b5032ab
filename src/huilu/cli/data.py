"""`huilu data check`: a job's tasks, before anything is trained on them."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import msgspec
import typer

from huilu.assembly.tools import open_tools
from huilu.cli.options import JobFile, Json, Sets
from huilu.cli.output import print_json, print_rows
from huilu.config.load import load_job
from huilu.envs.gold import check_gold
from huilu.envs.registry import build_environment
from huilu.envs.report import report_sources
from huilu.envs.sources import split_sources
from huilu.telemetry import Telemetry


def check(
    job: JobFile,
    sets: Sets = [],  # noqa: B006 - typer copies it
    num_tasks: Annotated[int, typer.Option("--num-tasks", min=1, help="Tasks whose gold answers are tried.")] = 32,
    json: Json = False,
) -> int:
    """Read every task; report counts, duplicates, leaks and lengths; try gold and empty answers."""
    loaded = load_job(job, sets, os.environ)
    sources = split_sources(loaded.job.data, lambda name, params: build_environment(name, params, job.parent))
    reports = report_sources(sources)

    async def answers() -> dict[str, list[str]]:
        async with open_tools(loaded.job, job.parent, Telemetry()) as tools:
            return {source.name: await check_gold(source.environment, num_tasks, tools) for source in sources}

    failures = asyncio.run(answers())
    failed = any(failures.values())
    if json:
        print_json({"schema_version": 1, "sources": reports, "gold_failures": failures})
        return int(failed)
    for report in reports:
        facts = msgspec.structs.asdict(report)
        print_rows(report.name, ("fact", "value"), [(name, _text(value)) for name, value in facts.items()])
    for name, lines in failures.items():
        typer.echo(f"{name}: gold answers " + ("score 1.0, an empty one does not" if not lines else "FAIL"))
        for line in lines:
            typer.echo(f"  {line}")
    return int(failed)


def _text(value: object) -> str:
    if isinstance(value, msgspec.Struct):
        return ", ".join(f"{name} {number}" for name, number in msgspec.structs.asdict(value).items())
    return str(value)
