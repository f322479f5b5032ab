"""Feedback and episodes: counted once, whatever happens twice."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from sqlalchemy import Connection, delete, select

from huilu.bus import feedback
from huilu.core import ids
from huilu.core.nouns import Accounting, Episode, Feedback, FeedbackKind, FeedbackSource, FeedbackState, Outcome
from huilu.store.schema import episodes
from huilu.store.schema import feedback as words

NOW = 1000.0


def issued(connection: Connection, task: str, num: int) -> None:
    feedback.issue(connection, [ids.episode_id(task, index) for index in range(num)], NOW)


def from_user(key: str, state: FeedbackState = FeedbackState.ACCEPTED) -> Feedback:
    return Feedback(
        key=key,
        episode_id="t000000.e0",
        kind=FeedbackKind.CORRECTION,
        source=FeedbackSource.USER,
        state=state,
        text="it is 15",
    )


def test_what_is_issued_is_in_flight(connection: Connection, drawn: Callable[[int], list[str]]) -> None:
    (task,) = drawn(1)
    issued(connection, task, 3)
    assert feedback.accounting(connection) == Accounting(issued=3, in_flight=3)


def test_issuing_again_after_a_crash_counts_nothing_twice(
    connection: Connection, drawn: Callable[[int], list[str]]
) -> None:
    (task,) = drawn(1)
    assert feedback.issue(connection, [ids.episode_id(task, 0)], NOW) == 1
    assert feedback.issue(connection, [ids.episode_id(task, index) for index in range(3)], NOW) == 2
    assert feedback.issue(connection, [ids.episode_id(task, index) for index in range(3)], NOW) == 0
    assert feedback.accounting(connection) == Accounting(issued=3, in_flight=3)


@pytest.mark.parametrize("state", [state for state in FeedbackState if state is not FeedbackState.IN_FLIGHT])
def test_an_appended_episode_ends_its_feedback(
    connection: Connection,
    drawn: Callable[[int], list[str]],
    episode: Callable[..., Episode],
    say: Callable[..., Feedback],
    state: FeedbackState,
) -> None:
    (task,) = drawn(1)
    issued(connection, task, 1)
    ended = episode(task, 0)
    assert feedback.append(connection, ended, say(ended, state), NOW + 5)
    assert feedback.accounting(connection) == Accounting(issued=1, **{state.value: 1})
    row = connection.execute(select(words)).one()
    assert (row.state, row.value, row.note, row.ended_at) == (state.value, 0.0, "because", NOW + 5)


def test_an_episode_comes_back_as_it_was_appended(
    connection: Connection,
    drawn: Callable[[int], list[str]],
    episode: Callable[..., Episode],
    say: Callable[..., Feedback],
) -> None:
    (task,) = drawn(1)
    ended = episode(task, 0)
    feedback.append(connection, ended, say(ended), NOW)
    (found,) = feedback.group(connection, task)
    assert msgspec.msgpack.encode(found) == msgspec.msgpack.encode(ended)  # a nan is no equal of itself


def test_a_second_append_of_an_episode_changes_nothing(
    connection: Connection,
    drawn: Callable[[int], list[str]],
    episode: Callable[..., Episode],
    say: Callable[..., Feedback],
) -> None:
    (task,) = drawn(1)
    issued(connection, task, 1)
    first = episode(task, 0)
    feedback.append(connection, first, say(first), NOW)
    before = [connection.execute(select(table)).all() for table in (episodes, words)]
    again = msgspec.structs.replace(first, text="another answer", reward=0.25)
    assert not feedback.append(connection, again, say(again, FeedbackState.REJECTED), NOW + 9)
    assert [connection.execute(select(table)).all() for table in (episodes, words)] == before
    assert feedback.accounting(connection) == Accounting(issued=1, accepted=1)


def test_an_episode_that_nobody_announced_is_issued_as_it_arrives(
    connection: Connection,
    drawn: Callable[[int], list[str]],
    episode: Callable[..., Episode],
    say: Callable[..., Feedback],
) -> None:
    (task,) = drawn(1)
    ended = episode(task, 0)
    feedback.append(connection, ended, say(ended), NOW)
    assert feedback.accounting(connection) == Accounting(issued=1, accepted=1)


def test_an_episode_of_a_task_that_is_not_there_is_refused(
    connection: Connection, episode: Callable[..., Episode], say: Callable[..., Feedback]
) -> None:
    ended = episode("t999999", 0)
    with pytest.raises(Exception, match="FOREIGN KEY"):
        feedback.append(connection, ended, say(ended), NOW)


def test_feedback_of_a_user_is_issued_on_arrival_and_once_a_key(connection: Connection) -> None:
    assert feedback.arrive(connection, from_user("k1"), NOW)
    assert not feedback.arrive(connection, from_user("k1", FeedbackState.REJECTED), NOW)
    assert feedback.arrive(connection, from_user("k2", FeedbackState.REJECTED), NOW)
    assert feedback.accounting(connection) == Accounting(issued=2, accepted=1, rejected=1)


def test_missing_are_the_indexes_without_an_episode(
    connection: Connection,
    drawn: Callable[[int], list[str]],
    episode: Callable[..., Episode],
    say: Callable[..., Feedback],
) -> None:
    one, other = drawn(2)
    assert feedback.missing(connection, one, 3) == [0, 1, 2]
    for index in (1, 0):
        ended = episode(one, index)
        feedback.append(connection, ended, say(ended), NOW)
    assert feedback.missing(connection, one, 3) == [2]
    assert feedback.missing(connection, one, 2) == []
    assert feedback.missing(connection, other, 2) == [0, 1]
    assert [found.index for found in feedback.group(connection, one)] == [0, 1]


def test_a_failed_attempt_is_no_reward(
    connection: Connection,
    drawn: Callable[[int], list[str]],
    episode: Callable[..., Episode],
    say: Callable[..., Feedback],
) -> None:
    (task,) = drawn(1)
    issued(connection, task, 1)
    ended = episode(task, 0, outcome=Outcome.INFRA_FAILED)
    feedback.append(connection, ended, say(ended), NOW)
    assert feedback.accounting(connection) == Accounting(issued=1, infra_failed=1)
    assert connection.execute(select(episodes.c.reward, episodes.c.outcome)).one() == (None, "infra_failed")


def test_what_will_not_come_expires_and_only_that(
    connection: Connection,
    drawn: Callable[[int], list[str]],
    episode: Callable[..., Episode],
    say: Callable[..., Feedback],
) -> None:
    for task in drawn(11):
        issued(connection, task, 2)
    ended = episode("t000001", 0)
    feedback.append(connection, ended, say(ended), NOW)
    assert feedback.expire(connection, ["t000001"], NOW) == 1  # and nothing of t000010
    assert feedback.accounting(connection) == Accounting(issued=22, accepted=1, expired=1, in_flight=20)


def test_a_row_that_vanishes_shows_as_unaccounted(connection: Connection, drawn: Callable[[int], list[str]]) -> None:
    (task,) = drawn(1)
    issued(connection, task, 3)
    connection.execute(delete(words).where(words.c.key == "t000000.e1:verifier"))
    assert feedback.accounting(connection).unaccounted == 1


def test_names_of_states_are_the_accountings_fields() -> None:
    assert {state.value for state in FeedbackState} | {"issued"} == {
        field.name for field in msgspec.structs.fields(Accounting)
    }
