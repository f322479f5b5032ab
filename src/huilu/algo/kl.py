"""Estimators of the KL divergence from sampled tokens (Schulman, "Approximating KL divergence", 2020).

Called by the learner for the penalty and for what it reports. With tokens sampled from the policy p and another q,
the argument is log q - log p of each token, in nats, any shape; the mean over tokens estimates KL(p || q).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


def k1(log_ratio: Tensor) -> Tensor:
    """Unbiased, of high variance, of either sign."""
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Biased, never negative; its gradient in a loss is that of the reverse KL."""
    return log_ratio.square() / 2


def k3(log_ratio: Tensor) -> Tensor:
    """Unbiased, never negative; the usual choice (verl's `low_var_kl`, TRL's only one)."""
    return log_ratio.expm1() - log_ratio


ESTIMATORS: dict[Estimator, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
