"""The learning rate of an optimiser step. Pure. Called by the learner."""

from __future__ import annotations

import math

from huilu.config.tree import Optimizer


def learning_rate(settings: Optimizer, step: int, num_steps: int) -> float:
    """The rate of step `step` (from 0) of `num_steps`.

    It rises from 0 in equal parts, so that the first step after `warmup_steps` has the peak; then it stays, or falls
    to 0 at `num_steps` in a line or half a cosine, as transformers' schedules do.
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    done_frac = min(1.0, (step - warmup) / max(1, num_steps - warmup))
    match settings.lr_schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - done_frac)
        case "cosine":
            return peak * (1 + math.cos(math.pi * done_frac)) / 2
