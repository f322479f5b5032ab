"""How the terms of tokens become one loss: a weight for every token of an episode. Plain floats, no torch.

Called by the learner once an optimiser step, over the whole batch of that step. The loss is the sum of weight
times term, so the divisor is global by construction: cutting the batch into micro-batches cannot change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
"""verl's names. token-mean: DAPO; seq-mean-token-mean: GRPO; seq-mean-token-sum-norm: Dr. GRPO."""


def token_weights(lengths: Sequence[int], aggregation: Aggregation, limit: int) -> list[float]:
    """The weight of each token of each episode.

    `lengths` are the trained tokens of every episode of the optimiser step, those of groups without a signal
    included; an episode of 0 tokens is left out of the loss and of its divisor. `limit` is the longest answer in
    tokens, Dr. GRPO's constant.
    """
    num_tokens = sum(lengths)
    num_episodes = sum(length > 0 for length in lengths)
    if num_tokens == 0:
        return [0.0] * len(lengths)
    match aggregation:
        case "token-mean":
            return [1.0 / num_tokens if length else 0.0 for length in lengths]
        case "seq-mean-token-mean":
            return [1.0 / (num_episodes * length) if length else 0.0 for length in lengths]
        case "seq-mean-token-sum-norm":
            return [1.0 / (num_episodes * limit) if length else 0.0 for length in lengths]
