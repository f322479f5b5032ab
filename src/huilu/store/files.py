"""The files of versions and what retention leaves of them. Called by `release.chain`.

Kept: the newest `keep_last` saved states with their weights, and the weights of the best evaluated version and of
whatever a release names. A row that names files is written after them and deleted before them, so a file without a
row is garbage from a crash, and goes too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection

from huilu import errors
from huilu.core.nouns import PolicyVersion, ReleaseName
from huilu.store import rows
from huilu.store.database import Database
from huilu.store.folder import RunFolder
from huilu.telemetry import Telemetry

HELD_OUT = "holdout"
"""The split whose score decides which version is the best."""


class Files:
    """Where a run's versions lie, and the collector of those that are no longer kept."""

    def __init__(self, folder: RunFolder, base: Path, database: Database, keep_last: int, telemetry: Telemetry) -> None:
        self._folder, self._base, self._database = folder, base, database
        self._keep_last, self._telemetry = keep_last, telemetry

    def weights(self, version: PolicyVersion) -> Path:
        """The Hugging Face folder of a version; version 0 is the model that training started from."""
        return self._base if version.number == 0 else self._folder.weights(version.id)

    def state(self, version: PolicyVersion) -> Path:
        """The learner's state of a version."""
        return self._folder.state(version.id)

    def check(self, version: PolicyVersion, digest: str) -> None:
        """What was loaded must be what was recorded."""
        if version.digest and digest != version.digest:
            raise errors.BadWeights(
                f"{self.weights(version)} has digest {digest[:12]}",
                expected=f"{version.digest[:12]}, as recorded for {version.id}",
                fix="restore the folder from a copy, or start a new run",
            )

    async def collect(self) -> int:
        """Delete what is not kept: rows first, then files; how many files and folders went."""
        doomed = await self._database.write(self._forget)
        self._telemetry.reach("mid-gc")
        named = {saved.version.id for saved in await self._database.read(rows.saved)}
        with_state = {saved.version.id for saved in await self._database.read(rows.saved) if saved.has_state}
        garbage = [*self._others(self._folder.versions, named), *self._others(self._folder.states, with_state)]
        for path in garbage:
            try:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            except OSError as error:
                raise errors.from_os(error, f"deleting {path}") from error
        if garbage:
            self._telemetry.event("collected", versions=doomed, num_paths=len(garbage))
        return len(garbage)

    def _forget(self, connection: Connection) -> list[str]:
        """Take the names of what is not kept out of the database."""
        saved = rows.saved(connection)
        standing = {version.id for version in rows.chain(connection)}  # a lost lineage is not what a restart needs
        states = [each.version.id for each in saved if each.has_state and each.version.id in standing]
        newest = states[-self._keep_last :]
        best = rows.best(connection, HELD_OUT)
        released = (rows.pointer(connection, name) for name in ReleaseName)
        kept = {version.id for version in (best, *released) if version is not None} | set(newest)
        for each in saved:
            if each.version.id not in kept:
                rows.forget_saved(connection, each.version, state_only=False)
            elif each.has_state and each.version.id not in newest:
                rows.forget_saved(connection, each.version, state_only=True)
        return [each.version.id for each in saved if each.version.id not in kept]

    def _others(self, folder: Path, named: set[str]) -> Iterator[Path]:
        yield from (path for path in sorted(folder.iterdir()) if path.name not in named)
