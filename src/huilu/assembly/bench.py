"""What a machine does with a model: generation, a training step, the first token after an update, memory.

Called by `huilu bench` and by the scripts of bench/. The model is measured from outside, in the process that a run
would use; prompts are sums in the model's own chat template, new ones each time. No torch in here: the machine's
ceilings are measured by `huilu.model.ceilings`, in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from huilu import errors
from huilu.config import tree
from huilu.core.generation import Completion, Sampling
from huilu.core.nouns import Claim, ClaimState, Episode, Group, Message, Outcome, PolicyVersion, StepReport, Task, Turn
from huilu.serving import protocol
from huilu.serving.client import ModelClient
from huilu.text.chat import Chat
from huilu.text.tokenizer import Tokenizer

SEQUENCES = (1, 8, 64)
GROUP = 8
"""Sequences of one prompt, as in a GRPO group; a single sequence is alone."""
NEW_TOKENS = 48
DEADLINE_S = 1200.0
BYTES_A_PARAMETER = 16
"""float32 weights, gradients and Adam's two moments."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to continue `n` times by exactly `max_new_tokens`."""

    ids: list[int]
    n: int
    max_new_tokens: int


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long a queue of requests took until it was empty, and the tokens that came out."""

    seconds: float
    tokens: int

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """One training step on a claim: wall time as seen from outside, and what the learner says of it."""

    seconds: float
    episodes: int
    report: StepReport


class Sums:
    """Prompts that do not repeat, about as long as those of a task: "What is 417 + 96? ..."."""

    def __init__(self, chat: Chat, seed: int) -> None:
        self._chat, self._random = chat, random.Random(seed)

    def prompt(self) -> list[int]:
        a, b = (self._random.randint(1, 999) for _ in range(2))
        return self._chat.render([Message("user", f"What is {a} + {b}? Answer with just the number.")])

    def noise(self) -> list[int]:
        """As many tokens that begin like no other prompt."""
        return [self._random.randrange(3, 3000) for _ in self.prompt()]

    def requests(self, num_sequences: int, max_new_tokens: int = NEW_TOKENS) -> list[Request]:
        """A queue of so many sequences, in groups of up to `GROUP` a prompt."""
        n = min(num_sequences, GROUP)
        return [Request(ids=self.prompt(), n=n, max_new_tokens=max_new_tokens) for _ in range(num_sequences // n)]


class Bench:
    """A model process with a learner, measured from outside."""

    def __init__(self, client: ModelClient, info: protocol.ModelInfo, job: tree.Job, seed: int) -> None:
        self.client, self.info, self.job = client, info, job
        self.sums = Sums(Chat(Tokenizer.load(Path(info.folder))), seed)
        self._seed = seed
        self._version = 0

    async def generate(self, requests: Sequence[Request]) -> Timing:
        """Serve all requests at once, ignoring end-of-sequence."""
        start = time.perf_counter()
        answers = await asyncio.gather(*(self._complete(request, ignore_eos=True) for request in requests))
        seconds = time.perf_counter() - start
        return Timing(seconds=seconds, tokens=sum(len(one.token_ids) for answer in answers for one in answer))

    async def claim(self, num_tasks: int = 8, max_new_tokens: int = NEW_TOKENS) -> Claim:
        """Sampled groups of which half the episodes are rewarded: none is without a signal."""
        asked = [Request(ids=self.sums.prompt(), n=GROUP, max_new_tokens=max_new_tokens) for _ in range(num_tasks)]
        answers = await asyncio.gather(*(self._complete(request, ignore_eos=False) for request in asked))
        round_ = self._version + 1
        groups = [
            _group(f"bench/{round_}/{place}", round_, request.ids, answer)
            for place, (request, answer) in enumerate(zip(asked, answers, strict=True))
        ]
        return Claim(id=f"bench-{round_}", round=round_, state=ClaimState.LEASED, groups=tuple(groups))

    async def step(self, claim: Claim) -> Update:
        """One update of the weights."""
        start = time.perf_counter()
        report = await self.client.step(claim)
        return Update(seconds=time.perf_counter() - start, episodes=len(claim.episodes), report=report)

    async def first_token(self, updated: Claim | None) -> float:
        """Seconds to a new request's first token; after `updated`, from the end of an update on that claim.

        The prompt has nothing in common with earlier ones, so that no cached prefix blurs the difference.
        """
        if updated is not None:
            await self.step(updated)
        start = time.perf_counter()
        if updated is not None:
            self._version += 1
            await self.client.sync(
                PolicyVersion(number=self._version, lineage=0, parent=self._version - 1, round=self._version)
            )
        await self._complete(Request(ids=self.sums.noise(), n=1, max_new_tokens=1), ignore_eos=True)
        return time.perf_counter() - start

    @property
    def peak_bytes(self) -> int:
        return peak_bytes(self.client.pid)

    @property
    def state_bytes(self) -> int:
        """What training cannot do without: weights, gradients and Adam's moments."""
        return BYTES_A_PARAMETER * self.info.num_parameters

    async def _complete(self, request: Request, *, ignore_eos: bool) -> list[Completion]:
        self._seed += 1
        sampling = Sampling(max_new_tokens=request.max_new_tokens, n=request.n, seed=self._seed, ignore_eos=ignore_eos)
        return await self.client.generate(request.ids, sampling, DEADLINE_S)


