"""How far the policy has moved from the weights that training started with, without keeping those.

Called by the learner. A probe is a few answers of the start policy, and its whole next-token distributions at some of
their tokens; the drift is KL(now || start) there, exact over the vocabulary, not sampled. Its states are the start
policy's: where the policy goes that its start never went, the probe does not look.

Shapes: N probe tokens; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from huilu.algo.packing import Sample
from huilu.model.decoder import Decoder
from huilu.train.forward import MicroBatch, hidden_states, micro_batches

NUM_ANSWERS, TOKENS_PER_ANSWER = 4, 16
"""64 distributions: 13 MB with a vocabulary of 49,152, and well under a tenth of a round's time."""


class Probe(msgspec.Struct, frozen=True):
    """The probed answers, each cut to its probed tokens, and the start's log-probabilities there."""

    samples: list[Sample]
    start_NV: Tensor


def take_probe(decoder: Decoder, samples: Sequence[Sample]) -> Probe:
    """A probe of the first answer to each of the first prompts, under the decoder as it is now."""
    firsts: dict[tuple[int, ...], Sample] = {}
    for sample in samples:
        firsts.setdefault(sample.prompt, sample)
    chosen = [_spread(sample) for sample in list(firsts.values())[:NUM_ANSWERS]]
    return Probe(chosen, _distributions(decoder, chosen))


@torch.no_grad()
def drift(decoder: Decoder, probe: Probe) -> float:
    """KL(now || start) in nats a token."""
    now_NV = _distributions(decoder, probe.samples)
    return float((now_NV.exp() * (now_NV - probe.start_NV)).sum(-1).mean())


def _spread(sample: Sample) -> Sample:
    """The sample with at most TOKENS_PER_ANSWER of its targets, evenly spread from the first to the last."""
    count = len(sample.targets)
    if count <= TOKENS_PER_ANSWER:
        return sample
    kept = [index * (count - 1) // (TOKENS_PER_ANSWER - 1) for index in range(TOKENS_PER_ANSWER)]
    return msgspec.structs.replace(
        sample,
        sources=[sample.sources[index] for index in kept],
        targets=[sample.targets[index] for index in kept],
        rollout_logprobs=[sample.rollout_logprobs[index] for index in kept],
    )


@torch.no_grad()
def _distributions(decoder: Decoder, samples: Sequence[Sample]) -> Tensor:
    """log p over the vocabulary at every target, float32 [N, V], at the sampling temperature."""
    device = decoder.embedding.device
    everything = range(len(samples))
    # One micro-batch: at most NUM_ANSWERS episodes.
    (micro,) = micro_batches(samples, [0.0] * len(samples), everything, _num_tokens(samples), device)
    logits_NV = decoder.logits(hidden_states(decoder, micro)).float()
    return _tempered(logits_NV, micro).log_softmax(-1)


def _num_tokens(samples: Sequence[Sample]) -> int:
    return sum(len(sample.prompt) + len(sample.branch) for sample in samples)


def _tempered(logits_NV: Tensor, micro: MicroBatch) -> Tensor:
    return logits_NV if micro.temperature_N is None else logits_NV / micro.temperature_N[:, None]
