"""The check before a run: right answers must pass, empty ones must not, and what goes wrong is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from huilu import errors
from huilu.core.generation import Judgement
from huilu.core.nouns import Message, Task
from huilu.core.ports import Tools


class Environment:
    """Ten tasks; `judgements` says what each answer scores."""

    needs: frozenset[str] = frozenset()

    def __init__(self, judgements: dict[str, Judgement], gold: str | None = "right") -> None:
        self.judgements, self._gold = judgements, gold
        self.asked: set[str] = set()

    def __len__(self) -> int:
        return 10

    def task(self, index: int) -> Task:
        return Task(id=f"fake/{index}", env="fake", prompt=(Message("user", "?"),))

    async def reply(self, task: Task, answers: Sequence[str], tools: Tools) -> Message | None:
        return None

    async def judge(self, task: Task, answers: Sequence[str], tools: Tools) -> Judgement:
        self.asked.add(task.id)
        return self.judgements[answers[-1]]

    def gold(self, task: Task) -> str | None:
        return self._gold


GOOD = Judgement(reward=1.0, passed=True)
BAD = Judgement(reward=0.0, passed=False)


def test_an_environment_that_tells_right_from_wrong_has_no_failures(gold_failures: Any) -> None:
    assert gold_failures(Environment({"right": GOOD, "": BAD}), 10) == []


def test_a_right_answer_that_fails_is_told_with_its_score_and_note(gold_failures: Any) -> None:
    judged = Judgement(reward=0.5, passed=False, note="no tags")
    (failure,) = gold_failures(Environment({"right": judged, "": BAD}), 1)
    assert failure == "fake/0: the right answer 'right' scored 0.5 (no tags)"


def test_a_right_answer_that_is_not_judged_is_a_failure(gold_failures: Any) -> None:
    (failure,) = gold_failures(Environment({"right": Judgement(reward=None, passed=False), "": BAD}), 1)
    assert failure == "fake/0: the right answer 'right' was not judged"


def test_an_empty_answer_that_passes_is_a_failure_even_where_no_answer_is_known(gold_failures: Any) -> None:
    assert gold_failures(Environment({"": GOOD}, gold=None), 1) == ["fake/0: an empty answer scored 1"]


def test_what_judging_raises_is_a_failure_of_its_task(gold_failures: Any) -> None:
    class Raising(Environment):
        async def judge(self, task: Task, answers: Sequence[str], tools: Tools) -> Judgement:
            if task.id == "fake/0":
                raise errors.SandboxFailed("no slot")
            raise ZeroDivisionError("division by zero")

    first, second = gold_failures(Raising({}), 2)
    assert first == "task 0: The sandbox itself failed; the program in it is not to blame: no slot"
    assert second == "task 5: Code that the job brought along raised: task 5: ZeroDivisionError: division by zero"


def test_the_tasks_checked_are_spread_over_the_data_set(gold_failures: Any) -> None:
    environment = Environment({"right": GOOD, "": BAD})
    gold_failures(environment, 5)
    assert environment.asked == {f"fake/{n}" for n in (0, 2, 4, 6, 8)}
