"""Draws follow the distribution that was asked for, and depend on nothing but their own row."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from huilu.core.generation import Sampling
from huilu.engine import sampler
from huilu.engine.sampler import Draw, draw_tokens, uniform
from huilu.errors import TrainingUnhealthy

torch.set_num_threads(1)


def logits(num_rows: int, vocab_size: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def draws(sampling: Sampling, count: int) -> list[Draw]:
    return [Draw(sampling, sample, 0) for sample in range(count)]


def chi_square(row_V: Tensor, sampling: Sampling, count: int, expected_V: Tensor) -> float:
    """The statistic of `count` draws from one row against the expected probabilities, per degree of freedom."""
    drawn = draw_tokens(row_V.expand(count, -1), draws(sampling, count))
    seen_V = torch.bincount(torch.tensor([one.token_id for one in drawn]), minlength=len(row_V))
    assert not seen_V[expected_V == 0].any()
    likely_V = expected_V * count >= 5
    rest = torch.tensor([count * expected_V[~likely_V].sum(), seen_V[~likely_V].sum()])
    expected = torch.cat((expected_V[likely_V] * count, rest[:1].clamp(min=1e-9)))
    seen = torch.cat((seen_V[likely_V].float(), rest[1:]))
    return float(((seen - expected) ** 2 / expected).sum() / likely_V.sum())


def warped(row_V: Tensor, sampling: Sampling) -> Tensor:
    """The probabilities that transformers samples from."""
    generation: Any = transformers.generation.logits_process
    row_1V = row_V[None] / sampling.temperature
    if sampling.top_k:
        row_1V = generation.TopKLogitsWarper(sampling.top_k)(None, row_1V)
    if sampling.top_p < 1:
        row_1V = generation.TopPLogitsWarper(sampling.top_p)(None, row_1V)
    if sampling.min_p:
        row_1V = generation.MinPLogitsWarper(sampling.min_p)(None, row_1V)
    return row_1V[0].softmax(-1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    ],
)
@pytest.mark.parametrize("vocab_size", [40, 700])
def test_draws_follow_the_distribution_of_transformers(settings: dict[str, Any], vocab_size: int) -> None:
    sampling = Sampling(max_new_tokens=1, seed=7, **settings)
    row_V = logits(1, vocab_size)[0]
    # For more than ten degrees of freedom chi-square over them is above 2.5 once in ten thousand.
    assert chi_square(row_V, sampling, 20_000, warped(row_V, sampling)) < 2.5


def test_a_flat_distribution_is_settled_by_looking_at_the_whole_vocabulary() -> None:
    row_V = logits(1, 3000, scale=0.1)[0]
    sampling = Sampling(max_new_tokens=1, top_p=0.9)
    drawn = {one.token_id for one in draw_tokens(row_V.expand(8000, -1), draws(sampling, 8000))}
    allowed = set(warped(row_V, sampling).nonzero()[:, 0].tolist())
    assert drawn <= allowed
    assert len(drawn) > 0.9 * len(allowed)


def test_the_tail_is_drawn_as_often_as_it_should_be() -> None:
    """One draw in 300 goes to some of 150,000 rare tokens at the end: float32 sums near 1 would lose them."""
    row_V = torch.zeros(150_001)
    row_V[0] = math.log(150_000 * 299)
    batch = draws(Sampling(max_new_tokens=1), 3000)
    drawn = [one for place in range(0, 3000, 100) for one in draw_tokens(row_V.expand(100, -1), batch[place:][:100])]
    assert 2 <= sum(one.token_id > 0 for one in drawn) <= 22  # 10 expected, standard deviation 3.2


def test_greedy_takes_the_largest_logit_and_the_lowest_id_among_equals() -> None:
    rows_NV = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0], [0.0, 0.0, -1.0, 1e-3]])
    drawn = draw_tokens(rows_NV, draws(Sampling(max_new_tokens=1, temperature=0.0), 3))
    assert [one.token_id for one in drawn] == [1, 0, 3]


def test_greedy_tells_logits_apart_that_have_equal_probabilities() -> None:
    close_V = torch.tensor([100.0, 100.0 + 7.63e-6])
    assert close_V[0] != close_V[1]
    assert draw_tokens(close_V[None], draws(Sampling(max_new_tokens=1, temperature=0.0), 1))[0].token_id == 1


def test_logprobs_are_of_the_full_distribution_at_the_temperature_and_at_one_when_greedy() -> None:
    rows_NV = logits(3, 300)
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 3},
        {"temperature": 1.0, "top_p": 0.3},
    ]
    batch = [Draw(Sampling(max_new_tokens=1, **given), 0, 0) for given in settings]
    for row_V, temperature, one in zip(rows_NV, (1.0, 0.7, 1.0), draw_tokens(rows_NV, batch), strict=True):
        expected = (row_V / temperature).log_softmax(-1)[one.token_id]
        assert one.logprob == pytest.approx(float(expected), abs=1e-5)


def test_top_logprobs_are_the_most_likely_tokens_of_the_rows_that_asked() -> None:
    rows_NV = logits(2, 50)
    batch = [Draw(Sampling(max_new_tokens=1, num_top_logprobs=count), 0, 0) for count in (3, 0)]
    first, second = draw_tokens(rows_NV, batch)
    values, ids = rows_NV[0].log_softmax(-1).topk(3)
    assert list(first.top_logprobs) == ids.tolist()
    assert list(first.top_logprobs.values()) == pytest.approx(values.tolist(), abs=1e-5)
    assert second.top_logprobs == {}


def test_a_row_is_drawn_the_same_in_any_batch() -> None:
    rows_NV = logits(6, 300)
    settings: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"top_k": 5}, {"temperature": 0.5}, {"top_p": 0.5}, {}]
    batch = [Draw(Sampling(max_new_tokens=1, seed=3, **given), row, row) for row, given in enumerate(settings)]
    together = [one.token_id for one in draw_tokens(rows_NV, batch)]
    alone = [draw_tokens(rows_NV[row : row + 1], batch[row : row + 1])[0].token_id for row in range(6)]
    assert together == alone


def test_uniforms_depend_on_seed_sample_and_position_and_are_uniform() -> None:
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    assert len({uniform(1, 2, 3), uniform(2, 1, 3), uniform(1, 3, 2), uniform(0, 2, 3)}) == 4
    values = torch.tensor([uniform(seed, sample, 5) for seed in range(100) for sample in range(100)])
    assert values.min() >= 0
    assert values.max() < 1
    counts = torch.histc(values, bins=20, min=0, max=1)
    assert float(((counts - 500) ** 2 / 500).sum()) < 45  # chi-square of 19 degrees of freedom, once in a thousand


@pytest.mark.parametrize(("value", "token_id"), [(0.0, 2), (1 - 2.0**-53, 597)])
@pytest.mark.parametrize("top_k", [0, 599])
def test_a_token_without_probability_is_never_drawn(
    value: float, token_id: int, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_V = torch.linspace(2, 1, 600)
    row_V[:2] = row_V[598:] = -math.inf
    monkeypatch.setattr(sampler, "uniform", lambda *_: value)
    (one,) = draw_tokens(row_V[None], draws(Sampling(max_new_tokens=1, top_k=top_k), 1))
    assert one.token_id == token_id


def test_the_uniforms_are_those_of_splitmix64() -> None:
    """The first output of splitmix64 seeded with 0 is 0xE220A8397B1DCDAF (Vigna's reference code)."""
    mixed = 0xE220A8397B1DCDAF
    for _ in range(2):
        mixed = (mixed + 0x9E3779B97F4A7C15) % 2**64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    assert uniform(0, 0, 0) == (mixed >> 11) / 2**53


def test_logits_that_are_not_finite_are_refused_by_name() -> None:
    rows_NV = logits(2, 10)
    rows_NV[1, 4] = math.nan
    with pytest.raises(TrainingUnhealthy, match="not finite"):
        draw_tokens(rows_NV, draws(Sampling(max_new_tokens=1), 2))
