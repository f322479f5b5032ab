"""What the engine keeps of a request while it lives: the request, its samples, and the trunks they branch from.

Called by `scheduler` and `engine`; no tensors but a trunk's last hidden state, which is opaque here. These records
change from step to step and never leave the engine: callers get `Finished`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec

from huilu.core.generation import Completion, Sampling
from huilu.engine.blocks import BlockTable
from huilu.errors import Usage
from huilu.text.stream import TextStream

_MOST_SAMPLES = 4096


class Finished(msgspec.Struct, frozen=True):
    """A request that ended: its completions by index."""

    request_id: str
    completions: tuple[Completion, ...]


@dataclasses.dataclass(eq=False, slots=True)
class Request:
    """One prompt to continue `sampling.n` times. `arrival` is its place in line; `started` once it had blocks."""

    id: str
    prompt_ids: list[int]
    sampling: Sampling
    deadline: float
    arrival: int
    samples: list[Sample] = dataclasses.field(default_factory=list)
    started: bool = False
    num_unfinished: int = 0


@dataclasses.dataclass(eq=False, slots=True)
class Sample:
    """One continuation of a request's prompt: `token_ids` is the prompt and what was sampled so far.

    It waits in `trunk` until it may run; while it runs it has a block table. `logprobs` and `versions` have one
    entry a sampled token, `top_logprobs` too where they were asked for.
    """

    request: Request
    index: int
    token_ids: list[int]
    stream: TextStream | None
    table: BlockTable | None = None
    trunk: Trunk | None = None
    logprobs: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    top_logprobs: list[dict[int, float]] = dataclasses.field(default_factory=list)
    num_cached_tokens: int = 0
    finish_reason: str = ""

    @property
    def order(self) -> tuple[int, int]:
        """Its place in line; the greatest is preempted first."""
        return self.request.arrival, self.index

    @property
    def num_new(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_ids)

    def completion(self) -> Completion:
        """What it came to. An EOS or stop id that ended it is no text, nor are the tokens of a stop string."""
        token_ids = self.token_ids[len(self.request.prompt_ids) :]
        text_end = len(token_ids)
        if self.stream is not None and self.stream.stopped is not None:
            text_end = self.stream.text_end
        elif self.finish_reason == "stop":
            text_end -= 1
        return Completion(
            index=self.index,
            token_ids=token_ids,
            logprobs=self.logprobs,
            versions=self.versions,
            finish_reason=self.finish_reason,
            text_end=text_end,
            num_cached_tokens=self.num_cached_tokens,
            top_logprobs=self.top_logprobs,
        )


@dataclasses.dataclass(eq=False, slots=True)
class Trunk:
    """Tokens whose KV is computed once, and the samples that branch off after the last of them.

    A new request is one trunk for all its samples; a preempted sample is the trunk of itself. `hidden_D` is the
    hidden state of the last token once everything is computed.
    """

    request: Request
    token_ids: list[int]
    members: list[Sample]
    table: BlockTable | None = None
    hidden_D: Any = None

    @property
    def order(self) -> tuple[int, int]:
        return self.members[0].order


def check(prompt_ids: list[int], sampling: Sampling, vocab_size: int) -> None:
    """Raise Usage when a prompt or a sampling setting makes no sense for any engine."""
    samples = sampling.samples
    if not prompt_ids:
        raise Usage("an empty prompt", expected="at least one token", fix="begin the prompt with the model's BOS")
    if not all(0 <= id_ < vocab_size for id_ in (*prompt_ids, *sampling.stop_ids)):
        raise Usage("a token id outside the vocabulary", expected=f"ids from 0 to {vocab_size - 1}")
    for name, value, fits, expected in (
        ("max_new_tokens", sampling.max_new_tokens, sampling.max_new_tokens >= 1, "at least 1"),
        ("temperature", sampling.temperature, 0 <= sampling.temperature < math.inf, "0 (greedy) or more"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("top_k", sampling.top_k, sampling.top_k >= 0, "0 (off) or more"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "from 0 (off) to 1"),
        ("n", sampling.n, 1 <= sampling.n <= _MOST_SAMPLES, f"from 1 to {_MOST_SAMPLES}"),
        ("samples", samples, not samples or len(samples) == sampling.n, "n of them, or none given"),
        ("samples", samples, len({*samples}) == len(samples), "each once"),
        ("samples", sampling.samples, len(set(sampling.samples)) in (0, sampling.n), "none, or n different ones"),
        ("stop", sampling.stop, all(sampling.stop), "strings that are not empty"),
        ("num_top_logprobs", sampling.num_top_logprobs, 0 <= sampling.num_top_logprobs <= vocab_size, "0 or more"),
    ):
        if not fits:
            raise Usage(f"{name} {value!r}", expected=expected)
