"""The Protocols between rooms: where there are two implementations, or where the loop's test needs a fake.

`loop.py` and `envs` are written against these alone; assembly chooses the implementations.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from huilu.core.generation import Completion, Judgement, Program, RunResult, Sampling
from huilu.core.nouns import Claim, Episode, Feedback, Message, PolicyVersion, StepReport, Task, Verdict


class Generator(Protocol):
    """Something that continues token ids: the engine, or a client of one."""

    async def generate(self, prompt_ids: list[int], sampling: Sampling, timeout_s: float) -> list[Completion]:
        """`sampling.n` completions, by index. Raises QueueFull, TimedOut, ProcessDied."""
        ...


class Sandbox(Protocol):
    """Runs untrusted code."""

    async def run(self, program: Program) -> RunResult:
        """Run a program as it stands."""
        ...

    async def check(self, program: Program, check: str) -> RunResult:
        """Run `program.source`, then `check` against what it defined; AC only on positive proof from the check."""
        ...


class Calls(Protocol):
    """Calls code that the job brought along, in a process that can be killed."""

    async def call(self, target: str, kwargs: dict[str, Any], timeout_s: float) -> Any:
        """The result of `module:function` or `path.py:function` on plain values. Raises ExtensionFailed, TimedOut."""
        ...


class Tools(Protocol):
    """What an environment may use to judge."""

    @property
    def sandbox(self) -> Sandbox: ...

    @property
    def calls(self) -> Calls: ...


class Environment(Protocol):
    """How a task becomes messages, when an episode ends, and how an answer is judged."""

    @property
    def needs(self) -> frozenset[str]:
        """The tools it uses: any of `sandbox`, `calls`."""
        ...

    def __len__(self) -> int:
        """Number of tasks in its data set."""
        ...

    def task(self, index: int) -> Task:
        """Task `index`, always the same one. Its `id` names the row (`env/index`); a draw gives it a new id."""
        ...

    async def reply(self, task: Task, answers: Sequence[str], tools: Tools) -> Message | None:
        """The next message to the model after its answers so far, or None when the episode ends."""
        ...

    async def judge(self, task: Task, answers: Sequence[str], tools: Tools) -> Judgement:
        """The judgement of the finished episode."""
        ...

    def gold(self, task: Task) -> str | None:
        """An answer that must score 1.0, or None where the data has none."""
        ...


class Draws(Protocol):
    """The source of work and the owner of the slots that bound it."""

    async def draw(self) -> Sequence[Task]:
        """The next tasks, once there are free slots for them; empty when there will be no more."""
        ...

    def settle(self, claim: Claim) -> None:
        """The claim's fate is known: free its slots."""
        ...


class Rollouts(Protocol):
    """Attempts at tasks."""

    def attempt(self, task: Task) -> AsyncIterator[tuple[Episode, Feedback]]:
        """The task's missing episodes as they end, each with its feedback."""
        ...


class Bus(Protocol):
    """The durable road from rollouts to the learner."""

    async def append(self, episode: Episode, feedback: Feedback) -> None:
        """Durable on return; idempotent under the episode's id."""
        ...

    async def claim(self, round_: int, max_lag: int) -> Claim:
        """The round's claim: full, or what there is once nothing in flight can add to it."""
        ...


class Learner(Protocol):
    """Updates the policy."""

    async def step(self, claim: Claim) -> StepReport: ...


class Versions(Protocol):
    """The chain of policy versions."""

    async def record(self, claim: Claim, report: StepReport) -> PolicyVersion:
        """The version that the step made, durable, its claim marked applied; saves the learner when due."""
        ...


class Engine(Protocol):
    """Whoever serves rollouts."""

    async def sync(self, version: PolicyVersion) -> None:
        """Returns once the engine samples from this version's weights and older KV is unreachable."""
        ...


class Gate(Protocol):
    """Judges versions on held-out tasks."""

    def due(self, round_: int) -> bool: ...

    async def judge(self, version: PolicyVersion) -> Verdict: ...


class Releases(Protocol):
    """Moves release pointers."""

    async def decide(self, verdict: Verdict) -> None: ...


class Book(Protocol):
    """Keeps the account of rounds."""

    def close(self, claim: Claim, report: StepReport, version: PolicyVersion) -> None:
        """The round is over: tell what it was."""
        ...
