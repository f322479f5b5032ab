"""Policy losses, one term a token, before aggregation. Pure functions of packed tensors.

Called through `methods` by the learner, which multiplies the terms by the token weights and sums them.

Shapes: N trained tokens of a micro-batch, whole episodes one after the other; E episodes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Tokens(NamedTuple):
    """What a loss sees. Log-probabilities are in nats at the sampling temperature.

    `logp_N` has the gradient; `old_N` is the policy's at the start of the update; `episode_N` in 0..E-1.
    """

    logp_N: Tensor
    old_N: Tensor
    advantage_N: Tensor
    episode_N: Tensor
    num_episodes: int


class Term(NamedTuple):
    """A loss of each token, and where its ratio was clipped so that it has no gradient."""

    loss_N: Tensor
    is_clipped_low_N: Tensor
    is_clipped_high_N: Tensor


def clipped_ratio(tokens: Tokens, low: float, high: float) -> Term:
    """PPO's clipped surrogate (1707.06347, equation 7) with DAPO's two bounds: 1 - low and 1 + high."""
    return _clipped((tokens.logp_N - tokens.old_N).exp(), tokens.advantage_N, low, high)


def sequence_ratio(tokens: Tokens, low: float, high: float) -> Term:
    """GSPO (2507.18071, equation 5): the ratio is the geometric mean of the episode's token ratios."""
    return _clipped(_episode_mean(tokens.logp_N - tokens.old_N, tokens).exp(), tokens.advantage_N, low, high)


def capped_reinforce(tokens: Tokens, ratio_max: float) -> Term:
    """CISPO (2506.13585, equation 4): the log-probability weighted by the detached ratio, at most `ratio_max`.

    The bound is absolute, as TRL's `epsilon_high` for this loss. No token loses its gradient; the high mark says
    where the cap binds on a token that the advantage pushes up.
    """
    ratio_N = (tokens.logp_N - tokens.old_N).detach().exp()
    loss_N = -ratio_N.clamp(max=ratio_max) * tokens.advantage_N * tokens.logp_N
    is_high_N = (ratio_N > ratio_max) & (tokens.advantage_N > 0)
    return Term(loss_N, torch.zeros_like(is_high_N), is_high_N)


def truncated_weight(old_N: Tensor, rollout_N: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling: min(exp(old - rollout), cap), the engine's share of the mismatch per token."""
    return (old_N - rollout_N).exp().clamp(max=cap)


def _clipped(ratio_N: Tensor, advantage_N: Tensor, low: float, high: float) -> Term:
    clipped_N = ratio_N.clamp(1 - low, 1 + high)
    loss_N = -torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N)
    is_low_N = (ratio_N < 1 - low) & (advantage_N < 0)
    is_high_N = (ratio_N > 1 + high) & (advantage_N > 0)
    return Term(loss_N, is_low_N, is_high_N)


def _episode_mean(value_N: Tensor, tokens: Tokens) -> Tensor:
    """Each token's episode's mean."""
    zeros_E = value_N.new_zeros(tokens.num_episodes)
    sum_E = zeros_E.index_add(0, tokens.episode_N, value_N)
    count_E = zeros_E.index_add(0, tokens.episode_N, torch.ones_like(value_N))
    return (sum_E / count_E.clamp(min=1))[tokens.episode_N]
