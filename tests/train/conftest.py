"""Tiny decoders and claims for the learner's tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest
import torch

from huilu.config.tree import Algorithm, Grpo, Rollout, Train
from huilu.core.nouns import Claim, ClaimState, Episode, Group, Outcome, Task, Turn
from huilu.model.decoder import Decoder, initialise
from huilu.model.spec import ModelSpec
from huilu.telemetry import Telemetry
from huilu.train.learner import Learner

SPEC = ModelSpec(
    family="llama",
    vocab_size=40,
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_size=8,
    intermediate_size=48,
    rope_theta=10000.0,
    norm_eps=1e-5,
    max_positions=128,
    tie_embeddings=True,
)


class Tiny:
    """Makes tiny things; a step of each takes milliseconds."""

    spec = SPEC

    def decoder(self, seed: int = 0, *, tied: bool = True, dtype: torch.dtype = torch.float32) -> Decoder:
        decoder = Decoder(msgspec.structs.replace(SPEC, tie_embeddings=tied), dtype)
        initialise(decoder, seed, std=0.2)
        return decoder

    def episode(
        self,
        prompt: Sequence[int],
        answer: Sequence[int],
        reward: float | None,
        *,
        group: int = 0,
        index: int = 0,
        logprobs: Sequence[float] = (),
        outcome: Outcome = Outcome.OK,
        temperature: float = 1.0,
    ) -> Episode:
        """One turn of `answer` to `prompt`."""
        start, end = len(prompt), len(prompt) + len(answer)
        return Episode(
            id=f"t{group}.e{index}",
            task_id=f"t{group}",
            round=0,
            index=index,
            env="arithmetic",
            version=0,
            token_ids=[*prompt, *answer],
            logprobs=[0.0] * start + list(logprobs or [-1.0] * len(answer)),
            loss_mask=[False] * start + [True] * len(answer),
            turns=(Turn(start, end),),
            text="",
            outcome=outcome,
            finish_reason="length" if outcome == Outcome.TRUNCATED else "stop",
            reward=reward,
            temperature=temperature,
        )

    def claim(self, *groups: Sequence[Episode], round_: int = 0) -> Claim:
        """A claim of these groups."""
        made = tuple(
            Group(Task(id=f"t{number}", env="arithmetic", prompt=()), tuple(episodes))
            for number, episodes in enumerate(groups)
        )
        return Claim(id=f"c{round_}", round=round_, state=ClaimState.LEASED, groups=made)

    def random_claim(
        self, seed: int, rewards: Sequence[Sequence[float | None]] = ((1, 0, 0, 1), (0, 0, 1), (0.5, 0, 1, 0))
    ) -> Claim:
        """Groups of random prompts and answers of 1 to 6 tokens, with these rewards."""
        generator = torch.Generator().manual_seed(seed)

        def tokens(low: int, high: int) -> list[int]:
            size = int(torch.randint(low, high + 1, (1,), generator=generator))
            return torch.randint(0, SPEC.vocab_size, (size,), generator=generator).tolist()

        groups = []
        for number, group in enumerate(rewards):
            prompt = tokens(3, 9)
            groups.append(
                [
                    self.episode(prompt, answer, reward, group=number, index=index, logprobs=[-2.5] * len(answer))
                    for index, reward in enumerate(group)
                    for answer in [tokens(1, 6)]
                ]
            )
        return self.claim(*groups, round_=seed)

    def learner(
        self,
        decoder: Decoder,
        algorithm: Algorithm | None = None,
        *,
        rollout: Rollout | None = None,
        reference: Decoder | None = None,
        telemetry: Telemetry | None = None,
        num_rounds: int = 10,
        **settings: object,
    ) -> Learner:
        """A learner; `settings` are those of `train`."""
        train = msgspec.convert({"learning_rate": 1e-2, **settings}, type=Train)
        train = msgspec.structs.replace(train, algorithm=algorithm or Grpo())
        return Learner(
            decoder, train, rollout or Rollout(max_new_tokens=6), num_rounds, telemetry or Telemetry(), reference
        )


@pytest.fixture
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Bit-equality is promised on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
