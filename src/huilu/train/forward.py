"""One micro-batch through a decoder: its tensors, and the log-probabilities and entropies of its targets.

Called by the learner and by `drift`. Knows nothing of rewards, losses or optimisers.

Shapes: T tokens read; N targets; D hidden; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from huilu.algo.packing import Pack, Sample, pack
from huilu.model.decoder import Decoder
from huilu.train.attention import shared_prompt_attend
from huilu.train.logprobs import token_logprobs


class MicroBatch(NamedTuple):
    """A pack on the device. `source_N` are the places in T that predict the targets; temperature None is 1."""

    pack: Pack
    ids_T: Tensor
    positions_T: Tensor
    source_N: Tensor
    target_N: Tensor
    episode_N: Tensor
    advantage_N: Tensor
    weight_N: Tensor
    rollout_N: Tensor
    temperature_N: Tensor | None


def micro_batches(
    samples: Sequence[Sample], weights: Sequence[float], chosen: Sequence[int], num_tokens: int, device: torch.device
) -> list[MicroBatch]:
    """The chosen samples as micro-batches of at most `num_tokens` tokens read; `weights` of every sample's tokens."""
    return [_micro_batch(packed, samples, weights, device) for packed in pack(samples, chosen, num_tokens)]


def hidden_states(decoder: Decoder, micro: MicroBatch) -> Tensor:
    """The hidden states [N, D] that predict the targets."""
    attend = shared_prompt_attend(micro.pack, decoder.embedding.dtype, micro.ids_T.device)
    hidden_TD: Tensor = decoder.hidden(micro.ids_T, micro.positions_T, attend)
    return hidden_TD[micro.source_N]


def evaluate(decoder: Decoder, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """log p of each target and the entropy there, both [N], at the sampling temperature."""
    head_DV = decoder.embedding.t() if decoder.head is None else decoder.head
    return token_logprobs(hidden_states(decoder, micro), head_DV, micro.target_N, micro.temperature_N)


def _micro_batch(packed: Pack, samples: Sequence[Sample], weights: Sequence[float], device: torch.device) -> MicroBatch:
    members = [(samples[index], weights[index]) for index in packed.samples]

    def floats(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    temperatures = [sample.temperature for sample, _ in members for _ in sample.targets]
    return MicroBatch(
        pack=packed,
        ids_T=ints(packed.ids),
        positions_T=ints(packed.positions),
        source_N=ints(packed.sources),
        target_N=ints(packed.targets),
        episode_N=ints(packed.episodes),
        advantage_N=floats([sample.advantage for sample, _ in members for _ in sample.targets]),
        weight_N=floats([weight for sample, weight in members for _ in sample.targets]),
        rollout_N=floats([logp for sample, _ in members for logp in sample.rollout_logprobs]),
        temperature_N=None if all(value == 1.0 for value in temperatures) else floats(temperatures),
    )
