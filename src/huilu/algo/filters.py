"""Which groups can teach: the decision behind zero-variance counting and dynamic sampling. Plain floats, no torch.

Called by `advantages`, by the learner (to count), and by whoever draws tasks (to draw others instead).
"""

from __future__ import annotations

from collections.abc import Sequence

from huilu.config.tree import Algorithm, Dapo

EQUAL_WITHIN = 1e-8
"""Rewards closer than this are equal: far below any real difference, above the noise of summing floats."""


def is_zero_variance(rewards: Sequence[float | None]) -> bool:
    """Whether a group's judged rewards are all equal; true also when fewer than two were judged."""
    judged = [reward for reward in rewards if reward is not None]
    return not judged or max(judged) - min(judged) <= EQUAL_WITHIN


def is_dropped(algorithm: Algorithm, rewards: Sequence[float | None]) -> bool:
    """Whether dynamic sampling (DAPO, 2503.14476, section 3.2) drops this group and draws another task.

    `rewards` are those of the judges, before any length shaping: a group that is all right or all wrong has
    nothing to teach, however long its answers are.
    """
    return isinstance(algorithm, Dapo) and algorithm.dynamic_sampling and is_zero_variance(rewards)
