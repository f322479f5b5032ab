"""The calls that a model process answers, as plain records; one method a record.

Shared by `serving.client` (asking) and `assembly.model` (answering). `step` takes a core `Claim` and answers
a `StepReport`; `digest`, `drift`, `stats` and `integrity` take None.
"""

from __future__ import annotations

import msgspec

from huilu.config.tree import Inference, Job, Model
from huilu.core.generation import Sampling


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """`start`: load a model to serve it and, where a job is given, to train it."""

    model: Model
    inference: Inference
    learn: Job | None = None


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was loaded. `folder` has the tokeniser that control reads too."""

    folder: str
    family: str
    num_parameters: int
    max_positions: int
    device: str
    threads: int
    digest: str


class Generate(msgspec.Struct, frozen=True, kw_only=True):
    """`generate`: continue `prompt_ids`; answered by a list of Completion."""

    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    timeout_s: float


class Cancel(msgspec.Struct, frozen=True):
    """`cancel`: the caller of this request is gone."""

    request_id: str


class Sync(msgspec.Struct, frozen=True):
    """`sync`: tokens are stamped with this version from now on; KV of other versions is unreachable.

    The namespace is the version's id, lineage included: its digest may not be known yet.
    """

    number: int
    namespace: str


class Save(msgspec.Struct, frozen=True):
    """`save`: write the weights as a Hugging Face folder and, where named, the learner's state; bytes written."""

    weights: str
    state: str = ""


class Load(msgspec.Struct, frozen=True):
    """`load`: take the weights of a folder and, where named, the learner's state; answered by the digest."""

    weights: str
    state: str = ""


class Stats(msgspec.Struct, frozen=True):
    """`stats`: counters of the model process so far, by name with labels."""

    values: dict[str, float]
