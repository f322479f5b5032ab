"""Which advantages, loss and aggregation an algorithm is: the only place that knows algorithms by name.

Called by the learner, once. To add one: its settings in `config.tree.Algorithm`, a function here (or in a file of its
own) that returns a `Method`, and its line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from huilu.algo.advantages import (
    Advantages,
    Lengths,
    Rewards,
    batch_whitened,
    group_relative,
    leave_one_out,
    overlong_penalty,
)
from huilu.algo.aggregation import Aggregation
from huilu.algo.losses import Term, Tokens, capped_reinforce, clipped_ratio, sequence_ratio
from huilu.config.tree import Algorithm, Cispo, Dapo, DrGrpo, Grpo, Gspo, ReinforcePlusPlus, Rloo


def no_penalty(num_tokens: int) -> float:
    """Length changes no reward."""
    return 0.0


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """An algorithm as the learner executes it.

    `advantages(rewards, lengths)` on plain numbers; `term(tokens)` on tensors; `penalty(num_tokens)` is added to
    the reward of an episode whose longest answer has that many tokens.
    """

    advantages: Callable[[Rewards, Lengths], Advantages]
    term: Callable[[Tokens], Term]
    aggregation: Aggregation
    penalty: Callable[[int], float] = no_penalty


def method_of(algorithm: Algorithm, max_new_tokens: int) -> Method:
    """The method that these settings name. `max_new_tokens` is the longest answer of one turn."""
    return METHODS[type(algorithm)](algorithm, max_new_tokens)


def _grpo(settings: Grpo, _: int) -> Method:
    return Method(
        advantages=lambda rewards, lengths: group_relative(rewards, settings.scale),
        term=partial(clipped_ratio, low=settings.clip_low, high=settings.clip_high),
        aggregation=settings.aggregation,
    )


def _dr_grpo(settings: DrGrpo, _: int) -> Method:
    return Method(
        advantages=lambda rewards, lengths: group_relative(rewards, "none"),
        term=partial(clipped_ratio, low=settings.clip_low, high=settings.clip_high),
        aggregation="seq-mean-token-sum-norm",
    )


def _dapo(settings: Dapo, max_new_tokens: int) -> Method:
    return Method(
        advantages=lambda rewards, lengths: group_relative(rewards, "group"),
        term=partial(clipped_ratio, low=settings.clip_low, high=settings.clip_high),
        aggregation="token-mean",
        penalty=partial(overlong_penalty, limit=max_new_tokens, buffer=settings.overlong_buffer),
    )


def _rloo(settings: Rloo, _: int) -> Method:
    """The advantages of the paper with a ratio per token, as in verl; TRL's RLOO has one ratio a sequence."""
    return Method(
        advantages=lambda rewards, lengths: leave_one_out(rewards),
        term=partial(clipped_ratio, low=settings.clip_low, high=settings.clip_high),
        aggregation="token-mean",
    )


def _reinforce_plus_plus(settings: ReinforcePlusPlus, _: int) -> Method:
    return Method(
        advantages=partial(batch_whitened, baseline=settings.baseline),
        term=partial(clipped_ratio, low=settings.clip_low, high=settings.clip_high),
        aggregation="token-mean",
    )


def _gspo(settings: Gspo, _: int) -> Method:
    """Each sequence weighs one: the mean over its tokens of its one term."""
    return Method(
        advantages=lambda rewards, lengths: group_relative(rewards, "group"),
        term=partial(sequence_ratio, low=settings.clip_low, high=settings.clip_high),
        aggregation="seq-mean-token-mean",
    )


def _cispo(settings: Cispo, _: int) -> Method:
    return Method(
        advantages=lambda rewards, lengths: group_relative(rewards, "group"),
        term=partial(capped_reinforce, ratio_max=settings.ratio_max),
        aggregation="token-mean",
    )


METHODS: dict[type, Callable[[Any, int], Method]] = {
    Grpo: _grpo,
    DrGrpo: _dr_grpo,
    Dapo: _dapo,
    Rloo: _rloo,
    ReinforcePlusPlus: _reinforce_plus_plus,
    Gspo: _gspo,
    Cispo: _cispo,
}
