"""The gate: what a version must show before users get it.

`weigh` is the pure rule; `HeldOutGate` gathers its evidence. Called by the loop; moves no pointer itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from huilu.config import tree
from huilu.core.nouns import Evaluation, PolicyVersion, Verdict
from huilu.telemetry import Telemetry

Evaluate = Callable[[PolicyVersion], Awaitable[Evaluation]]
"""The version's held-out evaluation: from the store if it is there, else made and stored."""


def weigh(
    version: PolicyVersion, candidate: Evaluation, baseline: Evaluation, drift: float, settings: tree.Gate
) -> Verdict:
    """Promote when healthy, within the drift cap (KL to the start, nats a token), and not below production.

    "Not below": pass rate at least production's less `tolerance`, on the same held-out tasks.
    """
    floor = baseline.pass_rate - settings.tolerance
    breaches = []
    if not version.healthy:
        breaches.append("the step was not finite")
    if not drift <= settings.max_kl:  # also when it is not a number
        breaches.append(f"KL to the start {drift:.4f} is over the cap {settings.max_kl:g}")
    if candidate.pass_rate < floor:
        breaches.append(
            f"held-out pass rate {candidate.pass_rate:.2f} is below production's {baseline.pass_rate:.2f} "
            f"by more than {settings.tolerance:g}"
        )
    reasons = tuple(breaches) or (
        f"held-out pass rate {candidate.pass_rate:.2f} against production's {baseline.pass_rate:.2f}, "
        f"KL to the start {drift:.4f}",
    )
    return Verdict(
        version=version.number,
        promote=not breaches,
        reasons=reasons,
        evidence={
            "pass_rate": candidate.pass_rate,
            "baseline_pass_rate": baseline.pass_rate,
            "baseline_version": float(baseline.version),
            "num_tasks": float(candidate.num_tasks),
            "kl_start": drift,
        },
    )


class HeldOutGate:
    """Judges a version on the held-out tasks, against the version that is in production."""

    def __init__(
        self,
        settings: tree.Gate,
        every: int,
        rounds: int,
        evaluate: Evaluate,
        production: Callable[[], Awaitable[Evaluation]],
        drift: Callable[[], Awaitable[float]],
        telemetry: Telemetry,
    ) -> None:
        self._settings, self._every, self._rounds = settings, every, rounds
        self._evaluate, self._production, self._drift = evaluate, production, drift
        self._telemetry = telemetry

    def due(self, round_: int) -> bool:
        """Every `eval.every` rounds and at the end."""
        return round_ == self._rounds or (self._every > 0 and round_ % self._every == 0)

    async def judge(self, version: PolicyVersion) -> Verdict:
        candidate = await self._evaluate(version)
        self._telemetry.reach("mid-gate")
        baseline = await self._production()
        return weigh(version, candidate, baseline, await self._drift(), self._settings)
