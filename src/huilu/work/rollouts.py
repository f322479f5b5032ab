"""One task attempted: prompt to engine, answer to environment, until each episode of its group has ended.

Called by the loop (`Rollouts`) and by evaluation. Tokens are never re-tokenised: a later turn appends the ids of
the new messages to the ids that were sampled. What fails for infrastructure reasons is tried again and, in the
end, booked as `infra_failed` with no reward; it is never a 0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from huilu import errors
from huilu.core import ids
from huilu.core.generation import Completion, Judgement, Sampling
from huilu.core.nouns import Episode, Feedback, FeedbackKind, FeedbackSource, FeedbackState, Outcome, Task, Turn
from huilu.core.ports import Environment, Generator, Tools
from huilu.telemetry import Telemetry
from huilu.text.chat import Chat

RETRY_S = 0.5
T = TypeVar("T")


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """How attempts are sampled and bounded."""

    episodes_per_task: int
    max_new_tokens: int
    temperature: float
    seed: int
    stop: tuple[str, ...] = ()
    timeout_s: float = 300.0
    max_attempts: int = 3


class Draft(msgspec.Struct, kw_only=True):
    """An episode under way: ids and their log-probabilities, and the text of its answers."""

    token_ids: list[int]
    logprobs: list[float]
    loss_mask: list[bool]
    versions: list[int] = []
    turns: list[Turn] = []
    answers: list[str] = []
    finish_reason: str = ""

    @classmethod
    def after(cls, prompt_ids: list[int]) -> Draft:
        size = len(prompt_ids)
        return cls(token_ids=list(prompt_ids), logprobs=[0.0] * size, loss_mask=[False] * size)

    def sampled(self, completion: Completion, text: str) -> None:
        """Append what the policy sampled."""
        start = len(self.token_ids)
        self.token_ids += completion.token_ids
        self.logprobs += completion.logprobs
        self.loss_mask += [True] * len(completion.token_ids)
        self.versions += completion.versions
        self.turns.append(Turn(start, len(self.token_ids)))
        self.answers.append(text)
        self.finish_reason = completion.finish_reason

    def given(self, token_ids: list[int]) -> None:
        """Append what the environment said."""
        self.token_ids += token_ids
        self.logprobs += [0.0] * len(token_ids)
        self.loss_mask += [False] * len(token_ids)


class Attempts:
    """Attempts tasks of several environments with one engine."""

    def __init__(
        self,
        generator: Generator,
        chat: Chat,
        environments: dict[str, Environment],
        tools: Tools,
        style: Style,
        telemetry: Telemetry,
        max_positions: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._generator, self._chat, self._environments = generator, chat, environments
        self._tools, self._style, self._telemetry = tools, style, telemetry
        self._max_positions, self._monotonic = max_positions, monotonic

    async def episodes(self, task: Task, indexes: Sequence[int], round_: int) -> AsyncIterator[Episode]:
        """The episodes of `indexes`, each as it ends."""
        prompt_ids = self._chat.render(task.prompt)
        self._telemetry.count("huilu_rollout_tokens_total", len(prompt_ids) * len(indexes), type="prompt")
        first = await self._first_turn(task, prompt_ids, indexes)
        running = [
            asyncio.create_task(self._episode(task, round_, index, prompt_ids, completion))
            for index, completion in zip(indexes, first, strict=True)
        ]
        try:
            for ended in asyncio.as_completed(running):
                yield await ended
        finally:
            for task_ in running:
                task_.cancel()

    async def _first_turn(
        self, task: Task, prompt_ids: list[int], indexes: Sequence[int]
    ) -> list[Completion | errors.HuiluError]:
        """The group's first answers: one request, so that its prompt is computed once."""
        room = self._max_positions - len(prompt_ids)
        sampling = self._sampling(task, turn=0, room=room, samples=tuple(indexes))
        try:
            return list(await self._generate(prompt_ids, sampling))
        except errors.ProcessDied:
            raise
        except errors.HuiluError as error:
            return [error for _ in indexes]

    def _sampling(self, task: Task, turn: int, room: int, samples: tuple[int, ...]) -> Sampling:
        style = self._style
        return Sampling(
            max_new_tokens=max(1, min(style.max_new_tokens, room)),
            temperature=style.temperature,
            n=len(samples),
            samples=samples,
            seed=ids.seed_for(style.seed, task.id, turn),
            stop=style.stop,
        )

    async def _generate(self, prompt_ids: list[int], sampling: Sampling) -> list[Completion]:
        """Generate, again where the engine aborted or timed out, at most `max_attempts` times."""
        for attempt in range(self._style.max_attempts):
            completions = await self._generator.generate(prompt_ids, sampling, self._style.timeout_s)
            if all(completion.finish_reason in ("stop", "length") for completion in completions):
                return completions
            await asyncio.sleep(RETRY_S * attempt)
        reasons = sorted({completion.finish_reason for completion in completions})
        raise errors.TimedOut(f"generation ended as {', '.join(reasons)} {self._style.max_attempts} times")

    async def _episode(
        self, task: Task, round_: int, index: int, prompt_ids: list[int], first: Completion | errors.HuiluError
    ) -> Episode:
        draft = Draft.after(prompt_ids)
        if isinstance(first, errors.HuiluError):
            return self._close(task, round_, index, draft, Outcome.INFRA_FAILED, None, str(first))
        started = self._monotonic()
        environment = self._environments[task.env]
        try:
            self._take(draft, first)
            await self._later_turns(task, index, draft, environment)
            judge = partial(environment.judge, task, draft.answers, self._tools)
            judgement = await self._ask(task, "judge", judge)
        except errors.ProcessDied:
            raise
        except errors.HuiluError as error:
            return self._close(task, round_, index, draft, Outcome.INFRA_FAILED, None, str(error))
        finally:
            spent = self._monotonic() - started
            self._telemetry.observe("huilu_rollout_episode_seconds", spent, env=task.env, phase="judge")
        outcome = Outcome.TRUNCATED if draft.finish_reason == "length" else Outcome.OK
        return self._close(task, round_, index, draft, outcome, judgement, judgement.note)

    async def _later_turns(self, task: Task, index: int, draft: Draft, environment: Environment) -> None:
        while draft.finish_reason != "length":
            reply = partial(environment.reply, task, draft.answers, self._tools)
            message = await self._ask(task, "reply", reply)
            if message is None:
                return
            draft.given(self._chat.extend(draft.token_ids, [message]))
            room = self._max_positions - len(draft.token_ids)
            if room < 1:
                draft.finish_reason = "length"
                return
            sampling = self._sampling(task, turn=len(draft.turns), room=room, samples=(index,))
            self._telemetry.count("huilu_rollout_tokens_total", len(draft.token_ids), type="prompt")
            (completion,) = await self._generate(draft.token_ids, sampling)
            self._take(draft, completion)

    async def _ask(self, task: Task, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the environment, again after an infrastructure failure: no answer is made a second time for it."""
        for attempt in range(1, self._style.max_attempts + 1):
            try:
                with errors.boundary(f"environment {task.env}, {what}"):
                    return await ask()
            except errors.HuiluError as error:
                self._telemetry.event("warning", message=f"{what} of {task.id}: {error}", code=error.code)
                if attempt == self._style.max_attempts:
                    raise
                await asyncio.sleep(RETRY_S * attempt)
        raise errors.Invariant("no attempt at judging was allowed", expected="max_attempts of at least 1")

    def _take(self, draft: Draft, completion: Completion) -> None:
        draft.sampled(completion, self._chat.decode(completion.token_ids[: completion.text_end]))
        self._telemetry.count("huilu_rollout_tokens_total", len(completion.token_ids), type="generated")
        self._telemetry.count("huilu_rollout_tokens_total", completion.num_cached_tokens, type="cached")

    def _close(
        self,
        task: Task,
        round_: int,
        index: int,
        draft: Draft,
        outcome: Outcome,
        judgement: Judgement | None,
        note: str,
    ) -> Episode:
        self._telemetry.count("huilu_rollout_episodes_total", env=task.env, outcome=outcome.value)
        passed = {"passed": float(judgement.passed)} if judgement is not None else {}
        return Episode(
            id=ids.episode_id(task.id, index),
            task_id=task.id,
            round=round_,
            index=index,
            env=task.env,
            version=min(draft.versions, default=0),
            token_ids=draft.token_ids,
            logprobs=draft.logprobs,
            loss_mask=draft.loss_mask,
            turns=tuple(draft.turns),
            text="\n".join(draft.answers),
            outcome=outcome,
            finish_reason=draft.finish_reason,
            reward=judgement.reward if judgement is not None else None,
            temperature=self._style.temperature,
            metrics={**(judgement.metrics if judgement is not None else {}), **passed},
            note=note,
        )


def feedback_of(episode: Episode) -> Feedback:
    """What the verifier said of an episode: accepted with a score, or why there is none."""
    if episode.outcome is Outcome.INFRA_FAILED:
        state = FeedbackState.INFRA_FAILED
    elif episode.reward is None:
        state = FeedbackState.REJECTED
    else:
        state = FeedbackState.ACCEPTED
    return Feedback(
        key=ids.feedback_key(episode.id, FeedbackSource.VERIFIER),
        episode_id=episode.id,
        kind=FeedbackKind.SCORE,
        source=FeedbackSource.VERIFIER,
        state=state,
        value=episode.reward,
        note=episode.note[:500],
    )


Missing = Callable[[Task], list[int]]
"""Which episodes of a drawn task are to be made, by index."""


class GroupRollouts:
    """The loop's `Rollouts`: the missing episodes of a task, with the feedback on each."""

    def __init__(self, attempts: Attempts, missing: Missing, round_of: Callable[[Task], int]) -> None:
        self._attempts, self._missing, self._round_of = attempts, missing, round_of

    async def attempt(self, task: Task) -> AsyncIterator[tuple[Episode, Feedback]]:
        async for episode in self._attempts.episodes(task, self._missing(task), self._round_of(task)):
            yield episode, feedback_of(episode)