@contextlib.asynccontextmanager
async def opened(job: tree.Job, seed: int = 0) -> AsyncIterator[Bench]:
    """The job's model and learner in a process of their own until the block ends."""
    with tempfile.TemporaryDirectory(prefix="huilu-bench-") as scratch:
        client = await ModelClient.launch(Path(scratch) / "model.log", os.environ)
        try:
            info = await client.start(protocol.Start(model=job.model, inference=job.inference, learn=job))
            await client.sync(PolicyVersion(number=0, lineage=0, parent=None, round=0, digest=info.digest))
            yield Bench(client, info, job, seed)
        finally:
            await client.close()


def default_job(path: str) -> tree.Job:
    """A job that trains the model at `path` as the quickstart does, with answers of up to `NEW_TOKENS`."""
    return tree.Job(
        name="bench",
        model=tree.Model(path=path),
        data=tree.Data(sources=[tree.Tasks(env="arithmetic")]),
        rollout=tree.Rollout(max_new_tokens=NEW_TOKENS),
        train=tree.Train(learning_rate=1e-6),
    )


async def ceilings(folder: str, threads: int) -> dict[str, Any]:
    """The machine's own limits; see `huilu.model.ceilings`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "huilu.model.ceilings",
        folder,
        str(threads),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaint = await process.communicate()
    if process.returncode:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise errors.ProcessDied(f"measuring the machine ended with status {process.returncode}: {''.join(last)}")
    found: dict[str, Any] = msgspec.json.decode(out)
    return found


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had resident (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def _group(task_id: str, round_: int, prompt_ids: list[int], answers: Sequence[Completion]) -> Group:
    episodes = tuple(_episodes(task_id, round_, prompt_ids, answers))
    return Group(Task(id=task_id, env="bench", prompt=(Message("user", "a sum"),)), episodes)


def _episodes(task_id: str, round_: int, prompt_ids: list[int], answers: Sequence[Completion]) -> Iterator[Episode]:
    size = len(prompt_ids)
    for one in answers:
        num_new = len(one.token_ids)
        yield Episode(
            id=f"{task_id}/{one.index}",
            task_id=task_id,
            round=round_,
            index=one.index,
            env="bench",
            version=min(one.versions),
            token_ids=[*prompt_ids, *one.token_ids],
            logprobs=[0.0] * size + one.logprobs,
            loss_mask=[False] * size + [True] * num_new,
            turns=(Turn(size, size + num_new),),
            text="",
            outcome=Outcome.TRUNCATED if one.finish_reason == "length" else Outcome.OK,
            finish_reason=one.finish_reason,
            reward=float(one.index % 2),
        )
