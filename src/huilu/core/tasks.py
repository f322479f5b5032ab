"""The states of a task in the queue and which event leads from one to the next. Pure; `work.queue`'s SQL is tested
against this table.

    queued --claim--> running --finish--> done | filtered
       ^                 |---fail, attempts left--> queued        |---fail, none left--> dead
       |                 `---lease lost (as fail)
       `--requeue-- dead | cancelled            queued | running --cancel--> cancelled
"""

from __future__ import annotations

from typing import Literal

from huilu.core.nouns import TaskState

Event = Literal["claim", "finish", "filter", "fail", "give_back", "cancel", "requeue"]

QUEUED, RUNNING, DONE = TaskState.QUEUED, TaskState.RUNNING, TaskState.DONE
FILTERED, DEAD, CANCELLED = TaskState.FILTERED, TaskState.DEAD, TaskState.CANCELLED

OPEN = frozenset({QUEUED, RUNNING})
"""States in which a task may still become something to learn from."""

TRANSITIONS: dict[tuple[TaskState, Event], TaskState] = {
    (QUEUED, "claim"): RUNNING,
    (RUNNING, "finish"): DONE,
    (RUNNING, "filter"): FILTERED,
    (RUNNING, "fail"): QUEUED,
    (RUNNING, "give_back"): QUEUED,
    (QUEUED, "cancel"): CANCELLED,
    (RUNNING, "cancel"): CANCELLED,
    (DEAD, "requeue"): QUEUED,
    (CANCELLED, "requeue"): QUEUED,
}


def after(state: TaskState, event: Event, attempts: int, max_attempts: int) -> TaskState | None:
    """The next state, or None when the event means nothing in this state (a stale worker's word).

    Attempts are counted at the claim, so a task that kills its worker ends as dead too.
    """
    if (state, event) == (RUNNING, "fail") and attempts >= max_attempts:
        return DEAD
    return TRANSITIONS.get((state, event))
