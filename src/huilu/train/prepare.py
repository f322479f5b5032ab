"""From a claim to what is trained on: advantages, masks, token weights, minibatches. Plain numbers, no torch.

Called by the learner at the start of a step. Statistics are taken over everything that was judged, before anything is
left out: what is filtered from the loss still counts in its group's mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from huilu.algo.aggregation import token_weights
from huilu.algo.filters import is_zero_variance
from huilu.algo.methods import Method
from huilu.algo.packing import Sample, cut
from huilu.config.tree import Algorithm
from huilu.core.nouns import Claim, Episode, Outcome


class Minibatch(msgspec.Struct, frozen=True):
    """The samples of one optimiser step, in order of group and index, and the weight of each one's tokens.

    `chosen` are those that need computing; the others only count in the divisor.
    """

    samples: list[Sample]
    weights: list[float]
    chosen: list[int]

    @property
    def num_tokens(self) -> int:
        """Tokens in the loss's divisor."""
        return sum(len(sample.targets) for sample in self.samples)


class Lesson(msgspec.Struct, frozen=True):
    """A claim, prepared. `figures` describe it for the report."""

    minibatches: list[Minibatch]
    figures: dict[str, float]

    @property
    def has_signal(self) -> bool:
        return any(minibatch.chosen for minibatch in self.minibatches)


def prepare(claim: Claim, method: Method, settings: Algorithm, max_new_tokens: int) -> Lesson:
    """The claim's minibatches: its groups in order, cut into `settings.minibatches` runs of nearly equal count.

    An episode is left out of the loss and of its divisor when it has no reward, when the infrastructure failed it,
    when nothing of it was sampled, or when it was cut at the length limit and `mask_truncated` is set.
    """
    groups = [group.episodes for group in claim.groups]
    rewards = [[judged_reward(episode) for episode in group] for group in groups]
    shaped = [[_shaped(episode, method) for episode in group] for group in groups]
    advantages = method.advantages(shaped, [[episode.num_sampled for episode in group] for group in groups])
    by_group = [
        _samples(episodes, advantage, settings.mask_truncated)
        for episodes, advantage in zip(groups, advantages, strict=True)
    ]
    needs_every_token = settings.entropy_coef > 0 or (settings.kl is not None and settings.kl.coef > 0)
    minibatches = []
    for run in _runs(by_group, settings.minibatches):
        samples = [sample for group in run for sample in group]
        weights = token_weights([len(sample.targets) for sample in samples], method.aggregation, max_new_tokens)
        chosen = [index for index, sample in enumerate(samples) if needs_every_token or sample.advantage != 0]
        minibatches.append(Minibatch(samples, weights, chosen))
    return Lesson(minibatches, _figures(groups, rewards, sum(len(group) for group in by_group)))


def judged_reward(episode: Episode) -> float | None:
    """The episode's reward, or None when it was not judged or did not end by its own doing."""
    failed = episode.outcome in (Outcome.INFRA_FAILED, Outcome.CANCELLED)
    return None if failed else episode.reward


def longest_answer(episode: Episode) -> int:
    """Tokens of the longest turn: what the limit on new tokens bounds."""
    return max((turn.end - turn.start for turn in episode.turns), default=0)


def _shaped(episode: Episode, method: Method) -> float | None:
    reward = judged_reward(episode)
    return None if reward is None else reward + method.penalty(longest_answer(episode))


def _samples(episodes: Sequence[Episode], advantages: Sequence[float], mask_truncated: bool) -> list[Sample]:
    """The episodes of a group that are in the loss."""
    kept = []
    for episode, advantage in zip(episodes, advantages, strict=True):
        is_masked = mask_truncated and episode.outcome == Outcome.TRUNCATED
        sample = None if is_masked or judged_reward(episode) is None else cut(episode, advantage)
        if sample is not None:
            kept.append(sample)
    return kept


def _runs(groups: Sequence[list[Sample]], num_runs: int) -> list[Sequence[list[Sample]]]:
    """`groups` cut into at most `num_runs` runs that are not empty and differ by at most one group."""
    bounds = [len(groups) * index // num_runs for index in range(num_runs + 1)]
    return [groups[start:end] for start, end in pairwise(bounds) if end > start]


def _figures(
    groups: Sequence[Sequence[Episode]], rewards: Sequence[Sequence[float | None]], num_samples: int
) -> dict[str, float]:
    episodes = [episode for group in groups for episode in group]
    judged = [reward for group in rewards for reward in group if reward is not None]
    figures = {
        "num_groups": float(len(groups)),
        "num_episodes": float(len(episodes)),
        "num_masked": float(len(episodes) - num_samples),
        "num_zero_variance": float(sum(is_zero_variance(group) for group in rewards)),
    }
    if episodes:
        figures["response_tokens_mean"] = statistics.fmean(episode.num_sampled for episode in episodes)
        figures["truncated_frac"] = statistics.fmean(episode.outcome == Outcome.TRUNCATED for episode in episodes)
    if judged:
        figures["reward_mean"] = statistics.fmean(judged)
        figures["reward_std"] = statistics.pstdev(judged)
    return figures
