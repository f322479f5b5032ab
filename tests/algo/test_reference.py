"""Advantages, losses and gradients against what TRL 1.16 computed (reference.json, by make_reference.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from huilu.algo.advantages import group_relative, leave_one_out, overlong_penalty
from huilu.algo.aggregation import token_weights
from huilu.algo.losses import Tokens
from huilu.algo.methods import Method, method_of
from huilu.algo.objective import Batch, figures, objective
from huilu.config.tree import Algorithm, Cispo, Dapo, DrGrpo, Grpo, Gspo, Kl

REFERENCE: dict[str, Any] = json.loads(Path(__file__).with_name("reference.json").read_text())
LENGTHS: list[int] = REFERENCE["lengths"]

CASES: dict[str, Algorithm] = {
    "grpo": Grpo(tis_cap=None),
    "grpo tis": Grpo(),
    "grpo kl": Grpo(kl=Kl(coef=0.04)),
    "grpo entropy": Grpo(tis_cap=None, entropy_coef=0.01),
    "grpo batch": Grpo(scale="batch"),
    "bnpo": Grpo(aggregation="token-mean"),
    "dr_grpo": DrGrpo(tis_cap=None),
    "dr_grpo tis": DrGrpo(),
    "dapo": Dapo(tis_cap=None),
    "dapo tis": Dapo(),
    "gspo": Gspo(tis_cap=None),
    "gspo tis": Gspo(),
    "cispo": Cispo(tis_cap=None, ratio_max=1.2),
    "cispo tis": Cispo(ratio_max=1.2),
}


def grouped(values: list[Any]) -> list[list[Any]]:
    size = REFERENCE["group_size"]
    return [values[start : start + size] for start in range(0, len(values), size)]


def flat(groups: list[list[float]]) -> list[float]:
    return [value for group in groups for value in group]


def forward(algorithm: Algorithm, *, without_reference: bool = False) -> tuple[Method, Batch]:
    """The reference's batch as packed tensors, with the advantages and weights of this algorithm."""
    method = method_of(algorithm, REFERENCE["limit"])
    advantages = flat(method.advantages(grouped(REFERENCE["rewards"]), grouped(LENGTHS)))
    weights = token_weights(LENGTHS, method.aggregation, REFERENCE["limit"])
    lengths = torch.tensor(LENGTHS)
    values = {name: torch.tensor(numbers) for name, numbers in REFERENCE["tokens"].items()}
    tokens = Tokens(
        logp_N=values["logp"].requires_grad_(),
        old_N=values["old"],
        advantage_N=torch.tensor(advantages).repeat_interleave(lengths),
        episode_N=torch.arange(len(LENGTHS)).repeat_interleave(lengths),
        num_episodes=len(LENGTHS),
    )
    batch = Batch(
        tokens=tokens,
        weight_N=torch.tensor(weights).repeat_interleave(lengths),
        rollout_N=values["rollout"],
        entropy_N=values["entropy"].requires_grad_(),
        num_tokens=sum(LENGTHS),
        ref_N=None if without_reference else values["ref"],
    )
    return method, batch


def test_every_loss_that_trl_computed_is_compared() -> None:
    assert set(CASES) == set(REFERENCE["losses"])


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_equal_trl(case: str) -> None:
    expected = REFERENCE["losses"][case]
    method, batch = forward(CASES[case])
    loss, _ = objective(batch, method.term, CASES[case])
    leaves = (batch.tokens.logp_N, batch.entropy_N)
    grad, grad_entropy = torch.autograd.grad(loss, leaves, allow_unused=True)
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-6)
    assert grad.tolist() == pytest.approx(expected["grad_logp"], abs=1e-6)
    assert (grad_entropy is None) == (expected["grad_entropy"] is None)
    if grad_entropy is not None:
        assert grad_entropy.tolist() == pytest.approx(expected["grad_entropy"], abs=1e-8)


@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith(("gspo", "cispo"))])
def test_reported_figures_equal_trl(case: str) -> None:
    expected = REFERENCE["losses"][case]["metrics"]
    method, batch = forward(CASES[case])
    _, policy = objective(batch, method.term, CASES[case])
    means = {name: total.item() / sum(LENGTHS) for name, total in figures(batch, policy, CASES[case]).items()}
    assert means["entropy"] == pytest.approx(expected["entropy"], rel=1e-5)
    assert means["clip_low_frac"] == pytest.approx(expected["clip_ratio/low_mean"], rel=1e-5)
    assert means["clip_high_frac"] == pytest.approx(expected["clip_ratio/high_mean"], rel=1e-5)
    if "kl" in expected:
        assert means["kl_ref"] == pytest.approx(expected["kl"], rel=1e-5)


def test_gspo_clips_whole_sequences_as_trl_does() -> None:
    _, batch = forward(CASES["gspo"])
    _, policy = objective(batch, method_of(CASES["gspo"], 6).term, CASES["gspo"])
    first_tokens = torch.tensor(LENGTHS).cumsum(0) - torch.tensor(LENGTHS)
    expected = REFERENCE["losses"]["gspo"]["metrics"]
    assert policy.is_clipped_low_N[first_tokens].float().mean().item() == pytest.approx(
        expected["clip_ratio/low_mean"], rel=1e-5
    )
    assert policy.is_clipped_high_N[first_tokens].float().mean().item() == pytest.approx(
        expected["clip_ratio/high_mean"], rel=1e-5
    )


def test_cispo_counts_capped_tokens_as_trl_does() -> None:
    method, batch = forward(CASES["cispo"])
    _, policy = objective(batch, method.term, CASES["cispo"])
    expected = REFERENCE["losses"]["cispo"]["metrics"]["cispo_clip_ratio"]
    assert policy.is_clipped_high_N.float().mean().item() == pytest.approx(expected, rel=1e-5)
    assert not policy.is_clipped_low_N.any()


def test_without_a_kl_setting_the_reference_changes_nothing() -> None:
    with_reference, without = forward(Grpo()), forward(Grpo(), without_reference=True)
    assert objective(with_reference[1], with_reference[0].term, Grpo())[0].item() == (
        objective(without[1], without[0].term, Grpo())[0].item()
    )


@pytest.mark.parametrize("batch", REFERENCE["advantages"])
@pytest.mark.parametrize("estimator", ["group", "batch", "none", "rloo"])
def test_advantages_equal_trl(batch: str, estimator: str) -> None:
    rewards = {
        "mixed": [1.0, 0.0, 0.0, 1.0, 0.2, 0.4, 0.6, 0.9, -1.0, 2.0, 0.5, 0.5],
        "masked": REFERENCE["rewards"],
        "one judged": [None, None, 1.0, None, 0.0, 1.0, None, None, 0.3, 0.3, 0.3, 0.3],
        "equal": [0.1] * 12,
    }[batch]
    expected = REFERENCE["advantages"][batch][estimator]
    groups = grouped(rewards)
    if estimator == "rloo":
        found = leave_one_out(groups)
    else:
        found = group_relative(groups, msgspec.convert(estimator, type=Any))
    assert flat(found) == pytest.approx(expected, abs=2e-6)


def test_overlong_penalty_equals_trl() -> None:
    expected = REFERENCE["overlong"]
    found = [overlong_penalty(length, expected["limit"], expected["buffer"]) for length in expected["lengths"]]
    assert found == pytest.approx(expected["penalties"])
