"""What a claim becomes before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest

from huilu.algo.methods import method_of
from huilu.config.tree import Algorithm, Dapo, DrGrpo, Grpo, Kl
from huilu.core.nouns import Claim, Outcome
from huilu.train.prepare import Lesson, prepare

PROMPT = [1, 2, 3]


def lesson(claim: Claim, algorithm: Algorithm) -> Lesson:
    return prepare(claim, method_of(algorithm, 8), algorithm, 8)


def test_a_failure_of_the_infrastructure_is_masked_and_moves_nobody_elses_numbers(tiny: Any) -> None:
    good = [tiny.episode(PROMPT, [5] * 4, 1.0), tiny.episode(PROMPT, [6] * 2, 0.0)]
    failed = tiny.episode(PROMPT, [7] * 3, 0.0, outcome=Outcome.INFRA_FAILED)
    unjudged = tiny.episode(PROMPT, [8] * 3, None)
    with_failures = lesson(tiny.claim([*good, failed, unjudged]), Grpo())
    without = lesson(tiny.claim(good), Grpo())
    assert with_failures.minibatches == without.minibatches
    assert with_failures.figures["num_masked"] == 2
    assert with_failures.figures["reward_mean"] == 0.5


def test_groups_without_a_signal_are_counted_and_not_computed_but_stay_in_the_divisor(tiny: Any) -> None:
    mixed = [tiny.episode(PROMPT, [5] * 4, 1.0), tiny.episode(PROMPT, [6] * 2, 0.0)]
    equal = [tiny.episode(PROMPT, [7] * 3, 1.0), tiny.episode(PROMPT, [8] * 3, 1.0)]
    found = lesson(tiny.claim(equal, mixed), Dapo())
    (minibatch,) = found.minibatches
    assert minibatch.chosen == [2, 3]
    assert minibatch.num_tokens == 12
    assert minibatch.weights == pytest.approx([1 / 12] * 4)
    assert found.figures["num_zero_variance"] == 1


@pytest.mark.parametrize("algorithm", [Grpo(kl=Kl(coef=0.1)), Grpo(entropy_coef=0.01)])
def test_a_kl_or_entropy_term_needs_every_token(tiny: Any, algorithm: Algorithm) -> None:
    equal = [tiny.episode(PROMPT, [7] * 3, 1.0), tiny.episode(PROMPT, [8] * 3, 1.0)]
    assert lesson(tiny.claim(equal), algorithm).minibatches[0].chosen == [0, 1]
    assert not any(part.chosen for part in lesson(tiny.claim(equal), Grpo()).minibatches)


def test_truncated_episodes_count_in_the_group_but_not_in_the_loss_when_masked(tiny: Any) -> None:
    whole = tiny.episode(PROMPT, [5] * 4, 1.0)
    truncated = tiny.episode(PROMPT, [6] * 8, 0.0, outcome=Outcome.TRUNCATED)
    kept = lesson(tiny.claim([whole, truncated]), DrGrpo())
    masked = lesson(tiny.claim([whole, truncated]), DrGrpo(mask_truncated=True))
    assert [sample.advantage for sample in kept.minibatches[0].samples] == [0.5, -0.5]
    assert [sample.advantage for sample in masked.minibatches[0].samples] == [0.5]
    assert masked.minibatches[0].weights == pytest.approx([1 / 8])
    assert masked.figures["truncated_frac"] == 0.5


def test_the_overlong_penalty_shapes_advantages_but_not_what_is_reported(tiny: Any) -> None:
    short = tiny.episode(PROMPT, [5] * 4, 1.0)
    long = tiny.episode(PROMPT, [6] * 8, 1.0)
    found = lesson(tiny.claim([short, long]), Dapo(overlong_buffer=2))
    first, second = found.minibatches[0].samples
    assert first.advantage > 0 > second.advantage
    assert found.figures["reward_mean"] == 1.0
    assert found.figures["num_zero_variance"] == 1


def test_minibatches_are_runs_of_whole_groups_in_order(tiny: Any) -> None:
    groups = [[tiny.episode([number + 1, 2], [5], 1.0), tiny.episode([number + 1, 2], [6], 0.0)] for number in range(5)]
    found = lesson(tiny.claim(*groups), Grpo(minibatches=2))
    firsts = [[sample.prompt[0] for sample in part.samples] for part in found.minibatches]
    assert firsts == [[1, 1, 2, 2], [3, 3, 4, 4, 5, 5]]
    assert len(lesson(tiny.claim(*groups[:1]), Grpo(minibatches=4)).minibatches) == 1


def test_an_empty_claim_is_a_lesson_without_work(tiny: Any) -> None:
    found = lesson(tiny.claim(), Grpo())
    assert found.minibatches == []
    assert found.figures["num_episodes"] == 0
