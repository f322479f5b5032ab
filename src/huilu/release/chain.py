"""The chain of policy versions: each round's row with its lineage, and what of it is saved.

Called by the loop (`Versions`) and by assembly at the start (`restore`). A version's row is written first, its
digest when the background hash is done; a claim that was applied before (a restart replays it) must give the
digest that was recorded, else the chain forks into a new lineage and says so.

    record:  row + claim applied  ->  digest  ->  [files on disk -> row of files + claims acked]   when a save is due
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
from sqlalchemy import Connection

from huilu.bus import claims
from huilu.core.nouns import Claim, PolicyVersion, ReleaseName, StepReport
from huilu.store import rows
from huilu.store.database import Database
from huilu.store.files import Files
from huilu.telemetry import Telemetry

SAVE_FRAC = 0.05
"""The share of wall time that saving may take where the job does not say how often."""
FIRST_SAVE_BYTES_PER_S = 500e6
"""What saving is assumed to manage before it was measured."""


class Model(Protocol):
    """The learner's weights, seen from here."""

    async def digest(self) -> str: ...

    async def save(self, weights: Path, state: Path | None = None) -> int: ...

    async def load(self, weights: Path, state: Path | None = None) -> str: ...


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """When to save: every so many rounds, or (None) as often as SAVE_FRAC allows; always after the last round."""

    rounds: int
    every: int | None
    state_bytes: int


class Chain:
    """The versions of one run."""

    def __init__(
        self,
        database: Database,
        model: Model,
        files: Files,
        pace: Pace,
        telemetry: Telemetry,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._model, self._files, self._pace = database, model, files, pace
        self._telemetry, self._now, self._monotonic = telemetry, now, monotonic
        self._sealing: asyncio.Task[str] | None = None
        self._save_s = pace.state_bytes / FIRST_SAVE_BYTES_PER_S
        self._saved_at = monotonic()
        self._lineage = 0

    async def restore(self, base: PolicyVersion) -> PolicyVersion:
        """Bring the learner to the newest saved state, or leave it at `base`, which is recorded once; the version."""
        self._lineage = await self._database.read(rows.latest_lineage)
        last = await self._database.read(rows.last_state)
        if last is not None:
            digest = await self._model.load(self._files.weights(last), self._files.state(last))
            self._files.check(last, digest)
            return last
        if await self._database.read(lambda connection: rows.find_version(connection, 0)) is None:
            await self._database.write(lambda connection: self._begin(connection, base))
        return base

    async def record(self, claim: Claim, report: StepReport) -> PolicyVersion:
        """The version that this step made. Saves when due."""
        with self._telemetry.timed("huilu_round_seconds", phase="record"):
            await self.seal()
            version = await (self._record_again(claim, report) if claim.digest else self._record_new(claim, report))
        if self._save_due(version.round):
            await self.save(version)
        self._telemetry.reach("between-row-and-sync")
        return version

    async def seal(self) -> None:
        """Wait for the digest of the newest version and record it."""
        if self._sealing is not None:
            await self._sealing
            self._sealing = None

    async def save(self, version: PolicyVersion, *, with_state: bool = True) -> None:
        """Put the version on disk, files first, then the row that names them; acks what it contains."""
        if version.number == 0:
            return  # the model that training starts from is on disk already
        started = self._monotonic()
        self._telemetry.event("stage", name="save", detail=version.id)
        with self._telemetry.timed("huilu_round_seconds", phase="save"):
            await self.seal()
            state = self._files.state(version) if with_state else None
            size_bytes = await self._model.save(self._files.weights(version), state)
            self._telemetry.reach("between-object-and-row")
            await self._database.write(lambda connection: self._saved(connection, version, size_bytes, with_state))
        if with_state:
            self._save_s, self._saved_at = self._monotonic() - started, self._monotonic()
            self._telemetry.observe("huilu_checkpoint_save_seconds", self._save_s)
            self._telemetry.gauge("huilu_checkpoint_bytes", size_bytes)
        await self._files.collect()

    async def fork(self, round_: int, target: PolicyVersion) -> PolicyVersion:
        """Go on from an older version's weights: reload them as a new version of this round, in a new lineage."""
        await self.seal()
        digest = await self._model.load(self._files.weights(target))
        self._lineage += 1
        version = PolicyVersion(number=round_, lineage=self._lineage, parent=target.number, round=round_, digest=digest)

        def work(connection: Connection) -> None:
            rows.supersede(connection, round_ - 1)
            rows.insert_version(connection, version, self._now())

        await self._database.write(work)
        await self.save(version)
        return version

    def _begin(self, connection: Connection, base: PolicyVersion) -> None:
        rows.insert_version(connection, base, self._now())
        rows.move_release(connection, ReleaseName.PRODUCTION, base, "the model that training starts from", self._now())

    async def _record_new(self, claim: Claim, report: StepReport) -> PolicyVersion:
        version = self._version(claim, report)
        await self._database.write(lambda connection: self._insert(connection, version))
        self._sealing = asyncio.create_task(self._seal(version))
        return version

    async def _record_again(self, claim: Claim, report: StepReport) -> PolicyVersion:
        """A replayed claim: the same digest means the same version; another one begins a new lineage."""
        digest = await self._model.digest()
        standing = await self._database.read(lambda connection: rows.find_version(connection, claim.round))
        if standing is not None and standing.digest == digest:
            return standing
        message = f"replaying round {claim.round} gave other weights than before (other threads or CPU?): a new lineage"
        self._telemetry.event("warning", message=message, code="lineage_forked")
        self._lineage += 1
        version = msgspec.structs.replace(self._version(claim, report), digest=digest)

        def work(connection: Connection) -> None:
            rows.supersede(connection, claim.round - 1)
            self._insert(connection, version)

        await self._database.write(work)
        return version

    def _version(self, claim: Claim, report: StepReport) -> PolicyVersion:
        return PolicyVersion(
            number=claim.round,
            lineage=self._lineage,
            parent=claim.round - 1,
            round=claim.round,
            claim_id=claim.id,
            healthy=report.healthy,
            metrics=report.metrics,
        )

    def _insert(self, connection: Connection, version: PolicyVersion) -> None:
        known = rows.find_version(connection, version.number)
        if known is None:
            rows.insert_version(connection, version, self._now())
        claims.apply(connection, version.claim_id, version.number, version.lineage)

    async def _seal(self, version: PolicyVersion) -> str:
        digest = await self._model.digest()
        await self._database.write(lambda connection: rows.seal(connection, version, digest))
        return digest

    def _saved(self, connection: Connection, version: PolicyVersion, size_bytes: int, with_state: bool) -> None:
        rows.insert_saved(connection, version, size_bytes, self._now(), has_state=with_state)
        if with_state:
            claims.ack(connection, version.number)

    def _save_due(self, round_: int) -> bool:
        if round_ == self._pace.rounds:
            return True
        if self._pace.every is not None:
            return round_ % self._pace.every == 0
        return self._save_s <= SAVE_FRAC * (self._monotonic() - self._saved_at)
