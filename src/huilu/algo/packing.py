"""Episodes cut for training and packed into micro-batches without padding. Plain integers, no torch.

Called by the learner. A micro-batch reads each distinct prompt once, whatever the number of episodes that continue
it: first every prompt, then every branch (an episode's tokens after its prompt), one after the other:

    ids      | prompt 0 | prompt 1 | branch 0 (of prompt 0) | branch 1 (of prompt 0) | branch 2 (of prompt 1) |

A token of a branch may see the branch's prompt and the branch up to itself. Episodes are never cut in two, since
some losses need the whole sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from huilu.core.nouns import Episode
from huilu.errors import Invariant


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One episode cut for training: what is read and which tokens are predicted.

    `prompt` is what stands before the first sampled token; `branch` goes on up to the last but one sampled token
    (nothing is predicted after the last, so it is never read). Target i is predicted by position `sources[i]`
    of prompt + branch; `rollout_logprobs[i]` is its log-probability when it was sampled, in nats.
    """

    prompt: tuple[int, ...]
    branch: list[int]
    sources: list[int]
    targets: list[int]
    rollout_logprobs: list[float]
    temperature: float
    advantage: float


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch: `samples` (indices into the packed list) and where their tokens lie.

    `prompts` are the lengths of the prompts; `branches` are (prompt, length) of each sample, length 0 where its
    only target follows the prompt. `sources` and `targets` are the samples' in order, `sources` as places in
    `ids`; `episodes` says which of `samples` (0, 1, ...) each target is of.
    """

    samples: list[int]
    ids: list[int]
    positions: list[int]
    prompts: list[int]
    branches: list[tuple[int, int]]
    sources: list[int]
    targets: list[int]
    episodes: list[int]


def cut(episode: Episode, advantage: float) -> Sample | None:
    """The episode as a sample, or None when no token of it was sampled. Raises Invariant when its first token was."""
    trained = [index for index, is_sampled in enumerate(episode.loss_mask) if is_sampled]
    if not trained:
        return None
    first, last = trained[0], trained[-1]
    if first == 0:
        raise Invariant(f"episode {episode.id} trains on its first token", expected="a prompt before it")
    return Sample(
        prompt=tuple(episode.token_ids[:first]),
        branch=episode.token_ids[first:last],
        sources=[index - 1 for index in trained],
        targets=[episode.token_ids[index] for index in trained],
        rollout_logprobs=[episode.logprobs[index] for index in trained],
        temperature=episode.temperature,
        advantage=advantage,
    )


def pack(samples: Sequence[Sample], chosen: Sequence[int], num_tokens: int) -> list[Pack]:
    """Micro-batches of at most `num_tokens` read tokens each, of the `chosen` samples in the order given.

    Deterministic. A prompt is read once a micro-batch. A sample that is longer than the budget gets a
    micro-batch of its own.
    """
    packs: list[Pack] = []
    members: list[int] = []
    prompts: set[tuple[int, ...]] = set()
    used = 0
    for index in chosen:
        sample = samples[index]
        cost = len(sample.branch) + (0 if sample.prompt in prompts else len(sample.prompt))
        if members and used + cost > num_tokens:
            packs.append(lay_out(samples, members))
            members, prompts, used = [], set(), 0
            cost = len(sample.branch) + len(sample.prompt)
        members.append(index)
        prompts.add(sample.prompt)
        used += cost
    if members:
        packs.append(lay_out(samples, members))
    return packs


def lay_out(samples: Sequence[Sample], members: Sequence[int]) -> Pack:
    """One micro-batch of these samples, its prompts in order of first use."""
    prompts: dict[tuple[int, ...], int] = {}
    for index in members:
        prompts.setdefault(samples[index].prompt, len(prompts))
    ids = [token for prompt in prompts for token in prompt]
    positions = [position for prompt in prompts for position in range(len(prompt))]
    starts = starts_of([len(prompt) for prompt in prompts])
    branches, sources, targets, episodes = [], [], [], []
    for episode, index in enumerate(members):
        sample = samples[index]
        prompt, num_prompt = prompts[sample.prompt], len(sample.prompt)
        in_prompt, in_branch = starts[prompt], len(ids) - num_prompt
        sources += [place + (in_prompt if place < num_prompt else in_branch) for place in sample.sources]
        targets += sample.targets
        episodes += [episode] * len(sample.targets)
        branches.append((prompt, len(sample.branch)))
        ids += sample.branch
        positions += range(num_prompt, num_prompt + len(sample.branch))
    return Pack(
        samples=list(members),
        ids=ids,
        positions=positions,
        prompts=[len(prompt) for prompt in prompts],
        branches=branches,
        sources=sources,
        targets=targets,
        episodes=episodes,
    )


def starts_of(lengths: Sequence[int]) -> list[int]:
    """Where each run of these lengths starts when they lie one after the other."""
    return list(accumulate(lengths, initial=0))[:-1]
