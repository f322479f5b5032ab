"""Losses, KL estimators and aggregation on numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from huilu.algo.aggregation import Aggregation, token_weights
from huilu.algo.kl import ESTIMATORS, Estimator
from huilu.algo.losses import Tokens, capped_reinforce, clipped_ratio, sequence_ratio, truncated_weight


def tokens(ratios: list[float], advantages: list[float], episodes: list[int]) -> Tokens:
    """Old log-probabilities of 0, so that exp(logp) is the ratio."""
    logp_N = torch.tensor(ratios, dtype=torch.float64).log().requires_grad_()
    advantage_N = torch.tensor(advantages, dtype=torch.float64)
    return Tokens(logp_N, torch.zeros_like(logp_N), advantage_N, torch.tensor(episodes), max(episodes) + 1)


def gradient(loss_N: Tensor, logp_N: Tensor) -> list[float]:
    (grad,) = torch.autograd.grad(loss_N.sum(), logp_N)
    values: list[float] = grad.tolist()
    return values


def test_the_clipped_ratio_stops_only_moves_that_went_far_enough() -> None:
    seen = tokens([1.5, 1.5, 0.5, 0.5, 1.1], [1.0, -1.0, 1.0, -1.0, 2.0], [0, 0, 0, 0, 0])
    term = clipped_ratio(seen, low=0.2, high=0.28)
    assert term.loss_N.tolist() == pytest.approx([-1.28, 1.5, -0.5, 0.8, -2.2])
    assert gradient(term.loss_N, seen.logp_N) == pytest.approx([0.0, 1.5, -0.5, 0.0, -2.2])
    assert term.is_clipped_high_N.tolist() == [True, False, False, False, False]
    assert term.is_clipped_low_N.tolist() == [False, False, False, True, False]


def test_on_policy_every_loss_has_the_policy_gradient() -> None:
    for loss in (clipped_ratio, sequence_ratio):
        seen = tokens([1.0, 1.0, 1.0], [2.0, 2.0, -1.0], [0, 0, 1])
        divisor = [2.0, 2.0, 1.0] if loss is sequence_ratio else [1.0, 1.0, 1.0]
        found = gradient(loss(seen, 0.2, 0.2).loss_N / torch.tensor(divisor), seen.logp_N)
        expected = [-1.0, -1.0, 1.0] if loss is sequence_ratio else [-2.0, -2.0, 1.0]
        assert found == pytest.approx(expected)


def test_gspo_uses_the_geometric_mean_of_the_sequence() -> None:
    seen = tokens([2.0, 0.5, 1.1, 1.1], [1.0, 1.0, 1.0, 1.0], [0, 0, 1, 1])
    term = sequence_ratio(seen, low=0.2, high=0.2)
    assert term.loss_N.tolist() == pytest.approx([-1.0, -1.0, -1.1, -1.1])


def test_cispo_keeps_the_gradient_of_tokens_beyond_its_cap() -> None:
    seen = tokens([8.0, 0.5], [1.0, 1.0], [0, 0])
    term = capped_reinforce(seen, ratio_max=5.0)
    assert gradient(term.loss_N, seen.logp_N) == pytest.approx([-5.0, -0.5])
    assert term.is_clipped_high_N.tolist() == [True, False]


def test_importance_weights_are_truncated_above_only() -> None:
    weight_N = truncated_weight(torch.tensor([0.0, math.log(3.0), -math.log(4.0)]), torch.zeros(3), cap=2.0)
    assert weight_N.tolist() == pytest.approx([1.0, 2.0, 0.25])


@pytest.mark.parametrize(("name", "expected"), [("k1", 0.0), ("k2", 0.0), ("k3", 0.0)])
def test_equal_policies_have_no_divergence(name: Estimator, expected: float) -> None:
    assert ESTIMATORS[name](torch.zeros(1)).item() == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    # d = log q - log p = ln 2: -d, d^2 / 2, 2 - 1 - d
    [("k1", -0.693147), ("k2", 0.240227), ("k3", 0.306853)],
)
def test_estimators_on_a_ratio_of_two(name: Estimator, expected: float) -> None:
    assert ESTIMATORS[name](torch.tensor([math.log(2.0)])).item() == pytest.approx(expected, abs=1e-6)


def test_k1_and_k3_are_unbiased_and_k2_has_the_reverse_kl_gradient() -> None:
    logits = torch.tensor([0.3, -0.5, 1.2], dtype=torch.float64, requires_grad=True)
    logq = torch.tensor([0.1, 0.4, -0.2], dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    exact = (logp.exp() * (logp - logq)).sum()
    (exact_grad,) = torch.autograd.grad(exact, logits, retain_graph=True)
    for name in ("k1", "k3"):
        expected_value = (logp.exp() * ESTIMATORS[name](logq - logp)).sum()
        assert expected_value.item() == pytest.approx(exact.item())
    sampled_loss = (logp.exp().detach() * ESTIMATORS["k2"](logq - logp)).sum()
    (sampled_grad,) = torch.autograd.grad(sampled_loss, logits)
    assert sampled_grad.tolist() == pytest.approx(exact_grad.tolist())


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", [1 / 8, 1 / 8, 0.0]),
        ("seq-mean-token-mean", [1 / 4, 1 / 12, 0.0]),
        ("seq-mean-token-sum-norm", [1 / 32, 1 / 32, 0.0]),
    ],
)
def test_an_episode_left_out_of_the_loss_is_left_out_of_the_divisor(
    aggregation: Aggregation, expected: list[float]
) -> None:
    assert token_weights([2, 6, 0], aggregation, limit=16) == pytest.approx(expected)


def test_nothing_to_train_on_is_no_division_by_zero() -> None:
    assert token_weights([0, 0], "token-mean", limit=16) == [0.0, 0.0]
    assert token_weights([], "seq-mean-token-mean", limit=16) == []
