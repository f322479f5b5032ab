"""Who computes what in the next iteration: admission, chunked prefill, forks, preemption. Pure bookkeeping.

Called by `engine`: `plan` before the forward pass, `branch` after it, `finish` when a sample ends. It owns the
block pool and never sees a tensor. The way of a sample:

    add --> waiting trunk --plan--> trunk in prefill --branch--> running --finish--> gone
                  ^                      |                          |
                  +------- preempt ------+--------------------------+

First come, first served. When blocks run out, the running sample or trunk that came last gives its blocks back
and is computed again later; the oldest always can go on, since a request that needs more than all blocks is refused
at the door.
"""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections.abc import Iterator
from typing import NamedTuple

from huilu.engine.blocks import BlockPool, BlockTable, Copy
from huilu.engine.requests import Request, Sample, Trunk
from huilu.errors import Invariant
from huilu.telemetry import Telemetry


class Chunk(NamedTuple):
    """Tokens `start` to `end` (exclusive) of a trunk, to be computed now."""

    trunk: Trunk
    start: int
    end: int


@dataclasses.dataclass(slots=True)
class Plan:
    """One iteration: block copies first, then one token of each decoding sample and the chunks."""

    copies: list[Copy]
    decodes: list[Sample]
    chunks: list[Chunk]


