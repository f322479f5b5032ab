"""The one registry of metrics: every series that Huilu exports is declared here and nowhere else.

Called by `Telemetry`, the docs and the exporters. Names follow Prometheus (base units, `_total`, `_seconds`,
`_bytes`, `_ratio`); labels are bounded by construction: never a user, request, task or episode id.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One metric family."""

    name: str
    kind: Kind
    room: str
    labels: tuple[str, ...]
    help: str


def _declare(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


METRICS: dict[str, Metric] = _declare(
    Metric(
        "huilu_rollout_episodes_total",
        "counter",
        "loop",
        ("env", "outcome"),
        "Episodes that ended, by outcome.",
    ),
    Metric("huilu_rollout_tokens_total", "counter", "loop", ("type",), "Tokens: prompt, generated or cached."),
    Metric("huilu_rollout_episode_seconds", "histogram", "loop", ("env", "phase"), "An episode's time by phase."),
    Metric("huilu_rollout_zero_variance_groups_total", "counter", "loop", ("env",), "Groups with equal rewards."),
    Metric("huilu_rollout_staleness_versions", "histogram", "bus", (), "Versions a learnt sample was behind."),
    Metric("huilu_feedback_total", "counter", "bus", ("source", "state"), "Feedback by source and final state."),
    Metric("huilu_feedback_unaccounted", "gauge", "bus", (), "Issued less every known state; must be 0."),
    Metric("huilu_sched_tasks_total", "counter", "work", ("state",), "Tasks that reached a state."),
    Metric("huilu_sched_wait_seconds", "histogram", "work", (), "From enqueued to claimed."),
    Metric("huilu_sandbox_runs_total", "counter", "sandbox", ("verdict",), "Sandboxed runs by verdict."),
    Metric("huilu_sandbox_run_seconds", "histogram", "sandbox", (), "Wall time of one sandboxed run."),
    Metric("huilu_extension_errors_total", "counter", "work", ("what",), "Errors raised by code a job brought."),
    Metric("huilu_engine_requests_total", "counter", "engine", ("finish_reason",), "Samples that ended."),
    Metric("huilu_engine_tokens_total", "counter", "engine", ("type",), "Tokens computed: prefill, generated."),
    Metric("huilu_engine_running", "gauge", "engine", (), "Sequences that decode now."),
    Metric("huilu_engine_waiting", "gauge", "engine", (), "Requests that wait for room."),
    Metric("huilu_engine_preemptions_total", "counter", "engine", (), "Sequences put back for want of blocks."),
    Metric(
        "huilu_engine_prefix_lookup_tokens_total",
        "counter",
        "engine",
        ("result",),
        "Prompt tokens hit or missed.",
    ),
    Metric("huilu_engine_kv_usage_ratio", "gauge", "engine", (), "Blocks in use over all blocks."),
    Metric("huilu_trainer_step", "gauge", "train", (), "Optimiser steps taken."),
    Metric("huilu_trainer_tokens_total", "counter", "train", (), "Tokens with a gradient."),
    Metric("huilu_trainer_loss", "gauge", "train", (), "The last step's loss."),
    Metric("huilu_trainer_grad_norm", "gauge", "train", (), "Gradient norm before clipping."),
    Metric("huilu_trainer_entropy_nats", "gauge", "train", (), "Mean entropy of the policy's next token."),
    Metric("huilu_trainer_kl", "gauge", "train", ("kind",), "KL in nats: ref, old, mismatch, start."),
    Metric("huilu_trainer_clip_ratio", "gauge", "train", ("side",), "Share of tokens whose ratio was clipped."),
    Metric("huilu_trainer_nonfinite_total", "counter", "train", (), "Steps skipped as not finite."),
    Metric("huilu_trainer_step_seconds", "histogram", "train", ("phase",), "A step's time by phase."),
    Metric("huilu_inference_logprob_mismatch", "gauge", "train", (), "Mean |p - p'| of engine and learner."),
    Metric("huilu_checkpoint_save_seconds", "histogram", "train", (), "Time to save a state."),
    Metric("huilu_checkpoint_bytes", "gauge", "store", (), "Size of the last saved state."),
    Metric("huilu_round_seconds", "histogram", "loop", ("phase",), "A round's wall time by phase."),
    Metric("huilu_round_reward", "gauge", "loop", ("stat",), "The last round's reward: mean, pass rate."),
    Metric("huilu_eval_score", "gauge", "release", ("split",), "Held-out pass rate of the last evaluation."),
)
