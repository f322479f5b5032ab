"""Feedback and episodes: issued when an attempt starts, appended when it ends, counted exactly once.

Called by `work.flow` and by whoever takes feedback from users. Functions take a connection and belong in the
caller's transaction; `issued` is a counter of its own, so that a lost row shows as `unaccounted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import Connection, and_, func, insert, select, update

from huilu.core import ids
from huilu.core.nouns import Accounting, Episode, Feedback, FeedbackKind, FeedbackSource, FeedbackState
from huilu.store.schema import episodes, feedback, ledger

ISSUED = "feedback_issued"


def issue(connection: Connection, episode_ids: Sequence[str], now: float) -> int:
    """An attempt starts: the verifier's word on these episodes is in flight. Again counts nothing; how many are new."""
    keys = {ids.feedback_key(episode, FeedbackSource.VERIFIER): episode for episode in episode_ids}
    known = set(connection.scalars(select(feedback.c.key).where(feedback.c.key.in_(keys))))
    rows = [
        {
            "key": key,
            "episode_id": episode,
            "kind": FeedbackKind.SCORE.value,
            "source": FeedbackSource.VERIFIER.value,
            "state": FeedbackState.IN_FLIGHT.value,
            "text": "",
            "note": "",
            "issued_at": now,
        }
        for key, episode in keys.items()
        if key not in known
    ]
    if rows:
        connection.execute(insert(feedback), rows)
        _count(connection, len(rows))
    return len(rows)


def append(connection: Connection, episode: Episode, word: Feedback, now: float) -> bool:
    """An attempt ended: its episode, and what was said of it. False, and no change, when the episode was there."""
    if connection.scalar(select(episodes.c.id).where(episodes.c.id == episode.id)) is not None:
        return False
    connection.execute(
        insert(episodes).values(
            id=episode.id,
            task_id=episode.task_id,
            round=episode.round,
            idx=episode.index,
            version=episode.version,
            outcome=episode.outcome.value,
            reward=episode.reward,
            num_sampled=episode.num_sampled,
            record=msgspec.msgpack.encode(episode),
            at=now,
        )
    )
    ended = connection.execute(
        update(feedback)
        .where(and_(feedback.c.key == word.key, feedback.c.state == FeedbackState.IN_FLIGHT.value))
        .values(state=word.state.value, value=word.value, text=word.text, note=word.note, ended_at=now)
    )
    if ended.rowcount == 0:
        arrive(connection, word, now)
    return True


def arrive(connection: Connection, word: Feedback, now: float) -> bool:
    """Feedback that nobody was waiting for (a user's, a judge's): issued on arrival. False when its key is known."""
    if connection.scalar(select(feedback.c.key).where(feedback.c.key == word.key)) is not None:
        return False
    connection.execute(
        insert(feedback).values(
            key=word.key,
            episode_id=word.episode_id,
            kind=word.kind.value,
            source=word.source.value,
            state=word.state.value,
            value=word.value,
            text=word.text,
            note=word.note,
            issued_at=now,
            ended_at=None if word.state is FeedbackState.IN_FLIGHT else now,
        )
    )
    _count(connection, 1)
    return True


def missing(connection: Connection, task_id: str, num_episodes: int) -> list[int]:
    """Which of a task's episodes are not durable yet, by index."""
    known = set(connection.scalars(select(episodes.c.idx).where(episodes.c.task_id == task_id)))
    return [index for index in range(num_episodes) if index not in known]


def group(connection: Connection, task_id: str) -> list[Episode]:
    """A task's durable episodes, by index."""
    rows = connection.execute(
        select(episodes.c.record, episodes.c.round).where(episodes.c.task_id == task_id).order_by(episodes.c.idx)
    )
    return [decode(row.record, row.round) for row in rows]


def decode(record: bytes, round_: int) -> Episode:
    """An episode from its row; the round is the one that claimed it."""
    return msgspec.structs.replace(msgspec.msgpack.decode(record, type=Episode), round=round_)


def expire(connection: Connection, task_ids: Iterable[str], now: float) -> int:
    """What is still in flight for these tasks will not come; how many."""
    expired = 0
    for task_id in task_ids:
        in_flight = and_(
            feedback.c.episode_id.startswith(f"{task_id}.e", autoescape=True),
            feedback.c.state == FeedbackState.IN_FLIGHT.value,
        )
        expired += connection.execute(
            update(feedback).where(in_flight).values(state=FeedbackState.EXPIRED.value, ended_at=now)
        ).rowcount
    return expired


def accounting(connection: Connection) -> Accounting:
    """The account: the issue counter against the rows by state."""
    rows = connection.execute(select(feedback.c.state, func.count().label("number")).group_by(feedback.c.state)).all()
    found = {str(row.state): int(row.number) for row in rows}
    issued = connection.scalar(select(ledger.c.count).where(ledger.c.name == ISSUED)) or 0
    return Accounting(issued=issued, **{state.value: found.get(state.value, 0) for state in FeedbackState})


def _count(connection: Connection, amount: int) -> None:
    counted = connection.execute(update(ledger).where(ledger.c.name == ISSUED).values(count=ledger.c.count + amount))
    if counted.rowcount == 0:
        connection.execute(insert(ledger).values(name=ISSUED, count=amount))
