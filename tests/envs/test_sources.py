"""The mixture: splits, draws that follow from the seed and the cursor alone, and what the report sees."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from huilu import errors
from huilu.config.tree import Data
from huilu.core.ports import Environment
from huilu.envs.registry import build_environment
from huilu.envs.report import report_sources
from huilu.envs.sources import Sources, permutation, split_sources


def data(*sources: dict[str, Any], **fields: Any) -> Data:
    return msgspec.convert({"sources": list(sources), **fields}, Data)


def sums(high: int = 4, holdout: int = 4, **fields: Any) -> dict[str, Any]:
    return {"env": "arithmetic", "params": {"high": high}, "holdout": holdout, **fields}


def rows_drawn(data_: Data, seed: int, draws: range | list[int]) -> list[str]:
    with Sources(data_, seed, build_environment) as sources:
        return [sources.draw(k).metadata["row"] for k in draws]


def test_held_out_tasks_and_those_to_train_on_are_all_tasks_once() -> None:
    (source,) = split_sources(data(sums(high=20, holdout=100)), build_environment)
    assert len(source.held_out) == 100
    assert sorted(source.held_out + source.to_train) == list(range(400))


def test_the_split_depends_on_data_seed_and_not_on_the_runs() -> None:
    def held_out(data_seed: int, seed: int) -> list[str]:
        with Sources(data(sums(), seed=data_seed), seed, build_environment) as sources:
            return [task.id for task in sources.holdout(4)]

    assert held_out(0, 1) == held_out(0, 2)
    assert held_out(0, 1) != held_out(1, 1)


def test_nothing_held_out_is_ever_drawn() -> None:
    others = {"env": "arithmetic", "params": {"low": 6, "high": 8}, "holdout": 2}
    data_ = data(sums(high=5, holdout=10), others)
    with Sources(data_, 0, build_environment) as sources:
        held_out = {task.metadata["row"] for task in sources.holdout(100)}
        drawn = {sources.draw(k).metadata["row"] for k in range(200)}
    assert len(held_out) == 12
    assert len(drawn) == 15 + 7
    assert not held_out & drawn


def test_a_draw_has_the_id_of_its_number_and_names_its_row() -> None:
    with Sources(data(sums()), 0, build_environment) as sources:
        task = sources.draw(7)
        index = int(task.metadata["row"].removeprefix("arithmetic/"))
    assert task.id == "t000007"
    assert task.prompt == build_environment("arithmetic", {"high": 4}).task(index).prompt


def test_every_epoch_has_every_task_once_in_an_order_of_its_own() -> None:
    rows = rows_drawn(data(sums()), 0, range(36))
    epochs = [rows[:12], rows[12:24], rows[24:]]
    assert all(len(set(epoch)) == 12 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_seeds_give_other_orders() -> None:
    assert rows_drawn(data(sums()), 0, range(12)) != rows_drawn(data(sums()), 1, range(12))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 80), min_size=1, max_size=20), st.integers(1, 5))
def test_a_draw_follows_from_its_number_alone(draws: list[int], num_loaders: int) -> None:
    """In any order, from any cursor, with any number of loader threads."""
    mixture = (sums(holdout=4), sums(high=3, holdout=1, weight=2.0))
    unbroken = rows_drawn(data(*mixture), 5, range(81))
    assert rows_drawn(data(*mixture, num_loaders=num_loaders), 5, draws) == [unbroken[k] for k in draws]


def test_sources_are_drawn_in_proportion_to_their_weights() -> None:
    mixture = data(sums(weight=3.0), {"env": "jsonl", "weight": 1.0, "holdout": 0})
    (first,) = split_sources(data(sums()), build_environment)
    with Sources(mixture, 0, lambda env, params: first.environment) as sources:
        share = Counter(sources.draw(k).env for k in range(4000))
    assert set(share) == {"arithmetic", "jsonl"}
    assert 0.72 < share["arithmetic"] / 4000 < 0.78  # 3 standard deviations are 0.02


def test_a_job_may_use_an_environment_twice_under_names_of_their_own() -> None:
    with Sources(data(sums(high=3, holdout=1), sums(high=5, holdout=1)), 0, build_environment) as sources:
        assert {name: len(environment) for name, environment in sources.environments.items()} == {
            "arithmetic": 9,
            "arithmetic-2": 25,
        }
        for k in range(20):
            task = sources.draw(k)
            assert task.metadata["row"].rpartition("/")[0] == task.env


def test_held_out_tasks_come_from_each_source_in_turn_and_end_with_the_last() -> None:
    with Sources(data(sums(holdout=2), sums(high=5, holdout=4)), 0, build_environment) as sources:
        assert [task.env for task in sources.holdout(5)] == ["arithmetic", "arithmetic-2"] * 2 + ["arithmetic-2"]
        assert len(sources.holdout(99)) == 6
        assert sources.holdout(0) == []
        assert sources.holdout(3) == sources.holdout(6)[:3]
        assert sources.holdout(1)[0].metadata["row"] == sources.holdout(1)[0].id


@pytest.mark.parametrize("holdout", [16, 100])
def test_a_source_of_which_nothing_is_left_to_train_on_is_refused(holdout: int) -> None:
    with pytest.raises(errors.BadConfig, match=f"has 16 tasks and holds out {holdout}: nothing is left to train on"):
        split_sources(data(sums(holdout=holdout)), build_environment)


def repeating(folder: Path, *prompts: str) -> Data:
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": p, "answer": "1"}) + "\n" for p in prompts))
    return data({"env": "jsonl", "params": {"path": "rows.jsonl"}, "holdout": 2})


def test_a_prompt_that_is_held_out_is_never_drawn_even_where_the_data_repeats_it(tmp_path: Path) -> None:
    data_ = repeating(tmp_path, *("abcdabcdabcd"))
    with Sources(data_, 0, lambda env, params: build_environment(env, params, tmp_path)) as sources:
        held_out = {task.prompt for task in sources.holdout(2)}
        drawn = {sources.draw(k).prompt for k in range(20)}
    assert drawn
    assert not held_out & drawn


def test_a_source_whose_every_prompt_is_held_out_says_so(tmp_path: Path) -> None:
    data_ = repeating(tmp_path, *("aaaa"))
    with (
        Sources(data_, 0, lambda env, params: build_environment(env, params, tmp_path)) as sources,
        pytest.raises(errors.BadConfig, match="every prompt to train on is also held out"),
    ):
        sources.draw(0)


def test_a_task_that_fails_to_load_fails_its_draw_and_no_other() -> None:
    whole = build_environment("arithmetic", {"high": 4})

    class Flawed:
        def __getattr__(self, name: str) -> Any:
            return getattr(whole, name)

        def __len__(self) -> int:
            return len(whole)

        def task(self, index: int) -> Any:
            if index == 3:
                raise errors.BadData("row 3")
            return whole.task(index)

    flawed: Environment = Flawed()
    outcomes = Counter[str]()
    with Sources(data(sums(holdout=0)), 0, lambda env, params: flawed) as sources:
        for k in range(16):
            try:
                sources.draw(k)
                outcomes["drawn"] += 1
            except errors.BadData:
                outcomes["failed"] += 1
    assert outcomes == {"drawn": 15, "failed": 1}


@given(st.integers(0, 200), st.integers(0, 1 << 62))
def test_a_permutation_has_every_number_once(size: int, seed: int) -> None:
    assert sorted(permutation(size, seed)) == list(range(size))


def test_a_permutation_is_the_same_on_every_machine() -> None:
    """Worked out by hand from `random.Random(1).random()`: 0.134, 0.847, 0.764, 0.255, 0.495."""
    assert permutation(5, 1) == [0, 3, 4, 2, 1]


def test_the_report_counts_repeated_prompts_leaks_and_lengths(tmp_path: Path) -> None:
    rows = [{"prompt": "same", "answer": "1"}] * 6 + [{"prompt": "another", "answer": "234"}] * 2
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def build(env: str, params: dict[str, Any]) -> Environment:
        return build_environment(env, params, tmp_path)

    plain = {"env": "jsonl", "params": {"path": "rows.jsonl"}, "holdout": 3}
    judged = {"env": "jsonl", "params": {"path": "rows.jsonl", "judge": "a.py:f", "gold": None}, "holdout": 0}
    clean, repeated, unknown = report_sources(split_sources(data(sums(), plain, judged), build))
    assert (clean.name, clean.num_tasks, clean.num_train, clean.num_holdout) == ("arithmetic", 16, 12, 4)
    assert (clean.num_repeated, clean.num_leaked, clean.num_without_gold) == (0, 0, 0)
    assert (repeated.num_repeated, repeated.num_leaked, repeated.num_without_gold) == (6, 3, 0)
    assert (repeated.prompt_chars.shortest, repeated.prompt_chars.median, repeated.prompt_chars.longest) == (4, 4, 7)
    assert (repeated.gold_chars.shortest, repeated.gold_chars.p95) == (1, 3)
    assert (unknown.num_without_gold, unknown.gold_chars.longest) == (8, 0)
    assert ("held-out prompts also in training (skipped there)", "3") in repeated.rows()
    assert ("prompt, characters", "4 to 7, median 4, 95 % up to 7") in repeated.rows()
