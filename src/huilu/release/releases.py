"""The release pointers: what users are served. Called by the loop (`Releases`) and by `huilu rollback`, later.

A promotion is one transaction: the verdict, production's new version and what was production before. The weights
are on disk before a pointer names them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Literal

from sqlalchemy import Connection

from huilu import errors
from huilu.core.nouns import PolicyVersion, ReleaseName, Verdict
from huilu.store import rows
from huilu.store.database import Database
from huilu.telemetry import Telemetry

Keep = Callable[[PolicyVersion], Awaitable[None]]
"""Puts a version's weights on disk, if they are not."""
Restore = Callable[[PolicyVersion], Awaitable[None]]
"""Makes the learner go on from an older version."""


class Pointers:
    """Moves the pointers of one run."""

    def __init__(
        self,
        database: Database,
        keep: Keep,
        restore: Restore,
        on_breach: Literal["hold", "restore", "stop"],
        telemetry: Telemetry,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._database, self._keep, self._restore = database, keep, restore
        self._on_breach, self._telemetry, self._now = on_breach, telemetry, now

    async def decide(self, verdict: Verdict) -> None:
        """Promote, or do what the job says of a breach. Deciding again what was decided changes nothing."""
        version = await self._version(verdict.version)
        decided = await self._database.read(lambda connection: rows.find_verdict(connection, version))
        if decided is None:
            if verdict.promote:
                await self._keep(version)
            self._telemetry.reach("mid-release")
            await self._database.write(lambda connection: self._apply(connection, version, verdict))
            self._tell(version, verdict)
        if not verdict.promote and version.round > 0:
            await self._breach(version, verdict, again=decided is not None)

    async def production(self) -> PolicyVersion:
        """The version that users are served."""
        version = await self._database.read(lambda connection: rows.pointer(connection, ReleaseName.PRODUCTION))
        if version is None:
            raise errors.Invariant("no version is in production", expected="at least the base model")
        return version

    async def _version(self, number: int) -> PolicyVersion:
        version = await self._database.read(lambda connection: rows.find_version(connection, number))
        if version is None:
            raise errors.Invariant(f"a verdict on version {number}, which is not recorded")
        return version

    def _apply(self, connection: Connection, version: PolicyVersion, verdict: Verdict) -> None:
        rows.insert_verdict(connection, version, verdict, self._now())
        if not verdict.promote:
            return
        why = "; ".join(verdict.reasons)
        before = rows.pointer(connection, ReleaseName.PRODUCTION)
        if before is not None:
            rows.move_release(connection, ReleaseName.PREVIOUS, before, why, self._now())
        rows.move_release(connection, ReleaseName.PRODUCTION, version, why, self._now())

    def _tell(self, version: PolicyVersion, verdict: Verdict) -> None:
        self._telemetry.event(
            "verdict",
            version=version.number,
            promote=verdict.promote,
            reasons=list(verdict.reasons),
            evidence=verdict.evidence,
        )
        if verdict.promote:
            production = ReleaseName.PRODUCTION.value
            self._telemetry.event("release", name=production, version=version.number, digest=version.digest)

    async def _breach(self, version: PolicyVersion, verdict: Verdict, *, again: bool) -> None:
        reasons = "; ".join(verdict.reasons)
        if self._on_breach == "stop":
            raise errors.TrainingUnhealthy(
                f"the gate held {version.id}: {reasons}",
                fix="look at the report, then resume with gate.on_breach: hold",
            )
        if self._on_breach == "restore" and not again:
            production = await self.production()
            self._telemetry.event(
                "warning", message=f"{version.id} was held ({reasons}): going on from {production.id}", code="restored"
            )
            await self._restore(production)
