"""Claims: which groups a round learns from. Leased to the learner, applied by a version, acked by a saved state.

Called by `work.flow` (claim) and `release.chain` (apply, ack), in their transactions. A round has one claim: asking
for it again, by whoever runs now, gives the same groups in the same order, which is what makes a replay exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, func, insert, select, update

from huilu import errors
from huilu.bus.feedback import decode
from huilu.core import ids
from huilu.core.nouns import Claim, ClaimState, Episode, Group, Task, TaskState
from huilu.core.tasks import OPEN
from huilu.store.schema import claimed, claims, episodes, tasks, versions


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim asks for. `allow_short`: nothing in flight can add to it. `sample_frac` of the groups train."""

    num_groups: int
    max_lag: int
    allow_short: bool
    owner: str
    lease_s: float
    sample_frac: float = 1.0
    seed: int = 0


def claim(connection: Connection, round_: int, terms: Terms, now: float) -> Claim | None:
    """The round's claim: the recorded one, else a new one, else None while it would be short."""
    claim_id = connection.scalar(select(claims.c.id).where(claims.c.round == round_))
    if claim_id is None:
        ready = _ready(connection, terms.num_groups)
        if (len(ready) < terms.num_groups and not terms.allow_short) or _is_due(connection, round_, terms):
            return None
        claim_id = _lease(connection, round_, ready, terms, now)
    else:
        renewed = update(claims).where(claims.c.id == claim_id)
        connection.execute(renewed.values(owner=terms.owner, lease_until=now + terms.lease_s))
    found = load(connection, claim_id)
    _check_staleness(found, terms.max_lag)
    return found


def newest(connection: Connection) -> tuple[int, float]:
    """The newest round that has a claim, and when it was made; zeros when there is none."""
    row = connection.execute(select(claims.c.round, claims.c.at).order_by(claims.c.round.desc()).limit(1)).first()
    return (0, 0.0) if row is None else (row.round, row.at)


def num_ready(connection: Connection) -> int:
    """Complete groups that no round has claimed."""
    return connection.scalar(select(func.count()).where(_unclaimed())) or 0


def load(connection: Connection, claim_id: str) -> Claim:
    """A claim with the groups that train, in draw order."""
    row = connection.execute(select(claims).where(claims.c.id == claim_id)).one()
    rows = connection.execute(
        select(claimed.c.place, tasks.c.record.label("task"), episodes.c.record, episodes.c.round)
        .join(tasks, tasks.c.id == claimed.c.task_id)
        .join(episodes, episodes.c.task_id == claimed.c.task_id)
        .where(and_(claimed.c.claim_id == claim_id, claimed.c.trains))
        .order_by(claimed.c.place, episodes.c.idx)
    )
    groups: dict[int, tuple[bytes, list[Episode]]] = {}
    for place, task, record, episode_round in rows:
        groups.setdefault(place, (task, []))[1].append(decode(record, episode_round))
    digest = connection.scalar(
        select(versions.c.digest).where(
            and_(
                versions.c.number == row.version,
                versions.c.lineage == row.lineage,
                versions.c.superseded.is_(False),  # a lost lineage's digest is nothing to replay
            )
        )
    )
    return Claim(
        id=row.id,
        round=row.round,
        state=ClaimState(row.state),
        groups=tuple(
            Group(msgspec.msgpack.decode(task, type=Task), tuple(members)) for task, members in groups.values()
        ),
        version=row.version,
        digest=digest or "",
    )


def apply(connection: Connection, claim_id: str, number: int, lineage: int) -> None:
    """A version contains this claim. Again, in a new lineage, it names the new one."""
    connection.execute(
        update(claims)
        .where(and_(claims.c.id == claim_id, claims.c.state != ClaimState.ACKED.value))
        .values(state=ClaimState.APPLIED.value, version=number, lineage=lineage)
    )


def ack(connection: Connection, number: int) -> int:
    """A saved state contains every claim applied up to version `number`; how many are acked by it."""
    contained = and_(claims.c.state == ClaimState.APPLIED.value, claims.c.version <= number)
    return connection.execute(update(claims).where(contained).values(state=ClaimState.ACKED.value)).rowcount