class Scheduler:
    """The line of waiting trunks, the trunks in prefill and the running samples, each by arrival."""

    def __init__(self, pool: BlockPool, telemetry: Telemetry, *, max_running: int, prefill_tokens: int) -> None:
        self.pool = pool
        self.waiting: list[Trunk] = []
        self.trunks: list[Trunk] = []
        self.running: list[Sample] = []
        self.paused = False
        self._telemetry = telemetry
        self._max_running, self._prefill_tokens = max_running, prefill_tokens
        # Chunks end at multiples of this whatever else runs, so a prompt is always cut at the same places.
        self._chunk_tokens = max(prefill_tokens // pool.block_size, 1) * pool.block_size

    def add(self, request: Request) -> None:
        """Put a request at its place in line."""
        self._wait(Trunk(request, request.prompt_ids, list(request.samples)))

    def plan(self) -> Plan:
        """The next iteration. Its blocks are reserved, and those it fills are published, ahead of the forward pass.

        Publishing ahead lets a trunk share what an earlier one computes in the very same pass: every layer
        writes all its keys and values before any row reads.
        """
        copies = self._reserve_decodes()
        for sample in self.running:
            table = table_of(sample)
            self.pool.commit(table, sample.token_ids, len(sample.token_ids))
        return Plan(copies, list(self.running), list(self._chunks()))

    def branch(self) -> list[tuple[Trunk, list[Sample]]]:
        """The samples that start now from each computed trunk, oldest first, as far as slots and blocks allow."""
        branches = []
        for trunk in [trunk for trunk in self.trunks if trunk.hidden_D is not None]:
            started: list[Sample] = []
            while trunk.members and self._has_room_to_run():
                sample = trunk.members.pop(0)
                # The last one takes the trunk's own table: nobody is left to copy for.
                sample.table = self.pool.fork(table_of(trunk)) if trunk.members else trunk.table
                sample.trunk = None
                bisect.insort(self.running, sample, key=_order)
                started.append(sample)
            if not trunk.members:
                self.trunks.remove(trunk)
            if started:
                branches.append((trunk, started))
        return branches

    def finish(self, sample: Sample) -> None:
        """The sample ended, wherever it is; give back what it holds."""
        trunk = sample.trunk
        if trunk is None:
            self.running.remove(sample)
            self.pool.close(table_of(sample))
            sample.table = None
            return
        trunk.members.remove(sample)
        sample.trunk = None
        if trunk.members:
            return
        if trunk.table is None:
            self.waiting.remove(trunk)
        else:
            self.trunks.remove(trunk)
            self.pool.close(trunk.table)

    def requeue_trunks(self) -> None:
        """Compute every trunk in prefill again from the start (the weights changed)."""
        for trunk in list(self.trunks):
            self._put_back(trunk)

    def check_integrity(self) -> None:
        """Raise Invariant unless every block is accounted for by what runs and what is in prefill."""
        holders: list[Sample | Trunk] = [*self.running, *self.trunks]
        self.pool.check_integrity([table_of(holder) for holder in holders])

    def _reserve_decodes(self) -> list[Copy]:
        """Room for one more token of each running sample, oldest first; the last in line make way."""
        copies = []
        for sample in list(self.running):
            while sample.table is not None:
                if self.pool.num_missing(sample.table, len(sample.token_ids)) <= self.pool.num_available:
                    copy = self.pool.reserve(sample.table, len(sample.token_ids))
                    copies += [copy] if copy else []
                    break
                self._preempt_last()
        return copies

    def _preempt_last(self) -> None:
        holders: list[Sample | Trunk] = [*self.running, *self.trunks]
        if len(holders) < 2:
            raise Invariant("the last sample has no block left", expected="a request that fits all blocks")
        last: Sample | Trunk = max(holders, key=_order)
        self._telemetry.count("huilu_engine_preemptions_total")
        if isinstance(last, Trunk):
            self._put_back(last)
            return
        self.running.remove(last)
        self.pool.close(table_of(last))
        last.table = None
        self._wait(Trunk(last.request, list(last.token_ids), [last]))

    def _put_back(self, trunk: Trunk) -> None:
        self.trunks.remove(trunk)
        self.pool.close(table_of(trunk))
        trunk.table = trunk.hidden_D = None
        self._wait(trunk)

    def _wait(self, trunk: Trunk) -> None:
        for sample in trunk.members:
            sample.trunk = trunk
        bisect.insort(self.waiting, trunk, key=_order)

    def _chunks(self) -> Iterator[Chunk]:
        """One chunk each of the trunks in prefill, then of newly admitted ones, up to the token budget."""
        budget = self._prefill_tokens
        for trunk in self._prefilling():
            table = table_of(trunk)
            start = table.num_tokens
            end = min((start // self._chunk_tokens + 1) * self._chunk_tokens, len(trunk.token_ids))
            if end - start > budget < self._prefill_tokens:
                return
            budget -= end - start
            self.pool.commit(table, trunk.token_ids, end)
            yield Chunk(trunk, start, end)

    def _prefilling(self) -> Iterator[Trunk]:
        yield from [trunk for trunk in self.trunks if trunk.hidden_D is None]
        while (trunk := self._admit()) is not None:
            yield trunk

    def _admit(self) -> Trunk | None:
        """The first waiting trunk, with blocks for all its tokens; None where it must wait."""
        if not self.waiting or (self.paused and not self.waiting[0].request.started):
            return None
        trunk = self.waiting[0]
        num_busy = len(self.running) + sum(len(other.members) for other in self.trunks)
        if num_busy >= self._max_running:
            return None
        table = self.pool.open(trunk.token_ids)
        # One block stays free for each sample that will run beside it, or it would soon be preempted again.
        num_spare = min(num_busy + len(trunk.members), self._max_running) if num_busy else 0
        if self.pool.num_missing(table, len(trunk.token_ids)) + num_spare > self.pool.num_available:
            self.pool.close(table)
            return None
        self.waiting.pop(0)
        self._count_cached(trunk, table)
        self.pool.reserve(table, len(trunk.token_ids))
        trunk.table, trunk.request.started = table, True
        bisect.insort(self.trunks, trunk, key=_order)
        return trunk

    def _count_cached(self, trunk: Trunk, table: BlockTable) -> None:
        """Count what a fresh request's prompt found in the cache; all but its first sample find the whole of it."""
        if trunk.request.started:
            return
        first, *others = trunk.members
        first.num_cached_tokens = table.num_tokens
        for sample in others:
            sample.num_cached_tokens = len(trunk.token_ids)
        num_hit = table.num_tokens + len(others) * len(trunk.token_ids)
        num_missed = len(trunk.token_ids) - table.num_tokens
        self._telemetry.count("huilu_engine_prefix_lookup_tokens_total", num_hit, result="hit")
        self._telemetry.count("huilu_engine_prefix_lookup_tokens_total", num_missed, result="miss")

    def _has_room_to_run(self) -> bool:
        num_running = len(self.running)
        return num_running == 0 or (num_running < self._max_running and self.pool.num_available > num_running)


_order = operator.attrgetter("order")


def table_of(holder: Sample | Trunk) -> BlockTable:
    """The block table of something that computes."""
    if holder.table is None:
        raise Invariant("something that computes has no block table")
    return holder.table
