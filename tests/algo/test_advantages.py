"""Advantages where the paper, not TRL, is the reference, and the corners that break other trainers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from huilu.algo.advantages import batch_whitened, group_relative, leave_one_out, overlong_penalty
from huilu.algo.filters import is_dropped, is_zero_variance
from huilu.algo.methods import METHODS, method_of
from huilu.config.tree import Algorithm, Dapo, Grpo, ReinforcePlusPlus

REWARD = st.one_of(st.none(), st.floats(-10, 10).map(lambda value: round(value, 3)))


def test_reinforce_plus_plus_normalises_over_tokens() -> None:
    # 2501.03262, equation 5 on tokens: 1 0 0 0 0 0 1 1 has mean 3/8 and variance (3 * 25/64 + 5 * 9/64) / 7.
    found = batch_whitened([[1.0, 0.0], [0.0, 1.0]], [[1, 3], [2, 2]], baseline=False)
    assert found[0] == pytest.approx([1.207615, -0.724569], abs=1e-5)
    assert found[1] == pytest.approx([-0.724569, 1.207615], abs=1e-5)


def test_reinforce_plus_plus_baseline_subtracts_the_group_mean_first() -> None:
    # By hand: 0.5, 3 * -0.5, 2 * 1, 2 * -1 has mean -1/8 and variance 4.875 / 7.
    found = batch_whitened([[1.0, 0.0], [3.0, 1.0]], [[1, 3], [2, 2]], baseline=True)
    assert found[0] == pytest.approx([0.748931, -0.449359], abs=1e-5)
    assert found[1] == pytest.approx([1.348076, -1.048503], abs=1e-5)


def test_reinforce_plus_plus_leaves_unjudged_episodes_out() -> None:
    with_failure = batch_whitened([[1.0, 0.0, None], [0.0, 1.0]], [[1, 3, 9], [2, 2]], baseline=False)
    without = batch_whitened([[1.0, 0.0], [0.0, 1.0]], [[1, 3], [2, 2]], baseline=False)
    assert with_failure[0] == [*without[0], 0.0]
    assert with_failure[1] == without[1]


def test_reinforce_plus_plus_of_equal_returns_is_zero() -> None:
    assert batch_whitened([[0.1, 0.1], [0.1]], [[3, 5], [7]], baseline=False) == [[0.0, 0.0], [0.0]]


@pytest.mark.parametrize("algorithm", [kind() for kind in METHODS])
def test_a_group_of_one_teaches_nothing_by_itself(algorithm: Algorithm) -> None:
    assert method_of(algorithm, 16).advantages([[1.0]], [[4]]) == [[0.0]]


@pytest.mark.parametrize("algorithm", [kind() for kind in METHODS])
def test_a_failure_of_the_infrastructure_moves_no_other_advantage(algorithm: Algorithm) -> None:
    advantages = method_of(algorithm, 16).advantages
    with_failure = advantages([[1.0, None, 0.0, 0.0], [0.5, 1.0]], [[4, 4, 4, 4], [4, 4]])
    without = advantages([[1.0, 0.0, 0.0], [0.5, 1.0]], [[4, 4, 4], [4, 4]])
    assert with_failure[0] == [without[0][0], 0.0, without[0][1], without[0][2]]
    assert with_failure[1] == without[1]


@given(st.lists(st.lists(REWARD, min_size=1, max_size=5), min_size=1, max_size=5))
def test_group_advantages_sum_to_zero_and_are_zero_where_nothing_was_judged(groups: list[list[float | None]]) -> None:
    for found in (group_relative(groups, "group"), group_relative(groups, "batch"), leave_one_out(groups)):
        for group, advantages in zip(groups, found, strict=True):
            assert sum(advantages) == pytest.approx(0.0, abs=1e-6)
            assert all(advantage == 0 for reward, advantage in zip(group, advantages, strict=True) if reward is None)
            assert any(advantages) != is_zero_variance(group)


def test_equal_rewards_whose_mean_is_not_exact_give_exactly_zero() -> None:
    assert group_relative([[0.1, 0.1, 0.1]], "group") == [[0.0, 0.0, 0.0]]


def test_a_group_that_nobody_judged_has_no_variance() -> None:
    assert is_zero_variance([None, None])
    assert is_zero_variance([])


def test_only_dapo_with_dynamic_sampling_drops_groups() -> None:
    assert is_dropped(Dapo(), [1.0, 1.0])
    assert not is_dropped(Dapo(), [1.0, 0.0])
    assert not is_dropped(Dapo(dynamic_sampling=False), [1.0, 1.0])
    assert not is_dropped(Grpo(), [1.0, 1.0])


def test_dapo_penalises_long_answers_and_other_algorithms_do_not() -> None:
    assert method_of(Dapo(overlong_buffer=4), 16).penalty(14) == -0.5
    assert method_of(Dapo(), 16).penalty(16) == 0.0
    assert method_of(Grpo(), 16).penalty(16) == 0.0


def test_the_overlong_penalty_is_never_beyond_minus_one() -> None:
    assert overlong_penalty(1000, 100, 20) == -1.0


def test_every_algorithm_that_a_job_file_can_name_has_a_method() -> None:
    assert set(METHODS) == set(Algorithm.__args__)
    assert method_of(ReinforcePlusPlus(baseline=True), 16).aggregation == "token-mean"
