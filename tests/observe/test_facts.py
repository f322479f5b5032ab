"""Which episodes a report shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from huilu.core.nouns import Outcome
from huilu.observe.report.facts import EpisodeFacts, shown_episodes, within_budget


def pairs(sizes: list[int]) -> list[tuple[int, str]]:
    return [(number, f"t{number:04d}.e{i:04d}") for number, size in enumerate(sizes, 1) for i in range(size)]


def episode(number: int, answer: str) -> EpisodeFacts:
    fields = {"task": "t", "version": 0, "finish_reason": "stop", "num_tokens": 1}
    return EpisodeFacts(id=f"e{number}", round=number, answer=answer, outcome=Outcome.OK, **fields)  # type: ignore[arg-type]


def test_a_small_run_is_shown_whole() -> None:
    assert shown_episodes(pairs([2, 3]), limit=5) == [id_ for _, id_ in pairs([2, 3])]


def test_of_a_large_run_the_newest_are_shown_and_a_share_of_every_round_before() -> None:
    shown = shown_episodes(pairs([100] * 10), limit=100)
    rounds = [int(id_[1:5]) for id_ in shown]
    assert rounds.count(10) == 50 + 5
    assert all(rounds.count(number) == 5 for number in range(1, 10))


def test_of_more_rounds_than_fit_some_are_shown_from_start_to_end() -> None:
    shown = shown_episodes(pairs([1] * 10_000), limit=10)
    assert [int(id_[1:5]) for id_ in shown[:5]] == [1, 2000, 3999, 5998, 7997]


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(2, 60))
def test_no_more_are_shown_than_the_limit_and_none_twice(sizes: list[int], limit: int) -> None:
    every = pairs(sizes)
    shown = shown_episodes(every, limit)
    assert len(shown) == len(set(shown)) <= limit
    assert set(shown) <= {id_ for _, id_ in every}
    if every:
        assert shown[-1] == every[-1][1]


def test_long_answers_push_out_the_oldest_episodes() -> None:
    episodes = [episode(1, "x" * 50), episode(2, "x" * 50), episode(3, "x" * 60)]
    assert [e.round for e in within_budget(episodes, max_chars=115)] == [2, 3]
