"""Rows about versions: the chain, what of it is on disk, evaluations, verdicts and release pointers.

Called by `release`, `keep` and the CLI's readers; functions on a connection, in the caller's transaction.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, delete, desc, insert, select, update
from sqlalchemy.engine import Row

from huilu.core.nouns import Evaluation, PolicyVersion, ReleaseName, Verdict
from huilu.store.schema import evaluations, releases, states, verdicts, versions


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What of a version is on disk."""

    version: PolicyVersion
    has_state: bool
    size_bytes: int


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a release's history."""

    name: ReleaseName
    version: PolicyVersion
    why: str
    at: float


def insert_version(connection: Connection, version: PolicyVersion, now: float) -> None:
    """Record a version."""
    fields = msgspec.structs.asdict(version)
    finite = {name: value for name, value in version.metrics.items() if math.isfinite(value)}  # JSON has no NaN
    fields["metrics"] = msgspec.json.encode(finite).decode()
    connection.execute(insert(versions).values(**fields, superseded=False, at=now))


def seal(connection: Connection, version: PolicyVersion, digest: str) -> None:
    """The version's digest is known."""
    connection.execute(update(versions).where(_is(versions, version)).values(digest=digest))


def chain(connection: Connection) -> list[PolicyVersion]:
    """The versions that stand, by number."""
    return [_version(row) for row in connection.execute(_standing().order_by(versions.c.number))]


def find_version(connection: Connection, number: int) -> PolicyVersion | None:
    """The version of this number that stands."""
    row = connection.execute(_standing().where(versions.c.number == number)).one_or_none()
    return None if row is None else _version(row)


def latest_lineage(connection: Connection) -> int:
    """The lineage of the newest version."""
    newest = select(versions.c.lineage).order_by(desc(versions.c.lineage)).limit(1)
    return connection.scalar(newest) or 0


def supersede(connection: Connection, after: int) -> int:
    """Every standing version with a number above `after` is lost to a new lineage; how many."""
    lost = and_(versions.c.number > after, versions.c.superseded.is_(False))
    return connection.execute(update(versions).where(lost).values(superseded=True)).rowcount


def insert_saved(
    connection: Connection, version: PolicyVersion, size_bytes: int, now: float, *, has_state: bool
) -> None:
    """The version's weights, and its state where told, are on disk."""
    connection.execute(delete(states).where(_is(states, version)))
    row = {"number": version.number, "lineage": version.lineage, "has_state": has_state}
    connection.execute(insert(states).values(**row, size_bytes=size_bytes, at=now))


def saved(connection: Connection) -> list[Saved]:
    """What is on disk, by version number."""
    joined = select(versions, states.c.has_state, states.c.size_bytes).join(
        states, and_(states.c.number == versions.c.number, states.c.lineage == versions.c.lineage)
    )
    return [
        Saved(version=_version(row), has_state=row.has_state, size_bytes=row.size_bytes)
        for row in connection.execute(joined.order_by(versions.c.number, versions.c.lineage))
    ]


def last_state(connection: Connection) -> PolicyVersion | None:
    """The newest standing version whose learner state is on disk: where a restart begins."""
    joined = _standing().join(
        states, and_(states.c.number == versions.c.number, states.c.lineage == versions.c.lineage)
    )
    row = connection.execute(joined.where(states.c.has_state).order_by(desc(versions.c.number)).limit(1)).one_or_none()
    return None if row is None else _version(row)


def forget_saved(connection: Connection, version: PolicyVersion, *, state_only: bool) -> None:
    """The files are about to go: the row goes first."""
    here = _is(states, version)
    if state_only:
        connection.execute(update(states).where(here).values(has_state=False))
    else:
        connection.execute(delete(states).where(here))


def insert_evaluation(connection: Connection, version: PolicyVersion, evaluation: Evaluation, now: float) -> None:
    """Record an evaluation; a second one of the same version and split replaces it."""
    here = and_(_is(evaluations, version), evaluations.c.split == evaluation.split)
    connection.execute(delete(evaluations).where(here))
    row = {"number": version.number, "lineage": version.lineage, "split": evaluation.split}
    record = msgspec.msgpack.encode(evaluation)
    connection.execute(insert(evaluations).values(**row, pass_rate=evaluation.pass_rate, record=record, at=now))


def find_evaluation(connection: Connection, version: PolicyVersion, split: str) -> Evaluation | None:
    """The version's evaluation on a split."""
    here = and_(_is(evaluations, version), evaluations.c.split == split)
    record = connection.scalar(select(evaluations.c.record).where(here))
    return None if record is None else msgspec.msgpack.decode(record, type=Evaluation)


def best(connection: Connection, split: str) -> PolicyVersion | None:
    """The standing, saved version with the best pass rate; the newest of equals."""
    joined = (
        _standing()
        .join(evaluations, and_(evaluations.c.number == versions.c.number, evaluations.c.lineage == versions.c.lineage))
        .join(states, and_(states.c.number == versions.c.number, states.c.lineage == versions.c.lineage))
    )
    order = joined.where(evaluations.c.split == split).order_by(desc(evaluations.c.pass_rate), desc(versions.c.number))
    row = connection.execute(order.limit(1)).one_or_none()
    return None if row is None else _version(row)


def insert_verdict(connection: Connection, version: PolicyVersion, verdict: Verdict, now: float) -> None:
    """Record what the gate said; a second word on the same version replaces it."""
    connection.execute(delete(verdicts).where(_is(verdicts, version)))
    row = {"number": version.number, "lineage": version.lineage, "promote": verdict.promote}
    connection.execute(insert(verdicts).values(**row, record=msgspec.msgpack.encode(verdict), at=now))


def find_verdict(connection: Connection, version: PolicyVersion) -> Verdict | None:
    """What the gate said of a version."""
    record = connection.scalar(select(verdicts.c.record).where(_is(verdicts, version)))
    return None if record is None else msgspec.msgpack.decode(record, type=Verdict)


def move_release(connection: Connection, name: ReleaseName, version: PolicyVersion, why: str, now: float) -> None:
    """Point a release at a version."""
    row = {"name": name.value, "number": version.number, "lineage": version.lineage}
    connection.execute(insert(releases).values(**row, why=why, at=now))


def history(connection: Connection, name: ReleaseName | None = None) -> list[Moved]:
    """Every move of the release pointers (of one name), oldest first."""
    joined = select(versions, releases.c.name, releases.c.why, releases.c.at.label("moved_at")).join(
        releases, and_(releases.c.number == versions.c.number, releases.c.lineage == versions.c.lineage)
    )
    if name is not None:
        joined = joined.where(releases.c.name == name.value)
    return [
        Moved(name=ReleaseName(row.name), version=_version(row), why=row.why, at=row.moved_at)
        for row in connection.execute(joined.order_by(releases.c.id))
    ]


def pointer(connection: Connection, name: ReleaseName) -> PolicyVersion | None:
    """The version that a release names now."""
    moves = history(connection, name)
    return moves[-1].version if moves else None


def _standing() -> Select[Any]:
    return select(versions).where(versions.c.superseded.is_(False))


def _is(table: Any, version: PolicyVersion) -> Any:
    return and_(table.c.number == version.number, table.c.lineage == version.lineage)


def _version(row: Row[Any]) -> PolicyVersion:
    return PolicyVersion(
        number=row.number,
        lineage=row.lineage,
        parent=row.parent,
        round=row.round,
        digest=row.digest,
        claim_id=row.claim_id,
        healthy=row.healthy,
        metrics=msgspec.json.decode(row.metrics, type=dict[str, float]),
    )
