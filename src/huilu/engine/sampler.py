"""Sampling: from logits to tokens and log-probabilities, for a whole batch at once.

Called by `engine` once an iteration. A draw depends on nothing but (seed, sample, position) and its logits, so a
sequence comes out the same whatever else is in the batch, and after being preempted. It keeps no state.

Shapes: N rows; V vocabulary; W tokens of a window; S = ceil(V / W) windows; C candidates of truncated rows, by
falling probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from huilu.core.generation import Sampling
from huilu.errors import TrainingUnhealthy

_WINDOW = 256
_CANDIDATES = 512
_MASK = (1 << 64) - 1


class Draw(NamedTuple):
    """One token to draw: the `position`-th new token (from 0) of sample number `sample`."""

    sampling: Sampling
    sample: int
    position: int


class Drawn(NamedTuple):
    """One drawn token, its log-probability in nats, and the most likely tokens' where asked for."""

    token_id: int
    logprob: float
    top_logprobs: dict[int, float]


def uniform(seed: int, sample: int, position: int) -> float:
    """A number in [0, 1) that depends on the arguments alone: splitmix64 (Steele et al. 2014) over each in turn."""
    state = 0
    for part in (seed, sample, position):
        state = (state ^ part) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return (state >> 11) * 2.0**-53


def draw_tokens(logits_NV: Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """Draw one token a row.

    Log-probabilities are of the full distribution at the row's temperature (1.0 when greedy), in float32,
    before top-k, top-p and min-p cut it. Greedy rows take the largest logit, the lowest id among equals.
    Raises TrainingUnhealthy when the weights have made logits that are not finite.
    """
    device = logits_NV.device
    probs_NV = _probabilities(logits_NV, draws)
    if probs_NV[:, 0].isnan().any():
        raise TrainingUnhealthy(
            "logits that are not finite",
            expected="weights that give a distribution",
            fix="go back to the last healthy version, and lower train.learning_rate or train.max_grad_norm",
        )
    tokens_N = torch.empty(len(draws), dtype=torch.int64, device=device)
    greedy = [row for row, draw in enumerate(draws) if draw.sampling.temperature == 0]
    whole = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0 and not _truncates(draw.sampling)]
    cut = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0 and _truncates(draw.sampling)]
    # Greedy looks at the logits: probabilities round, and may tie where logits do not.
    for rows, source_NV, choose in (
        (greedy, logits_NV, _most_likely),
        (whole, probs_NV, _from_all),
        (cut, probs_NV, _from_candidates),
    ):
        if rows:
            rows_N = torch.tensor(rows, device=device)
            chosen_NV = source_NV if len(rows) == len(draws) else source_NV[rows_N]
            tokens_N[rows_N] = choose(chosen_NV, [draws[row] for row in rows])
    logprobs_N = probs_NV.gather(1, tokens_N[:, None])[:, 0].log()
    tops = _top_logprobs(probs_NV, draws)
    return [Drawn(*drawn) for drawn in zip(tokens_N.tolist(), logprobs_N.tolist(), tops, strict=True)]


def _probabilities(logits_NV: Tensor, draws: Sequence[Draw]) -> Tensor:
    temperatures = [draw.sampling.temperature or 1.0 for draw in draws]
    if any(temperature != 1.0 for temperature in temperatures):
        logits_NV = logits_NV.float() / torch.tensor(temperatures, device=logits_NV.device)[:, None]
    return torch.softmax(logits_NV, -1, dtype=torch.float32)


def _truncates(sampling: Sampling) -> bool:
    return sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0


def _most_likely(logits_NV: Tensor, draws: Sequence[Draw]) -> Tensor:
    return logits_NV.argmax(-1)


