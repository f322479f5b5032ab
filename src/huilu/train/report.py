"""What a step was like: sums gathered over its micro-batches, the report made of them, and the series it sets.

Called by the learner. Plain numbers; changes nothing but the telemetry it is given.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from huilu.core.nouns import StepReport
from huilu.telemetry import Telemetry

_GAUGES = {
    "loss": ("huilu_trainer_loss", {}),
    "grad_norm": ("huilu_trainer_grad_norm", {}),
    "entropy": ("huilu_trainer_entropy_nats", {}),
    "kl_ref": ("huilu_trainer_kl", {"kind": "ref"}),
    "kl_old": ("huilu_trainer_kl", {"kind": "old"}),
    "mismatch_kl": ("huilu_trainer_kl", {"kind": "mismatch"}),
    "mismatch": ("huilu_inference_logprob_mismatch", {}),
    "clip_low_frac": ("huilu_trainer_clip_ratio", {"side": "low"}),
    "clip_high_frac": ("huilu_trainer_clip_ratio", {"side": "high"}),
    "step": ("huilu_trainer_step", {}),
}


class Tally:
    """Sums of one step. `losses` and `norms` have one entry an optimiser step that was applied."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.num_nonfinite = 0
        self.num_tokens = 0
        self._sums: dict[str, float] = {}

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the block's time to a phase."""
        start = self._clock()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self._clock() - start

    def add(self, sums: Mapping[str, Tensor], num_tokens: int) -> None:
        """Add a micro-batch's sums over its tokens."""
        self.num_tokens += num_tokens
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)

    def means(self) -> dict[str, float]:
        """Means over every token that was computed, and over the optimiser steps; only what was measured."""
        means = {name: value / self.num_tokens for name, value in self._sums.items()}
        if self.losses:
            means |= {"loss": statistics.fmean(self.losses), "grad_norm": statistics.fmean(self.norms)}
        return means

    def report(self, figures: Mapping[str, float]) -> StepReport:
        """The step's report, with `figures` that are known from elsewhere."""
        return StepReport(
            applied=bool(self.losses),
            healthy=self.num_nonfinite == 0,
            metrics={**figures, **self.means(), "trained_tokens": float(self.num_tokens)},
            seconds=dict(self.seconds),
        )


def tell(telemetry: Telemetry, report: StepReport) -> None:
    """Set the trainer's series from a report."""
    for key, (name, labels) in _GAUGES.items():
        if key in report.metrics:
            telemetry.gauge(name, report.metrics[key], **labels)
    telemetry.count("huilu_trainer_tokens_total", report.metrics["trained_tokens"])
    for phase, seconds in report.seconds.items():
        telemetry.observe("huilu_trainer_step_seconds", seconds, phase=phase)
