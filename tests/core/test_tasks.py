"""The table of task states: every state with every event."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from huilu.core.nouns import TaskState
from huilu.core.tasks import OPEN, TRANSITIONS, Event, after

EVENTS: tuple[Event, ...] = get_args(Event)

EXPECTED = {
    "queued": {"claim": "running", "cancel": "cancelled"},
    "running": {
        "finish": "done",
        "filter": "filtered",
        "fail": "queued",
        "give_back": "queued",
        "cancel": "cancelled",
    },
    "done": {},
    "filtered": {},
    "dead": {"requeue": "queued"},
    "cancelled": {"requeue": "queued"},
}
"""What each event makes of each state while attempts are left; what is not listed changes nothing."""


@pytest.mark.parametrize(("state", "event"), list(itertools.product(TaskState, EVENTS)))
def test_each_state_answers_each_event_as_written(state: TaskState, event: Event) -> None:
    assert after(state, event, attempts=1, max_attempts=3) == EXPECTED[state.value].get(event)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(TaskState, EVENTS)))
def test_without_attempts_left_only_a_failure_ends_otherwise(state: TaskState, event: Event) -> None:
    expected = EXPECTED[state.value].get(event)
    if (state, event) == (TaskState.RUNNING, "fail"):
        expected = "dead"
    assert after(state, event, attempts=3, max_attempts=3) == expected


def test_the_table_names_only_events_and_states_that_exist() -> None:
    assert {event for _, event in TRANSITIONS} == set(EVENTS)
    assert {state for state, _ in TRANSITIONS} | set(TRANSITIONS.values()) <= set(TaskState)


def test_every_task_can_still_end_and_what_ended_well_stays_so() -> None:
    def reached(start: TaskState) -> set[TaskState]:
        seen, frontier = {start}, [start]
        while frontier:
            state = frontier.pop()
            for event, attempts in itertools.product(EVENTS, (1, 3)):
                following = after(state, event, attempts, 3)
                if following is not None and following not in seen:
                    seen.add(following)
                    frontier.append(following)
        return seen

    for state in OPEN:
        assert reached(state) == set(TaskState)
    assert reached(TaskState.DONE) == {TaskState.DONE}
    assert reached(TaskState.FILTERED) == {TaskState.FILTERED}