def _from_all(probs_NV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Inverse of the cumulative distribution, by window and then inside one window.

    A cumulative sum over the whole vocabulary would cost several times more, and in float32 its steps near 1
    would swallow the tail.
    """
    num_rows, vocab_size = probs_NV.shape
    padded_NV = functional.pad(probs_NV, (0, -vocab_size % _WINDOW)) if vocab_size % _WINDOW else probs_NV
    windows_NSW = padded_NV.view(num_rows, -1, _WINDOW)
    window_N, rest_N = _invert(windows_NSW.sum(-1), _uniforms(draws, probs_NV.device))
    rows_N = torch.arange(num_rows, device=probs_NV.device)
    inside_N, _ = _invert(windows_NSW[rows_N, window_N], rest_N)
    return window_N * _WINDOW + inside_N


def _from_candidates(probs_NV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """As `_from_all`, over what top-k, then top-p of what is left, then min-p keep (the order of transformers).

    The vocabulary is sorted only when the best few hundred tokens do not settle what is kept.
    """
    vocab_size = probs_NV.shape[1]
    for num_candidates in (min(_CANDIDATES, vocab_size), vocab_size):
        sorted_NC, ids_NC = probs_NV.topk(num_candidates, dim=-1)
        kept_NC, settled = _keep(sorted_NC, [draw.sampling for draw in draws], vocab_size)
        if settled:
            break
    place_N, _ = _invert(kept_NC, _uniforms(draws, probs_NV.device))
    return ids_NC.gather(1, place_N[:, None])[:, 0]


def _keep(sorted_NC: Tensor, settings: Sequence[Sampling], vocab_size: int) -> tuple[Tensor, bool]:
    """The candidates' weights, 0 where cut, and whether no token after the last candidate could be kept."""
    device, num_candidates = sorted_NC.device, sorted_NC.shape[1]
    top_k_N1 = torch.tensor([[s.top_k or vocab_size] for s in settings], device=device)
    top_p_N1 = torch.tensor([[s.top_p] for s in settings], dtype=torch.float64, device=device)
    min_p_N1 = torch.tensor([[s.min_p] for s in settings], device=device)
    ranks_C = torch.arange(num_candidates, device=device)
    kept_NC = sorted_NC.double().masked_fill(ranks_C >= top_k_N1, 0.0)
    sums_NC = kept_NC.cumsum(-1)
    # What top-p is a share of: all that top-k left, which is 1 where it left everything.
    whole_N1 = torch.where(top_k_N1 < vocab_size, sums_NC[:, -1:], 1.0)
    nucleus_N1 = torch.where(top_p_N1 < 1, top_p_N1 * whole_N1, torch.inf)
    least_N1 = min_p_N1 * sorted_NC[:, :1]
    # A token is in the nucleus when those before it do not fill it yet; the first always is.
    outside_NC = ((sums_NC - kept_NC >= nucleus_N1) & (ranks_C > 0)) | (sorted_NC < least_N1)
    settled_N1 = (top_k_N1 <= num_candidates) | (
        (top_k_N1 >= vocab_size) & ((sums_NC[:, -1:] >= nucleus_N1) | (sorted_NC[:, -1:] < least_N1))
    )
    settled = num_candidates == vocab_size or bool(settled_N1.all())
    return kept_NC.masked_fill(outside_NC, 0.0), settled


def _invert(weights_NC: Tensor, uniforms_N: Tensor) -> tuple[Tensor, Tensor]:
    """Where `uniforms_N` in [0, 1) falls in each row's weights, and how far into that weight, again in [0, 1).

    Never on a weight of 0: the first cumulative sum above the target is one that a positive weight raised.
    """
    sums_NC = weights_NC.double().cumsum(-1)
    target_N1 = uniforms_N[:, None] * sums_NC[:, -1:]
    place_N1 = torch.searchsorted(sums_NC, target_N1, right=True)
    # Rounding may put the target on the total itself: then it is the last positive weight's.
    last_N1 = torch.searchsorted(sums_NC, sums_NC[:, -1:].contiguous())
    place_N1 = torch.minimum(place_N1, last_N1)
    end_N1 = sums_NC.gather(1, place_N1)
    weight_N1 = weights_NC.gather(1, place_N1).double()
    into_N1 = ((target_N1 - (end_N1 - weight_N1)) / weight_N1).clamp(0.0, 1.0 - 2.0**-53)
    return place_N1[:, 0], into_N1[:, 0]


def _uniforms(draws: Sequence[Draw], device: torch.device) -> Tensor:
    values = [uniform(draw.sampling.seed, draw.sample, draw.position) for draw in draws]
    return torch.tensor(values, dtype=torch.float64, device=device)


def _top_logprobs(probs_NV: Tensor, draws: Sequence[Draw]) -> list[dict[int, float]]:
    counts = [draw.sampling.num_top_logprobs for draw in draws]
    tops: list[dict[int, float]] = [{} for _ in draws]
    rows = [row for row, count in enumerate(counts) if count]
    if rows:
        values_NC, ids_NC = probs_NV[rows].topk(min(max(counts), probs_NV.shape[1]), dim=-1)
        for row, ids, values in zip(rows, ids_NC.tolist(), values_NC.log().tolist(), strict=True):
            tops[row] = dict(zip(ids[: counts[row]], values[: counts[row]], strict=True))
    return tops
