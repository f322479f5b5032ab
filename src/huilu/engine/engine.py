"""The engine: requests in, completions out, one `step` at a time, on the learner's own weights.

Called by the model process's main loop, which submits, steps and collects between optimiser steps. It starts no
thread, opens no socket and never waits. A step that raises leaves the engine unusable: its cache may lack KV that
the bookkeeping believes in.

    submit --> Scheduler.plan --> one forward pass over all planned tokens --> Scheduler.branch
                    ^             (PagedAttention on KvCache)                        |
                    +---- the tokens that draw_tokens drew, or Finished <---------------+
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import torch
from torch import Tensor

from huilu.config.tree import Inference
from huilu.core.generation import Sampling
from huilu.engine import requests
from huilu.engine.attention import DecodeRow, KvCache, PagedAttention, PrefillRow
from huilu.engine.blocks import BlockPool
from huilu.engine.requests import Finished, Request, Sample
from huilu.engine.sampler import Draw, Drawn, draw_tokens
from huilu.engine.scheduler import Plan, Scheduler, table_of
from huilu.errors import BadConfig, QueueFull, Usage
from huilu.model.decoder import Decoder
from huilu.telemetry import Telemetry
from huilu.text.stream import TextStream
from huilu.text.tokenizer import Tokenizer


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's state now, and its counters since the process started."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_held_blocks: int
    num_idle_blocks: int
    num_hit_tokens: int
    num_missed_tokens: int
    num_prefill_tokens: int
    num_generated_tokens: int
    num_preemptions: int

    @property
    def kv_hit_ratio(self) -> float:
        """Prompt tokens whose KV was there already, over all prompt tokens (each sample of a group has a prompt)."""
        return self.num_hit_tokens / max(self.num_hit_tokens + self.num_missed_tokens, 1)


class Engine:
    """Continuous batching over a paged cache. Deadlines are in the seconds of `now`. Not thread-safe."""

    def __init__(
        self,
        decoder: Decoder,
        settings: Inference,
        tokenizer: Tokenizer,
        telemetry: Telemetry,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._decoder, self._settings, self._tokenizer = decoder, settings, tokenizer
        self._telemetry, self._now = telemetry, now
        spec, weights = decoder.spec, decoder.embedding
        token_bytes = spec.num_layers * 2 * spec.num_kv_heads * spec.head_size * weights.dtype.itemsize
        num_blocks = settings.kv_bytes // (settings.block_size * token_bytes)
        if num_blocks == 0:
            raise BadConfig(
                f"inference.kv_bytes {settings.kv_bytes} holds no block",
                expected=f"at least {settings.block_size * token_bytes} for {settings.block_size} tokens",
            )
        self._pool = BlockPool(num_blocks, settings.block_size, prefix_cache=settings.prefix_cache)
        self._scheduler = Scheduler(
            self._pool, telemetry, max_running=settings.max_running, prefill_tokens=settings.prefill_tokens
        )
        self._cache = KvCache(spec, num_blocks, settings.block_size, weights.dtype, weights.device)
        self._requests: dict[str, Request] = {}
        self._finished: list[Finished] = []
        self._num_arrivals = 0
        self._version = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything (but expire deadlines)."""
        return bool(self._finished or self.num_running or (self._requests and not self._scheduler.paused))

    @property
    def num_running(self) -> int:
        """Unfinished samples of requests that have begun: what `pause` lets go on."""
        return sum(request.num_unfinished for request in self._requests.values() if request.started)

    def submit(self, request_id: str, prompt_ids: list[int], sampling: Sampling, deadline: float) -> None:
        """Queue a request; `step` returns it once it ended. `deadline` is a time of `now`.

        Raises Usage for what can never be served, QueueFull when too many wait.
        """
        if request_id in self._requests:
            raise Usage(f"request {request_id!r} is here already", expected="a new id for each request")
        requests.check(prompt_ids, sampling, self._decoder.spec.vocab_size)
        num_tokens = len(prompt_ids) + sampling.max_new_tokens
        self._decoder.spec.check_length(num_tokens)
        capacity = self._pool.num_blocks * self._pool.block_size
        # The last token is never fed back, so its KV needs no room.
        if num_tokens - 1 > capacity:
            raise Usage(
                f"prompt and max_new_tokens of {num_tokens} tokens",
                expected=f"at most {capacity + 1}, what the KV cache holds",
                fix="shorten them or raise inference.kv_bytes",
            )
        if len(self._scheduler.waiting) >= self._settings.max_waiting:
            raise QueueFull(
                f"{len(self._scheduler.waiting)} requests wait", expected=f"at most {self._settings.max_waiting}"
            )
        request = Request(request_id, list(prompt_ids), sampling, deadline, self._num_arrivals)
        self._num_arrivals += 1
        for index in sorted(sampling.samples) or range(sampling.n):
            stream = TextStream(self._tokenizer, sampling.stop) if sampling.stop else None
            request.samples.append(Sample(request, index, list(prompt_ids), stream))
        request.num_unfinished = sampling.n
        self._requests[request_id] = request
        self._scheduler.add(request)

    def cancel(self, request_id: str) -> None:
        """End a request now, with the tokens so far; nothing when it is not here (any more)."""
        if request_id in self._requests:
            self._end(self._requests[request_id], "cancelled")

    def abort_running(self) -> None:
        """End every request that has begun, with the tokens so far; those that wait go on waiting."""
        for request in [request for request in self._requests.values() if request.started]:
            self._end(request, "aborted")

    def pause(self) -> None:
        """Begin no further request; those that have begun go on."""
        self._scheduler.paused = True

    def resume(self) -> None:
        self._scheduler.paused = False

    def set_version(self, number: int, namespace: str) -> None:
        """The decoder now has the weights of version `number`.

        Tokens drawn from now on bear the number. KV computed under another namespace is never found again;
        running samples keep theirs, which is why it is never published either.
        """
        self._version = number
        self._scheduler.requeue_trunks()
        self._pool.set_namespace(namespace)

    def check_integrity(self) -> None:
        """Raise Invariant unless every KV block is accounted for. `step` does so whenever it runs out of work."""
        self._scheduler.check_integrity()

    def stats(self) -> EngineStats:
        lookups, tokens = "huilu_engine_prefix_lookup_tokens_total", "huilu_engine_tokens_total"
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_blocks=self._pool.num_blocks,
            num_held_blocks=self._pool.num_held,
            num_idle_blocks=self._pool.num_idle,
            num_hit_tokens=int(self._telemetry.value(lookups, result="hit")),
            num_missed_tokens=int(self._telemetry.value(lookups, result="miss")),
            num_prefill_tokens=int(self._telemetry.value(tokens, type="prefill")),
            num_generated_tokens=int(self._telemetry.value(tokens, type="generated")),
            num_preemptions=int(self._telemetry.value("huilu_engine_preemptions_total")),
        )

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """One iteration: a token of every running sample, a chunk of every prompt in prefill. What ended since."""
        self._expire()
        plan = self._scheduler.plan()
        if plan.copies:
            self._cache.copy(plan.copies)
        hidden_BD, decodes = self._forward(plan)
        branches = self._scheduler.branch()
        hidden_ND = torch.cat((hidden_BD, *(trunk.hidden_D[None] for trunk, _ in branches)))
        self._draw(hidden_ND, [*([decoding] for decoding in decodes), *(started for _, started in branches)])
        self._report(plan)
        finished, self._finished = self._finished, []
        if finished and not self._requests:
            self.check_integrity()
        return finished

    def _expire(self) -> None:
        now = self._now()
        for request in [request for request in self._requests.values() if request.deadline <= now]:
            self._end(request, "timeout")

    def _forward(self, plan: Plan) -> tuple[Tensor, list[Sample]]:
        """Compute the planned tokens: the hidden state of each decoding sample's last token, and those samples.

        A trunk whose last token was computed gets its hidden state.
        """
        rows = [DecodeRow(s.request.id, table_of(s).blocks, len(s.token_ids)) for s in plan.decodes]
        chunks = [PrefillRow(table_of(chunk.trunk).blocks, chunk.start, chunk.end) for chunk in plan.chunks]
        weights = self._decoder.embedding
        if not rows and not chunks:
            return weights.new_empty(0, weights.shape[1]), []
        attention = PagedAttention(self._cache, rows, chunks)
        decodes = [plan.decodes[row] for row in attention.order]
        ids = [decoding.token_ids[-1] for decoding in decodes]
        positions = [len(decoding.token_ids) - 1 for decoding in decodes]
        for trunk, start, end in plan.chunks:
            ids += trunk.token_ids[start:end]
            positions += range(start, end)
        device = weights.device
        hidden_TD = self._decoder.hidden(
            torch.tensor(ids, device=device), torch.tensor(positions, device=device), attention
        )
        if decodes:
            self._telemetry.reach("mid-decode")
        place = len(decodes)
        for trunk, start, end in plan.chunks:
            self._telemetry.reach("mid-prefill")
            place += end - start
            if end == len(trunk.token_ids):
                trunk.hidden_D = hidden_TD[place - 1].clone()
        return hidden_TD[: len(decodes)], decodes

    def _draw(self, hidden_ND: Tensor, takers: list[list[Sample]]) -> None:
        """Draw one token for every sample; row `i` of the hidden states is that of all of `takers[i]`."""
        samples = [taker for row in takers for taker in row]
        if not samples:
            return
        logits_NV = self._decoder.logits(hidden_ND)
        if len(samples) > len(takers):
            rows = [row for row, sharing in enumerate(takers) for _ in sharing]
            logits_NV = logits_NV[torch.tensor(rows, device=logits_NV.device)]
        draws = [Draw(taker.request.sampling, taker.index, taker.num_new) for taker in samples]
        for taker, drawn in zip(samples, draw_tokens(logits_NV, draws), strict=True):
            self._take(taker, drawn)
        self._telemetry.count("huilu_engine_tokens_total", len(samples), type="generated")

    def _take(self, taker: Sample, drawn: Drawn) -> None:
        """Append a token to its sample: the one place where output grows (and where streaming would begin)."""
        sampling = taker.request.sampling
        taker.token_ids.append(drawn.token_id)
        taker.logprobs.append(drawn.logprob)
        taker.versions.append(self._version)
        if sampling.num_top_logprobs:
            taker.top_logprobs.append(drawn.top_logprobs)
        ends = sampling.stop_ids if sampling.ignore_eos else (*sampling.stop_ids, *self._decoder.spec.eos_ids)
        if drawn.token_id in ends:
            self._finish(taker, "stop")
            return
        if taker.stream is not None:
            taker.stream.feed([drawn.token_id])
            if taker.stream.stopped is not None:
                self._finish(taker, "stop")
                return
        if taker.num_new == sampling.max_new_tokens:
            self._finish(taker, "length")

    def _end(self, request: Request, reason: str) -> None:
        for unfinished in [taker for taker in request.samples if not taker.finish_reason]:
            self._finish(unfinished, reason)

    def _finish(self, ended: Sample, reason: str) -> None:
        self._scheduler.finish(ended)
        ended.finish_reason = reason
        self._telemetry.count("huilu_engine_requests_total", finish_reason=reason)
        request = ended.request
        request.num_unfinished -= 1
        if request.num_unfinished == 0:
            del self._requests[request.id]
            completions = tuple(taker.completion() for taker in request.samples)
            self._finished.append(Finished(request.id, completions))

    def _report(self, plan: Plan) -> None:
        num_prefill_tokens = sum(chunk.end - chunk.start for chunk in plan.chunks)
        self._telemetry.count("huilu_engine_tokens_total", num_prefill_tokens, type="prefill")
        self._telemetry.gauge("huilu_engine_running", len(self._scheduler.running))
        self._telemetry.gauge("huilu_engine_waiting", len(self._scheduler.waiting))
        self._telemetry.gauge("huilu_engine_kv_usage_ratio", self._pool.num_held / self._pool.num_blocks)
