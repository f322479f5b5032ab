"""The mixture of a job's task sources: the hold-out split, and which task is draw number k of a run.

Called by assembly, the draws and the evaluation. Everything follows from the seeds and the number of the draw, so
a resumed run continues the same sequence from its cursor alone, whatever the number of loader threads.

    source s: permutation(data.seed)  ->  [ held out | to train on ]
    draw k:   choice(job.seed, k) -> source s, its n-th draw -> epoch n // size, place n % size of that shuffle
              (the next place whose prompt is not held out, since data may repeat itself)
"""

from __future__ import annotations

import hashlib
import random
import threading
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate, chain, zip_longest
from types import TracebackType
from typing import Any

import msgspec

from huilu import errors
from huilu.config.tree import Data
from huilu.core import ids
from huilu.core.nouns import Task
from huilu.core.ports import Environment

DRAWS_AHEAD = 4
"""Draws that each loader thread has under way before they are asked for."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One source: its environment, and the indexes of its held-out tasks and of those to train on."""

    name: str
    environment: Environment
    weight: float
    held_out: list[int]
    to_train: list[int]


class Sources:
    """Owns the loader threads; close it, or use it as a context manager. Safe to use from several threads."""

    def __init__(self, data: Data, seed: int, build: Callable[[str, dict[str, Any]], Environment]) -> None:
        self.sources = split_sources(data, build)
        self.environments: dict[str, Environment] = {source.name: source.environment for source in self.sources}
        """By the name that a task's `env` has: the environment's own, numbered where a job uses it twice."""
        self._held_out_prompts = {
            prompt_digest(source.environment.task(index)) for source in self.sources for index in source.held_out
        }
        self._seed = seed
        self._weights = list(accumulate(source.weight for source in self.sources))
        self._places: list[tuple[int, int]] = []
        self._drawn: Counter[int] = Counter()
        self._shuffles: dict[int, tuple[int, list[int]]] = {}
        self._lock = threading.Lock()
        self._loaders = ThreadPoolExecutor(data.num_loaders, thread_name_prefix="loader")
        self._depth = DRAWS_AHEAD * data.num_loaders
        self._ahead: dict[int, Future[Task]] = {}

    def draw(self, k: int) -> Task:
        """The task of draw number `k` (from 0), under the id of the draw; its row's id is in `metadata["row"]`."""
        with self._lock:
            for n in [n for n in self._ahead if not k <= n <= k + self._depth]:
                self._ahead.pop(n).cancel()
            for n in range(k, k + self._depth + 1):
                if n not in self._ahead:
                    self._ahead[n] = self._loaders.submit(self._load, n)
            future = self._ahead.pop(k)
        return future.result()

    def holdout(self, num: int) -> list[Task]:
        """The first `num` held-out tasks (fewer where there are fewer), from each source in turn, always the same."""
        columns = ([(source, index) for index in source.held_out] for source in self.sources)
        in_turn = [place for place in chain.from_iterable(zip_longest(*columns)) if place is not None]
        rows = self._loaders.map(lambda place: row(*place), in_turn[:num])
        return [msgspec.structs.replace(task, metadata={**task.metadata, "row": task.id}) for task in rows]

    def close(self) -> None:
        """Stop the loader threads."""
        self._loaders.shutdown(cancel_futures=True)

    def __enter__(self) -> Sources:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self, k: int) -> Task:
        with self._lock:
            source, shuffle, place = self._place(k)
        for position in chain(range(place, len(shuffle)), range(place)):
            task = row(source, source.to_train[shuffle[position]])
            if prompt_digest(task) not in self._held_out_prompts:
                return msgspec.structs.replace(task, id=ids.task_id(k), metadata={**task.metadata, "row": task.id})
        raise errors.BadConfig(
            f"source {source.name}: every prompt to train on is also held out",
            fix="lower `holdout` in the job file, or remove repeated rows (huilu data check counts them)",
        )

    def _place(self, k: int) -> tuple[Source, list[int], int]:
        """Draw `k`'s source, that source's shuffle, and the place in it. Draws before it are chosen too, once."""
        while len(self._places) <= k:
            chosen = _choose(self._weights, ids.seed_for(self._seed, "source", len(self._places)))
            self._places.append((chosen, self._drawn[chosen]))
            self._drawn[chosen] += 1
        chosen, nth = self._places[k]
        source = self.sources[chosen]
        epoch, position = divmod(nth, len(source.to_train))
        if self._shuffles.get(chosen, (-1, []))[0] != epoch:
            seed = ids.seed_for(self._seed, "epoch", source.name, epoch)
            self._shuffles[chosen] = (epoch, permutation(len(source.to_train), seed))
        return source, self._shuffles[chosen][1], position


def row(source: Source, index: int) -> Task:
    """Row `index` of a source, under that source's name."""
    task = source.environment.task(index)
    return msgspec.structs.replace(task, id=f"{source.name}/{index}", env=source.name)


def prompt_digest(task: Task) -> bytes:
    """What two tasks share when they ask the same."""
    return hashlib.blake2b(msgspec.json.encode(task.prompt), digest_size=16).digest()


def split_sources(data: Data, build: Callable[[str, dict[str, Any]], Environment]) -> list[Source]:
    """Each source of a job, built and split. Raises BadConfig when nothing is left to train on."""
    seen: Counter[str] = Counter()
    sources = []
    for tasks in data.sources:
        seen[tasks.env] += 1
        name = tasks.env if seen[tasks.env] == 1 else f"{tasks.env}-{seen[tasks.env]}"
        environment = build(tasks.env, tasks.params)
        num_tasks = len(environment)
        if num_tasks <= tasks.holdout:
            raise errors.BadConfig(
                f"source {name} has {num_tasks} tasks and holds out {tasks.holdout}: nothing is left to train on",
                expected=f"a holdout below {num_tasks}",
                fix="lower `holdout` of that source in the job file, or give it more tasks",
            )
        order = permutation(num_tasks, ids.seed_for(data.seed, "holdout", name))
        held_out, to_train = order[: tasks.holdout], order[tasks.holdout :]
        sources.append(
            Source(name=name, environment=environment, weight=tasks.weight, held_out=held_out, to_train=to_train)
        )
    return sources


def permutation(size: int, seed: int) -> list[int]:
    """A shuffle of 0..size-1 that every Python version makes alike: only `random()` itself is promised to stay."""
    stream = random.Random(seed)
    keys = [stream.random() for _ in range(size)]
    return sorted(range(size), key=keys.__getitem__)


def _choose(cumulative_weights: list[float], seed: int) -> int:
    """A source in proportion to its weight; `seed` has 63 random bits."""
    point = seed / (1 << 63) * cumulative_weights[-1]
    return min(bisect(cumulative_weights, point), len(cumulative_weights) - 1)
