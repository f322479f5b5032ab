"""The loop: two coroutines joined by the durable bus. Called by assembly, which wires the parts.

    act:    draw -> attempt -> append          as far as the slots allow
    learn:  claim -> step -> record -> sync -> settle (slots return) -> close the books -> gate -> release

A slot returns only when the fate of its episode is known and the engine serves what was learnt from it, which
bounds staleness by construction: with `max_lag` 0 the two take turns, with more they overlap. Every line is
idempotent under its id, so a restart is calling `run` again from the round after the last saved one: claims
that were recorded are claimed, stepped and recorded once more, to the same versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from huilu.core.nouns import Task
from huilu.core.ports import Book, Bus, Draws, Engine, Gate, Learner, Releases, Rollouts, Versions


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop runs on."""

    draws: Draws
    rollouts: Rollouts
    bus: Bus
    learner: Learner
    versions: Versions
    engine: Engine
    gate: Gate
    releases: Releases
    book: Book


async def run(parts: Parts, rounds: Iterable[int], max_lag: int) -> None:
    """Turn the loop for these rounds. The first error of either side ends both and is raised."""
    try:
        async with asyncio.TaskGroup() as sides:
            acting = sides.create_task(act(parts))
            await learn(parts, rounds, max_lag)
            acting.cancel()
    except BaseExceptionGroup as group:
        raise _first(group) from group


async def act(parts: Parts) -> None:
    """Attempt tasks as slots return; what ends is durable before anyone learns from it."""
    async with asyncio.TaskGroup() as attempts:
        while tasks := await parts.draws.draw():
            for task in tasks:
                attempts.create_task(attempt(parts, task))


async def attempt(parts: Parts, task: Task) -> None:
    """One task's episodes, each appended as it ends."""
    async for episode, feedback in parts.rollouts.attempt(task):
        await parts.bus.append(episode, feedback)


async def learn(parts: Parts, rounds: Iterable[int], max_lag: int) -> None:
    """Turn feedback into versions, and versions into releases."""
    for round_ in rounds:
        claim = await parts.bus.claim(round_, max_lag)
        report = await parts.learner.step(claim)
        version = await parts.versions.record(claim, report)
        await parts.engine.sync(version)
        parts.draws.settle(claim)
        parts.book.close(claim, report, version)
        if parts.gate.due(round_):
            verdict = await parts.gate.judge(version)
            await parts.releases.decide(verdict)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real error inside: what a user is told, with the whole group as its cause."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
