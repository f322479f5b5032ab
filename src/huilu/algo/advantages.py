"""Advantages of a batch of groups from its rewards. Plain floats, no torch.

Called by `methods`. Every function takes one sequence of rewards a group and returns numbers of the same shape.
A reward of None was not judged (an infrastructure failure, a judge without a word): it enters no statistic and its
advantage is 0. So is every advantage of a group that cannot be compared: fewer than two judged, or all equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from huilu.algo.filters import is_zero_variance

Rewards = Sequence[Sequence[float | None]]
"""One sequence a group, one reward an episode, None where not judged."""
Lengths = Sequence[Sequence[int]]
"""Number of trained tokens, in the shape of the rewards."""
Advantages = list[list[float]]
"""One advantage an episode, in the shape of the rewards: each of its tokens gets it."""

STD_EPS = 1e-4
"""Added to the deviation, as TRL does (verl adds 1e-6)."""
WHITEN_EPS = 1e-8
"""Added to the variance over tokens, as verl and OpenRLHF do."""


def group_relative(rewards: Rewards, scale: Literal["group", "batch", "none"]) -> Advantages:
    """Reward less the group's mean, divided by a deviation with one degree of freedom removed.

    `group` is GRPO (2402.03300, section 4.1.2), `none` Dr. GRPO (2503.20783), `batch` divides by the deviation of
    every judged reward of the batch (2508.08221).
    """
    batch_std = _std(_judged([reward for group in rewards for reward in group])) if scale == "batch" else 0.0
    advantages = []
    for group in rewards:
        judged = _judged(group)
        if is_zero_variance(group):
            advantages.append([0.0] * len(group))
            continue
        divisor = {"group": _std(judged) + STD_EPS, "batch": batch_std + STD_EPS, "none": 1.0}[scale]
        mean = _mean(judged)
        advantages.append([0.0 if reward is None else (reward - mean) / divisor for reward in group])
    return advantages


def leave_one_out(rewards: Rewards) -> Advantages:
    """RLOO (2402.14740, equation 8): the reward less the mean reward of the group's other judged episodes."""
    advantages = []
    for group in rewards:
        judged = _judged(group)
        if is_zero_variance(group):
            advantages.append([0.0] * len(group))
            continue
        total, others = math.fsum(judged), len(judged) - 1
        advantages.append([0.0 if reward is None else reward - (total - reward) / others for reward in group])
    return advantages


def batch_whitened(rewards: Rewards, lengths: Lengths, *, baseline: bool) -> Advantages:
    """REINFORCE++ (2501.03262): returns normalised over the tokens of the whole batch.

    With no discount each token's return is its episode's reward, so an episode counts once a trained token
    (verl's `masked_whiten`, OpenRLHF's action mask). `baseline` subtracts the group's mean first
    (REINFORCE++-baseline). A batch of fewer than two such tokens, or of equal returns, has no deviation: all zero.
    """
    returns: list[list[float | None]] = []
    for group in rewards:
        mean = _mean(_judged(group)) if baseline else 0.0
        equal = baseline and is_zero_variance(group)
        returns.append([None if reward is None else 0.0 if equal else reward - mean for reward in group])
    weighted = [
        (value, length)
        for group, counts in zip(returns, lengths, strict=True)
        for value, length in zip(group, counts, strict=True)
        if value is not None
    ]
    num_tokens = sum(length for _, length in weighted)
    if num_tokens < 2 or is_zero_variance([value for value, length in weighted if length]):
        return [[0.0] * len(group) for group in rewards]
    mean = math.fsum(value * length for value, length in weighted) / num_tokens
    variance = math.fsum((value - mean) ** 2 * length for value, length in weighted) / (num_tokens - 1)
    scale = 1.0 / math.sqrt(variance + WHITEN_EPS)
    return [[0.0 if value is None else (value - mean) * scale for value in group] for group in returns]


def overlong_penalty(num_tokens: int, limit: int, buffer: int) -> float:
    """DAPO's soft penalty on long answers (2503.14476, equation 13), added to the reward: 0 down to -1.

    `limit` is the longest answer in tokens, `buffer` the tokens before it over which the penalty grows; 0 is off.
    """
    if buffer == 0:
        return 0.0
    return -min(1.0, max(0.0, (num_tokens - (limit - buffer)) / buffer))


def _judged(group: Sequence[float | None]) -> list[float]:
    return [reward for reward in group if reward is not None]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _std(values: Sequence[float]) -> float:
    """The sample deviation (one degree of freedom removed), 0 of fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