def renew(connection: Connection, owner: str, lease_s: float, now: float) -> int:
    """Extend the leases of `owner`; how many."""
    mine = and_(claims.c.owner == owner, claims.c.state == ClaimState.LEASED.value)
    return connection.execute(update(claims).where(mine).values(lease_until=now + lease_s)).rowcount


def check_integrity(connection: Connection) -> list[str]:
    """What contradicts itself: one line each, none when all is well."""
    problems = []
    twice = connection.execute(select(claimed.c.task_id).group_by(claimed.c.task_id).having(func.count() > 1)).all()
    problems += [f"task {row.task_id} is in two claims" for row in twice]
    unapplied = connection.scalars(
        select(claims.c.id).where(and_(claims.c.state != ClaimState.LEASED.value, claims.c.version.is_(None)))
    )
    problems += [f"claim {claim_id} is applied by no version" for claim_id in unapplied]
    open_claimed = connection.scalars(
        select(claimed.c.task_id)
        .join(tasks, tasks.c.id == claimed.c.task_id)
        .where(tasks.c.state != TaskState.DONE.value)
    )
    problems += [f"task {task_id} was claimed but is not done" for task_id in open_claimed]
    return problems


def _unclaimed() -> ColumnElement[bool]:
    return and_(tasks.c.state == TaskState.DONE.value, tasks.c.claim_id.is_(None))


def _ready(connection: Connection, num: int) -> list[str]:
    return list(connection.scalars(select(tasks.c.id).where(_unclaimed()).order_by(tasks.c.draw).limit(num)))


def _is_due(connection: Connection, round_: int, terms: Terms) -> bool:
    """Whether a task that is still open must be learnt in this round, since in the next it would be too old.

    Task k, replacements not counted, was drawn when k // num_groups - max_lag rounds were settled, or later. Its
    due round rises with k, so the first open task decides.
    """
    is_open = tasks.c.state.in_([state.value for state in OPEN])
    first = connection.execute(
        select(tasks.c.draw, tasks.c.extra).where(is_open).order_by(tasks.c.draw).limit(1)
    ).first()
    if first is None:
        return False
    before = connection.scalar(select(func.count()).where(and_(tasks.c.draw < first.draw, tasks.c.extra.is_(False))))
    k = (before or 0) - int(first.extra)
    return round_ > max(k // terms.num_groups, terms.max_lag)


def _lease(connection: Connection, round_: int, ready: Sequence[str], terms: Terms, now: float) -> str:
    claim_id = ids.claim_id(round_)
    connection.execute(
        insert(claims).values(
            id=claim_id,
            round=round_,
            state=ClaimState.LEASED.value,
            owner=terms.owner,
            lease_until=now + terms.lease_s,
            at=now,
        )
    )
    if ready:
        training = sampled(ready, terms.sample_frac, terms.seed)
        rows = [
            {"claim_id": claim_id, "place": place, "task_id": task_id, "trains": task_id in training}
            for place, task_id in enumerate(ready)
        ]
        connection.execute(insert(claimed), rows)
        connection.execute(update(tasks).where(tasks.c.id.in_(ready)).values(claim_id=claim_id))
        connection.execute(update(episodes).where(episodes.c.task_id.in_(ready)).values(round=round_))
    return claim_id


def sampled(task_ids: Sequence[str], frac: float, seed: int) -> set[str]:
    """The share of groups that train, rounded up: chosen by the seed and the ids alone."""
    by_lot = sorted(task_ids, key=lambda task_id: ids.seed_for(seed, "sample", task_id))
    return set(by_lot[: math.ceil(frac * len(by_lot))])


def _check_staleness(found: Claim, max_lag: int) -> None:
    # An episode that failed before its first token was sampled by no version.
    oldest = min((episode.version for episode in found.episodes if episode.num_sampled), default=None)
    if oldest is not None and oldest < found.round - 1 - max_lag:
        raise errors.Invariant(
            f"round {found.round} claimed a sample of version {oldest}", expected=f"at most {max_lag} versions behind"
        )
