"""The drift from the start weights, measured on a probe."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from huilu.algo.packing import cut
from huilu.model.decoder import causal_attend
from huilu.telemetry import Telemetry
from huilu.train.drift import NUM_ANSWERS, TOKENS_PER_ANSWER, drift, take_probe


def test_the_start_has_not_drifted(tiny: Any) -> None:
    learner = tiny.learner(tiny.decoder())
    assert learner.drift() == 0.0
    learner.step(tiny.random_claim(0, [(1, 1)]))
    assert learner.drift() == pytest.approx(0.0, abs=1e-6)


def test_drift_is_the_kl_to_the_start_at_the_probed_tokens(tiny: Any) -> None:
    start, now = tiny.decoder(0), tiny.decoder(1)
    sample = cut(tiny.episode([1, 2, 3], [4, 5, 6], 1.0), 1.0)
    assert sample is not None
    probe = take_probe(start, [sample])
    ids = torch.tensor([1, 2, 3, 4, 5])
    with torch.no_grad():
        logp, logq = (
            decoder.logits(decoder.hidden(ids, torch.arange(5), causal_attend([5])))[2:].log_softmax(-1)
            for decoder in (now, start)
        )
    expected = torch.nn.functional.kl_div(logq, logp, log_target=True, reduction="sum") / 3
    assert drift(now, probe) == pytest.approx(expected.item(), rel=1e-4)


def test_drift_grows_with_training_and_is_told(tiny: Any) -> None:
    telemetry = Telemetry()
    learner = tiny.learner(tiny.decoder(), telemetry=telemetry)
    learner.step(tiny.random_claim(0))
    first = learner.drift()
    for seed in range(1, 6):
        learner.step(tiny.random_claim(seed))
    assert 0 < first < learner.drift()
    assert telemetry.value("huilu_trainer_kl", kind="start") == learner.drift()


def test_a_probe_is_small_and_spread_over_long_answers(tiny: Any) -> None:
    samples = []
    for number in range(12):
        for _ in range(2):
            sample = cut(tiny.episode([number, 2, 3], list(range(40)), 1.0), 1.0)
            assert sample is not None
            samples.append(sample)
    probe = take_probe(tiny.decoder(), samples)
    assert [sample.prompt[0] for sample in probe.samples] == list(range(NUM_ANSWERS))
    assert all(len(sample.targets) == TOKENS_PER_ANSWER for sample in probe.samples)
    assert probe.samples[0].targets[0] == 0
    assert probe.samples[0].targets[-1] == 39
    assert probe.start_NV.shape == (NUM_ANSWERS * TOKENS_PER_ANSWER, tiny.spec.vocab_size)
