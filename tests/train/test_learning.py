"""A whole small loop: sampled answers, a reward, and a policy that gets better at it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from huilu.config.tree import Algorithm, Cispo, Dapo, Grpo, Gspo, ReinforcePlusPlus, Rloo
from huilu.model.decoder import Decoder, causal_attend

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
NUM_TOKENS, GROUP_SIZE = 3, 8


@torch.no_grad()
def sample(decoder: Decoder, prompt: list[int], generator: torch.Generator) -> tuple[list[int], list[float]]:
    """An answer at temperature 1 and the log-probability of each of its tokens."""
    ids, logprobs = list(prompt), []
    for _ in range(NUM_TOKENS):
        hidden = decoder.hidden(torch.tensor(ids), torch.arange(len(ids)), causal_attend([len(ids)]))
        logp = decoder.logits(hidden[-1:]).log_softmax(-1)[0]
        token = int(torch.multinomial(logp.exp(), 1, generator=generator))
        ids.append(token)
        logprobs.append(float(logp[token]))
    return ids[len(prompt) :], logprobs


def share_of_even_tokens(answer: list[int]) -> float:
    return sum(token % 2 == 0 for token in answer) / len(answer)


@pytest.mark.parametrize(
    "algorithm",
    [Grpo(), Dapo(), Rloo(), ReinforcePlusPlus(baseline=True), Gspo(), Cispo(), Grpo(epochs=2, minibatches=3)],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_reward_rises(tiny: Any, algorithm: Algorithm) -> None:
    decoder, generator = tiny.decoder(seed=4), torch.Generator().manual_seed(0)
    learner = tiny.learner(decoder, algorithm, learning_rate=4e-3)
    rewards = []
    for round_ in range(16):
        groups = []
        for number, prompt in enumerate(PROMPTS):
            answers = [sample(decoder, prompt, generator) for _ in range(GROUP_SIZE)]
            groups.append(
                [
                    tiny.episode(prompt, ids, share_of_even_tokens(ids), group=number, index=index, logprobs=logprobs)
                    for index, (ids, logprobs) in enumerate(answers)
                ]
            )
        report = learner.step(tiny.claim(*groups, round_=round_))
        assert report.metrics.get("mismatch", 0.0) < 1e-5  # absent once every group is solved
        rewards.append(report.metrics["reward_mean"])
    assert rewards[0] < 0.65
    assert sum(rewards[-3:]) / 3 > 0.85, rewards
