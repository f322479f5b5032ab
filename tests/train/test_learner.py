"""The learner as a whole: what a step does to the weights, what it skips, and what it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from huilu.config.tree import Algorithm, Cispo, Dapo, DrGrpo, Grpo, Gspo, Kl, ReinforcePlusPlus, Rloo, Rollout
from huilu.core.nouns import Claim, Episode, Outcome
from huilu.errors import TrainingUnhealthy
from huilu.model import weights
from huilu.model.decoder import Decoder, causal_attend
from huilu.telemetry import Telemetry

LIKE_SGD = {"eps": 1.0, "betas": (0.0, 0.0), "max_grad_norm": 1e9}
"""With these Adam's step is rate * g / (|g| + 1): smooth in the gradient, so that weights can be compared."""

ALGORITHMS: list[Algorithm] = [Grpo(), DrGrpo(), Dapo(), Rloo(), ReinforcePlusPlus(), Gspo(), Cispo()]


def weights_of(decoder: Decoder) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in decoder.parameters()]


def assert_equal(first: Sequence[Tensor], second: Sequence[Tensor], tolerance: float = 0.0) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


def plain_loss(decoder: Decoder, episodes: list[Episode], advantages: list[float]) -> Tensor:
    """GRPO's loss of a first step, written out: every episode on its own, all logits at once, ratio 1, cap 2."""
    total = torch.zeros(())
    for episode, advantage in zip(episodes, advantages, strict=True):
        ids = torch.tensor(episode.token_ids)
        hidden = decoder.hidden(ids, torch.arange(len(ids)), causal_attend([len(ids)]))
        logp = decoder.logits(hidden)[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        mask = torch.tensor(episode.loss_mask)[1:]
        logp, rollout = logp[mask], torch.tensor(episode.logprobs)[1:][mask]
        weight = (logp.detach() - rollout).exp().clamp(max=2.0)
        total = total - (weight * advantage * (logp - logp.detach()).exp()).mean() / len(episodes)
    return total


def test_a_step_is_the_gradient_of_the_written_out_loss(tiny: Any) -> None:
    claim = tiny.random_claim(1, [(1, 0, 0, 1), (0, 1)])
    advantages = [0.865875, -0.865875, -0.865875, 0.865875, -0.707007, 0.707007]  # (r - mean) / (std + 1e-4)
    ours, theirs = tiny.decoder(), tiny.decoder()
    report = tiny.learner(ours, **LIKE_SGD).step(claim)
    loss = plain_loss(theirs, claim.episodes, advantages)
    gradients = torch.autograd.grad(loss, list(theirs.parameters()))
    expected = [
        parameter - 1e-2 * gradient / (gradient.abs() + 1.0)
        for parameter, gradient in zip(theirs.parameters(), gradients, strict=True)
    ]
    assert_equal(weights_of(ours), expected, 1e-6)
    assert report.metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert report.metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_micro_batches_change_nothing(tiny: Any, algorithm: Algorithm) -> None:
    whole, parts = tiny.decoder(), tiny.decoder()
    claim = tiny.random_claim(2)
    once = tiny.learner(whole, algorithm, tokens_per_microbatch=10_000, **LIKE_SGD).step(claim)
    often = tiny.learner(parts, algorithm, tokens_per_microbatch=12, **LIKE_SGD).step(claim)
    assert_equal(weights_of(whole), weights_of(parts), 1e-6)
    assert often.metrics == pytest.approx(once.metrics, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: type(algorithm).__name__)
def test_a_step_makes_rewarded_answers_likelier(tiny: Any, algorithm: Algorithm) -> None:
    decoder = tiny.decoder()
    good, bad = tiny.episode([1, 2, 3], [5, 6], 1.0), tiny.episode([1, 2, 3], [7, 8], 0.0)
    learner = tiny.learner(decoder, algorithm, rollout=Rollout(max_new_tokens=2))
    before = likelihood(decoder, good) - likelihood(decoder, bad)
    learner.step(tiny.claim([good, bad]))
    assert likelihood(decoder, good) - likelihood(decoder, bad) > before


def likelihood(decoder: Decoder, episode: Episode) -> float:
    with torch.no_grad():
        return -float(plain_loss(decoder, [episode], [0.0])) + float(logp_of(decoder, episode).sum())


def logp_of(decoder: Decoder, episode: Episode) -> Tensor:
    ids = torch.tensor(episode.token_ids)
    hidden = decoder.hidden(ids, torch.arange(len(ids)), causal_attend([len(ids)]))
    logp = decoder.logits(hidden)[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    return logp[torch.tensor(episode.loss_mask)[1:]]


def test_a_claim_of_equal_rewards_changes_nothing_and_computes_nothing(tiny: Any) -> None:
    decoder = tiny.decoder()
    before = weights_of(decoder)
    report = tiny.learner(decoder).step(tiny.random_claim(3, [(1, 1, 1), (0, 0)]))
    assert (report.applied, report.healthy) == (False, True)
    assert report.metrics["num_zero_variance"] == 2
    assert report.metrics["trained_tokens"] == 0
    assert "forward_backward" not in report.seconds
    assert_equal(weights_of(decoder), before)


def test_an_empty_claim_is_a_round_without_a_step(tiny: Any) -> None:
    report = tiny.learner(tiny.decoder()).step(tiny.claim())
    assert (report.applied, report.healthy) == (False, True)
    assert report.metrics["num_episodes"] == 0


def test_groups_without_a_signal_cost_no_tokens(tiny: Any) -> None:
    mixed = tiny.random_claim(4, [(1, 0)])
    both = tiny.claim(mixed.groups[0].episodes, tiny.random_claim(5, [(1, 1, 1)]).groups[0].episodes)
    alone = tiny.learner(tiny.decoder()).step(mixed)
    together = tiny.learner(tiny.decoder()).step(both)
    assert together.metrics["trained_tokens"] == alone.metrics["trained_tokens"]


def test_only_sampled_tokens_are_trained_in_a_conversation(tiny: Any) -> None:
    """The environment's reply between two turns is read, but its probability has no part in the loss."""
    two_turns = [
        Episode(
            **{
                **{name: getattr(episode, name) for name in episode.__struct_fields__},
                "token_ids": [1, 2, *answer, 9, 10, *answer],
                "logprobs": [0.0, 0.0, -1.0, -1.0, 0.0, 0.0, -1.0, -1.0],
                "loss_mask": [False, False, True, True, False, False, True, True],
            }
        )
        for answer, reward in (([5, 6], 1.0), ([7, 8], 0.0))
        for episode in [tiny.episode([1, 2], answer, reward)]
    ]
    claim = tiny.claim(two_turns)
    ours, theirs = tiny.decoder(), tiny.decoder()
    report = tiny.learner(ours, **LIKE_SGD).step(claim)
    gradients = torch.autograd.grad(plain_loss(theirs, two_turns, [0.707007, -0.707007]), list(theirs.parameters()))
    expected = [
        parameter - 1e-2 * gradient / (gradient.abs() + 1.0)
        for parameter, gradient in zip(theirs.parameters(), gradients, strict=True)
    ]
    assert_equal(weights_of(ours), expected, 1e-6)
    assert report.metrics["trained_tokens"] == 8


def test_the_eos_token_is_trained_though_it_is_also_the_pad_token(tiny: Any) -> None:
    eos = 0
    decoder = tiny.decoder()
    stops, rambles = tiny.episode([1, 2, 3], [5, eos], 1.0), tiny.episode([1, 2, 3], [5, 6], 0.0)
    before = logp_of(decoder, stops)[-1].item()
    tiny.learner(decoder).step(tiny.claim([stops, rambles]))
    assert logp_of(decoder, stops)[-1].item() > before


def test_a_step_that_is_not_finite_is_skipped_and_counted(tiny: Any) -> None:
    decoder, telemetry = tiny.decoder(), Telemetry()
    learner = tiny.learner(decoder, telemetry=telemetry)
    before = weights_of(decoder)
    report = learner.step(poisoned(tiny))
    assert (report.applied, report.healthy) == (False, False)
    assert telemetry.value("huilu_trainer_nonfinite_total") == 1
    assert_equal(weights_of(decoder), before)
    good = learner.step(tiny.random_claim(6))
    assert (good.applied, good.healthy) == (True, True)
    assert all(parameter.isfinite().all() for parameter in decoder.parameters())


def poisoned(tiny: Any) -> Claim:
    """Log-probabilities that say nothing: the importance weight is not a number."""
    claim: Claim = tiny.claim(
        [
            tiny.episode([1, 2], [5, 6], 1.0, logprobs=[math.nan, -1.0]),
            tiny.episode([1, 2], [7, 8], 0.0),
        ]
    )
    return claim


def test_training_stops_after_too_many_sick_steps_in_a_row(tiny: Any) -> None:
    learner = tiny.learner(tiny.decoder(), max_nonfinite=2)
    learner.step(poisoned(tiny))
    learner.step(tiny.random_claim(7))
    learner.step(poisoned(tiny))
    with pytest.raises(TrainingUnhealthy, match="2 updates in a row"):
        learner.step(poisoned(tiny))


def test_several_steps_a_claim_keep_the_policy_of_its_start_as_old(tiny: Any) -> None:
    decoder = tiny.decoder()
    report = tiny.learner(decoder, Grpo(epochs=3, clip_low=0.05, clip_high=0.05)).step(tiny.random_claim(8))
    assert report.metrics["step"] == 3
    assert report.metrics["kl_old"] > 0
    assert report.metrics["clip_low_frac"] + report.metrics["clip_high_frac"] > 0


def test_minibatches_are_steps_of_their_own(tiny: Any) -> None:
    first, second = tiny.random_claim(9, [(1, 0), (0, 1)]).groups
    together, apart, start = tiny.decoder(), tiny.decoder(), tiny.decoder()
    algorithm = Grpo(minibatches=2, tis_cap=None, clip_high=9.0, clip_low=0.9)
    report = tiny.learner(together, algorithm, **LIKE_SGD).step(tiny.claim(first.episodes, second.episodes))
    learner = tiny.learner(apart, Grpo(tis_cap=None), **LIKE_SGD)
    learner.step(tiny.claim(first.episodes))
    learner.step(tiny.claim(second.episodes))
    # Alike but for the second ratio, which is against the policy before the first step.
    moved = max(float((one - other).abs().max()) for one, other in pairs(together, start))
    apart_by = max(float((one - other).abs().max()) for one, other in pairs(together, apart))
    assert report.metrics["step"] == 2
    assert 0 < apart_by < moved / 5


def pairs(first: Decoder, second: Decoder) -> list[tuple[Tensor, Tensor]]:
    return list(zip(weights_of(first), weights_of(second), strict=True))


def test_the_gradient_is_clipped_to_its_norm(tiny: Any) -> None:
    free, clipped = tiny.decoder(), tiny.decoder()
    before = weights_of(free)
    claim = tiny.random_claim(10)
    settings = {"eps": 1e6, "betas": (0.0, 0.0), "learning_rate": 1e6}  # the step is the gradient itself
    norm = tiny.learner(free, **{**settings, "max_grad_norm": 1e9}).step(claim).metrics["grad_norm"]
    tiny.learner(clipped, **{**settings, "max_grad_norm": norm / 4}).step(claim)
    for start, whole, quarter in zip(before, weights_of(free), weights_of(clipped), strict=True):
        torch.testing.assert_close((start - quarter) * 4, start - whole, atol=1e-4, rtol=1e-2)


def test_the_kl_penalty_pulls_towards_the_reference_even_without_a_reward(tiny: Any) -> None:
    decoder, reference = tiny.decoder(0), tiny.decoder(1)
    learner = tiny.learner(decoder, Grpo(kl=Kl(coef=1.0, estimator="k2")), reference=reference)
    claim = tiny.random_claim(11, [(1, 1, 1, 1)])
    divergences = [learner.step(claim).metrics["kl_ref"] for _ in range(6)]
    assert divergences[-1] < divergences[0]
    assert_equal(weights_of(reference), weights_of(tiny.decoder(1)))


def test_an_entropy_bonus_raises_entropy(tiny: Any) -> None:
    learner = tiny.learner(tiny.decoder(), Grpo(entropy_coef=1.0), learning_rate=1e-3)
    claim = tiny.random_claim(12, [(1, 1, 1, 1)])
    entropies = [learner.step(claim).metrics["entropy"] for _ in range(4)]
    assert entropies == sorted(entropies)
    assert entropies[0] < entropies[-1]


def test_the_mismatch_with_the_engine_is_measured(tiny: Any) -> None:
    decoder = tiny.decoder()
    exact = [
        tiny.episode([1, 2], answer, reward, logprobs=logp_of(decoder, tiny.episode([1, 2], answer, 0.0)).tolist())
        for answer, reward in (([5, 6], 1.0), ([7, 8], 0.0))
    ]
    honest = tiny.learner(tiny.decoder()).step(tiny.claim(exact)).metrics
    assert honest["mismatch"] < 1e-6
    assert honest["mismatch_kl"] < 1e-6
    assert honest["tis_mean"] == pytest.approx(1.0, abs=1e-5)
    wrong = tiny.learner(tiny.decoder()).step(tiny.random_claim(13)).metrics
    assert wrong["mismatch"] > 0.01


def test_the_sampling_temperature_is_applied_in_training(tiny: Any) -> None:
    decoder = tiny.decoder()
    answer = tiny.episode([1, 2], [5, 6], 1.0)
    ids = torch.tensor(answer.token_ids)
    with torch.no_grad():
        logits = decoder.logits(decoder.hidden(ids, torch.arange(4), causal_attend([4])))[1:3]
    logprobs = (logits / 0.7).log_softmax(-1).gather(1, ids[2:, None])[:, 0].tolist()
    claim = tiny.claim(
        [
            tiny.episode([1, 2], [5, 6], 1.0, logprobs=logprobs, temperature=0.7),
            tiny.episode([1, 2], [5, 6], 0.0, logprobs=logprobs, temperature=0.7),
        ]
    )
    assert tiny.learner(decoder).step(claim).metrics["mismatch"] < 1e-6


def test_truncated_episodes_can_be_left_out(tiny: Any) -> None:
    cut_off = tiny.episode([1, 2], [5, 6, 7], 0.0, outcome=Outcome.TRUNCATED)
    claim = tiny.claim([tiny.episode([1, 2], [5], 1.0), cut_off])
    assert tiny.learner(tiny.decoder(), Grpo(mask_truncated=True)).step(claim).metrics["trained_tokens"] == 1


def test_the_same_claims_make_the_same_weights(tiny: Any) -> None:
    digests = []
    for _ in range(2):
        learner = tiny.learner(tiny.decoder(), Dapo(epochs=2, minibatches=2))
        for seed in range(3):
            learner.step(tiny.random_claim(seed))
        digests.append(learner.digest())
    assert digests[0] == digests[1]


def test_the_digest_is_that_of_the_weights_after_the_last_update(tiny: Any) -> None:
    decoder = tiny.decoder()
    learner = tiny.learner(decoder)
    start = learner.digest()
    assert start == weights.digest(decoder)
    learner.step(tiny.random_claim(14))
    assert learner.digest() == weights.digest(decoder) != start
    assert learner.digest_if_ready() == learner.digest()


def test_the_learning_rate_follows_its_schedule(tiny: Any) -> None:
    learner = tiny.learner(tiny.decoder(), lr_schedule="linear", learning_rate=1.0, eps=1e9, num_rounds=4)
    rates = [learner.step(tiny.random_claim(seed)).metrics["learning_rate"] for seed in range(4)]
    assert rates == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_a_step_reports_its_phases_and_sets_the_trainers_series(tiny: Any) -> None:
    telemetry = Telemetry()
    report = tiny.learner(tiny.decoder(), telemetry=telemetry).step(tiny.random_claim(15))
    assert set(report.seconds) == {"prepare", "forward_backward", "optimizer", "drift"}
    assert report.metrics["kl_start"] > 0
    assert telemetry.value("huilu_trainer_loss") == report.metrics["loss"]
    assert telemetry.value("huilu_trainer_tokens_total") == report.metrics["trained_tokens"]
    assert telemetry.value("huilu_trainer_step") == 1


def test_narrow_weights_learn_through_float32_masters(tiny: Any) -> None:
    """Steps far below bfloat16's resolution add up."""
    decoder = tiny.decoder(dtype=torch.bfloat16)
    before = weights_of(decoder)
    learner = tiny.learner(decoder, learning_rate=1e-4)
    for seed in range(30):
        learner.step(tiny.random_claim(seed % 3))
    moved = sum(int((one != other).sum()) for one, other in zip(before, weights_of(decoder), strict=True))
    assert moved > sum(weight.numel() for weight in before) / 4


def test_an_untied_head_is_trained_too(tiny: Any) -> None:
    decoder = tiny.decoder(tied=False)
    before = decoder.head.detach().clone()
    tiny.learner(decoder).step(tiny.random_claim(16))
    assert not torch.equal(decoder.head, before)
