"""What must hold of queue, episodes, feedback and claims together, checked on the rows. Called when a run is idle.

Every line that comes back is a bug, or a database that somebody else wrote to.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, and_, exists, func, not_, or_, select

from huilu.bus import claims, feedback
from huilu.core.nouns import ClaimState, FeedbackSource, FeedbackState, TaskState
from huilu.core.tasks import OPEN
from huilu.store import schema
from huilu.store.schema import episodes, tasks, versions

_OPEN = [state.value for state in OPEN]


def check_integrity(connection: Connection, episodes_per_task: int) -> list[str]:
    """What contradicts itself, one line each; none when all is well."""
    return [
        *_accounting(connection),
        *_leases(connection),
        *_groups(connection, episodes_per_task),
        *_claimed(connection),
        *claims.check_integrity(connection),
    ]


def _accounting(connection: Connection) -> Iterator[str]:
    unaccounted = feedback.accounting(connection).unaccounted
    if unaccounted:
        yield f"{unaccounted} pieces of feedback are unaccounted for"
    words = schema.feedback
    ended = and_(words.c.state == FeedbackState.IN_FLIGHT.value, words.c.source == FeedbackSource.VERIFIER.value)
    durable = exists().where(episodes.c.id == words.c.episode_id)
    for key in connection.scalars(select(words.c.key).where(and_(ended, durable)).order_by(words.c.key)):
        yield f"feedback {key} is in flight, but its episode has ended"


def _leases(connection: Connection) -> Iterator[str]:
    leased = and_(tasks.c.owner.is_not(None), tasks.c.lease_until.is_not(None))
    wrong = or_(
        and_(tasks.c.state == TaskState.RUNNING.value, not_(leased)),
        and_(
            tasks.c.state != TaskState.RUNNING.value, or_(tasks.c.owner.is_not(None), tasks.c.lease_until.is_not(None))
        ),
    )
    for row in connection.execute(select(tasks.c.id, tasks.c.state, tasks.c.owner).where(wrong).order_by(tasks.c.draw)):
        yield f"task {row.id} is {row.state} with the owner {row.owner}"


def _groups(connection: Connection, num: int) -> Iterator[str]:
    """A task is done when its group is complete, and not before; replacements and retries change neither."""
    durable = select(func.count()).where(episodes.c.task_id == tasks.c.id).scalar_subquery()
    done = tasks.c.state.in_([TaskState.DONE.value, TaskState.FILTERED.value])
    rows = select(tasks.c.id, tasks.c.state, durable.label("num")).order_by(tasks.c.draw)
    for row in connection.execute(
        rows.where(or_(and_(done, durable < num), and_(tasks.c.state.in_(_OPEN), durable >= num)))
    ):
        yield f"task {row.id} is {row.state} with {row.num} of {num} episodes"


def _claimed(connection: Connection) -> Iterator[str]:
    """Both sides of a claim name each other, and an applied one names a version that is recorded."""
    claimed, rows = schema.claimed, schema.claims
    both = select(tasks.c.id, tasks.c.claim_id, claimed.c.claim_id.label("by"))
    joined = both.outerjoin_from(tasks, claimed, claimed.c.task_id == tasks.c.id)
    differs = func.coalesce(tasks.c.claim_id, "") != func.coalesce(claimed.c.claim_id, "")
    for row in connection.execute(joined.where(differs).order_by(tasks.c.draw)):
        yield f"task {row.id} names the claim {row.claim_id}, and {row.by} names it"
    made = exists().where(and_(versions.c.number == rows.c.version, versions.c.lineage == rows.c.lineage))
    applied = and_(rows.c.state != ClaimState.LEASED.value, rows.c.version.is_not(None))
    for row in connection.execute(select(rows).where(and_(applied, not_(made))).order_by(rows.c.round)):
        yield f"claim {row.id} is applied by version {row.version} of lineage {row.lineage}, which is not recorded"
