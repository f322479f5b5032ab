"""Packing: every trained token exactly once, read after what it may see, and prompts read once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from huilu.algo.packing import Pack, Sample, cut, pack
from huilu.core.nouns import Episode, Outcome, Turn
from huilu.errors import Invariant


def episode(token_ids: list[int], loss_mask: list[bool]) -> Episode:
    return Episode(
        id="t0.e0",
        task_id="t0",
        round=0,
        index=0,
        env="arithmetic",
        version=0,
        token_ids=token_ids,
        logprobs=[-0.1 * place if sampled else 0.0 for place, sampled in enumerate(loss_mask)],
        loss_mask=loss_mask,
        turns=(Turn(0, 0),),
        text="",
        outcome=Outcome.OK,
        finish_reason="stop",
        reward=1.0,
    )


def mask(text: str) -> list[bool]:
    return [sign == "x" for sign in text]


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    """Groups of episodes, a prompt each, some with several turns, tokens unique so that places can be told."""
    found, token = [], 0
    for _ in range(draw(st.integers(1, 4))):
        prompt = list(range(token, token := token + draw(st.integers(1, 6))))
        for _ in range(draw(st.integers(1, 4))):
            rest = draw(st.lists(st.booleans(), min_size=0, max_size=8))
            ids = list(range(token, token := token + 1 + len(rest)))
            one = cut(episode(prompt + ids, [False] * len(prompt) + [True, *rest]), advantage=1.0)
            assert one is not None
            found.append(one)
    return found


def reading(packed: Pack, episode_number: int) -> list[int]:
    """What the branch of an episode sees: its prompt and itself, as the layout says."""
    prompt, length = packed.branches[episode_number]
    start = sum(packed.prompts[:prompt])
    before = sum(packed.prompts) + sum(length for _, length in packed.branches[:episode_number])
    return packed.ids[start : start + packed.prompts[prompt]] + packed.ids[before : before + length]


@given(samples(), st.integers(1, 40))
def test_every_target_is_predicted_once_by_the_token_before_it(found: list[Sample], budget: int) -> None:
    packs = pack(found, range(len(found)), budget)
    assert [index for packed in packs for index in packed.samples] == list(range(len(found)))
    for packed in packs:
        assert packed.targets == [target for index in packed.samples for target in found[index].targets]
        for source, target, number in zip(packed.sources, packed.targets, packed.episodes, strict=True):
            sample = found[packed.samples[number]]
            read = [*sample.prompt, *sample.branch]
            place = sample.sources[sample.targets.index(target)]
            assert packed.ids[source] == read[place]
            assert packed.positions[source] == place
            assert reading(packed, number) == read


@given(samples(), st.integers(1, 40))
def test_a_micro_batch_keeps_its_budget_unless_one_episode_alone_exceeds_it(found: list[Sample], budget: int) -> None:
    for packed in pack(found, range(len(found)), budget):
        assert len(packed.ids) <= budget or len(packed.samples) == 1
        assert len(packed.ids) == sum(packed.prompts) + sum(length for _, length in packed.branches)


@given(samples(), st.integers(1, 40))
def test_a_prompt_is_read_once_a_micro_batch(found: list[Sample], budget: int) -> None:
    for packed in pack(found, range(len(found)), budget):
        assert len(packed.prompts) == len({found[index].prompt for index in packed.samples})


def test_only_chosen_samples_are_packed_in_the_order_given() -> None:
    found = [cut(episode([1, 2, 3 + n], mask("..x")), 1.0) for n in range(4)]
    packs = pack([one for one in found if one], [3, 1], 100)
    assert [packed.samples for packed in packs] == [[3, 1]]
    assert packs[0].targets == [6, 4]


def test_the_last_sampled_token_is_predicted_but_not_read() -> None:
    sample = cut(episode([1, 2, 3, 4, 5], mask("..xx.")), 1.0)
    assert sample is not None
    assert (sample.prompt, sample.branch) == ((1, 2), [3])
    assert (sample.sources, sample.targets) == ([1, 2], [3, 4])
    assert sample.rollout_logprobs == pytest.approx([-0.2, -0.3])


def test_tokens_between_turns_are_read_and_not_trained() -> None:
    sample = cut(episode([1, 2, 3, 4, 5, 6], mask(".x..xx")), 1.0)
    assert sample is not None
    assert (sample.prompt, sample.branch) == ((1,), [2, 3, 4, 5])
    assert (sample.sources, sample.targets) == ([0, 3, 4], [2, 5, 6])


def test_an_episode_without_a_sampled_token_is_no_sample() -> None:
    assert cut(episode([1, 2, 3], mask("...")), 1.0) is None


def test_training_on_the_first_token_is_a_broken_promise() -> None:
    with pytest.raises(Invariant, match="first token"):
        cut(episode([1, 2], mask("xx")), 1.0)
