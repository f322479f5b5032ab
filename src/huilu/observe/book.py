"""The round book: closes each round with one `round` event, made from the claim, the step and the counters.

Called by the loop at the end of a round (port `Book`). Rates and phases are differences of telemetry's own
counters since the last close, so that no part times itself twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from huilu.core.nouns import Claim, Group, Outcome, PolicyVersion, StepReport
from huilu.observe.events import RoundEnded, WarningGiven, tell
from huilu.telemetry import Telemetry

PHASES = ("rollout", "train", "record", "save", "sync")
MISMATCH_WARN = 0.005
"""Mean |p - p'| of engine and learner from which something is wrong: old weights or KV, another dtype or template."""


class RoundBook:
    """Remembers the counters of the last close."""

    def __init__(self, telemetry: Telemetry, rounds: int) -> None:
        self._telemetry, self._rounds = telemetry, rounds
        self._last = self._counters()

    def close(self, claim: Claim, report: StepReport, version: PolicyVersion) -> None:
        """Tell the round and set its gauges."""
        now = self._counters()
        spent = {name: now[name] - self._last[name] for name in now}
        self._last = now
        event = ended(claim, report, version, self._rounds, {phase: spent[phase] for phase in PHASES}, spent)
        if event.reward_mean is not None:
            self._telemetry.gauge("huilu_round_reward", event.reward_mean, stat="mean")
        if event.pass_rate is not None:
            self._telemetry.gauge("huilu_round_reward", event.pass_rate, stat="pass_rate")
        tell(self._telemetry, event)
        mismatch = report.metrics.get("mismatch", 0.0)
        if mismatch > MISMATCH_WARN:
            message = (
                f"engine and learner differ by {mismatch:.4f} in mean probability (expected below {MISMATCH_WARN})"
            )
            tell(self._telemetry, WarningGiven(message=message, code="logprob_mismatch"))

    def _counters(self) -> dict[str, float]:
        value = self._telemetry.value
        counters = {phase: value("huilu_round_seconds", phase=phase) for phase in PHASES}
        for kind in ("prompt", "generated", "cached"):
            counters[kind] = value("huilu_rollout_tokens_total", type=kind)
        return counters


def ended(
    claim: Claim,
    report: StepReport,
    version: PolicyVersion,
    rounds: int,
    seconds: dict[str, float],
    tokens: dict[str, float],
) -> RoundEnded:
    """The event of one round. `tokens` has prompt, generated and cached tokens; `seconds` wall time by phase."""
    episodes = claim.episodes
    judged = [episode for episode in episodes if episode.reward is not None]
    rewards = [episode.reward for episode in judged if episode.reward is not None]
    generated = sum(episode.num_sampled for episode in episodes)
    return RoundEnded(
        round=claim.round,
        rounds=rounds,
        reward_mean=_mean(rewards),
        pass_rate=_mean([episode.metrics.get("passed", 0.0) for episode in judged]),
        loss=report.metrics.get("loss"),
        kl_start=report.metrics.get("kl_start"),
        entropy=report.metrics.get("entropy"),
        response_tokens=generated / len(episodes) if episodes else None,
        truncated_frac=_mean([float(episode.outcome is Outcome.TRUNCATED) for episode in episodes]),
        zero_variance=_mean([float(_equal_rewards(group)) for group in claim.groups]),
        episodes=len(episodes),
        generated_tokens=generated,
        trained_tokens=int(report.metrics.get("trained_tokens", 0)),
        prompt_tokens=int(tokens["prompt"]),
        cached_tokens=int(tokens["cached"]),
        seconds=seconds,
        generated_tokens_per_s=tokens["generated"] / seconds["rollout"] if seconds["rollout"] > 0 else None,
        staleness=_mean([float(claim.round - 1 - episode.version) for episode in episodes]),
        version=version.number,
        digest=version.digest,
    )


def _equal_rewards(group: Group) -> bool:
    return len({episode.reward for episode in group.episodes if episode.reward is not None}) <= 1


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
