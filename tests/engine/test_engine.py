"""What comes out is what a plain full forward pass would give, however requests are batched, shared or preempted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from huilu.config.tree import Inference
from huilu.core.generation import Completion, Sampling
from huilu.engine.engine import Engine
from huilu.model.decoder import Decoder
from huilu.telemetry import Telemetry
from huilu.text.tokenizer import Tokenizer

Make = Callable[..., Any]
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
Outputs = dict[str, tuple[Completion, ...]]


def tokens(outputs: Outputs) -> dict[str, list[list[int]]]:
    return {name: [one.token_ids for one in completions] for name, completions in outputs.items()}


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_greedy_output_equals_a_full_recompute_token_for_token(
    family: str,
    block_size: int,
    make_decoder: Callable[..., Decoder],
    make_world: Make,
    make_prompt: Make,
    naive_greedy: Make,
) -> None:
    decoder = make_decoder(family)
    world = make_world(decoder, num_blocks=400 // block_size, block_size=block_size, prefill_tokens=32)
    prompts = {f"r{length}": make_prompt(length, seed=length) for length in (1, 2, 7, 16, 33, 70)}
    for name, prompt in prompts.items():
        world.submit(name, prompt, max_new_tokens=12, temperature=0.0)
    outputs = tokens(world.finish())
    assert outputs == {name: [naive_greedy(decoder, prompt, 12)] for name, prompt in prompts.items()}
    assert len({tuple(one[0]) for one in outputs.values()}) == len(prompts)


@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [
        ("cpu", torch.bfloat16, 0.1),
        pytest.param("cuda", torch.float32, 1e-4, marks=NEEDS_GPU),
        pytest.param("cuda", torch.bfloat16, 0.1, marks=NEEDS_GPU),
    ],
)
def test_other_devices_and_types_give_the_logprobs_of_a_plain_forward_pass(
    device: str,
    dtype: torch.dtype,
    tolerance: float,
    make_decoder: Callable[..., Decoder],
    make_world: Make,
    make_prompt: Make,
    full_logprobs: Make,
) -> None:
    decoder = make_decoder("llama", device=device).to(dtype)
    world = make_world(decoder, num_blocks=400)
    prompt = make_prompt(30)
    world.submit("r", prompt, n=6, max_new_tokens=12)
    for one in world.finish()["r"]:
        full = full_logprobs(decoder, prompt + one.token_ids)[len(prompt) - 1 : -1]
        expected = full.gather(1, torch.tensor(one.token_ids)[:, None])[:, 0].tolist()
        assert one.logprobs == pytest.approx(expected, abs=tolerance)


def submit_mixture(world: Any, make_prompt: Make, only: str | None = None) -> None:
    """Groups and single requests of several lengths and settings, two with a common prefix."""
    common = make_prompt(13, seed=1)
    requests: dict[str, tuple[list[int], dict[str, Any]]] = {
        "group": (make_prompt(18, seed=2), {"n": 5, "max_new_tokens": 15, "seed": 4}),
        "cold": ([*common, 5, 6], {"temperature": 0.0, "max_new_tokens": 9}),
        "warm": ([*common, 9], {"n": 2, "temperature": 1.4, "max_new_tokens": 20, "seed": 11}),
        "cut": (make_prompt(3, seed=3), {"top_k": 9, "top_p": 0.9, "max_new_tokens": 6, "seed": 12}),
        "long": (make_prompt(40, seed=4), {"min_p": 0.05, "max_new_tokens": 25, "seed": 13}),
    }
    for name, (prompt, sampling) in requests.items():
        if only in (None, name):
            world.submit(name, prompt, **sampling)


@pytest.fixture
def mixture_alone(decoder: Decoder, make_world: Make, make_prompt: Make) -> Outputs:
    """The mixture's outputs with each request on an engine of its own."""
    outputs: Outputs = {}
    for name in ("group", "cold", "warm", "cut", "long"):
        world = make_world(decoder, prefix_cache=False)
        submit_mixture(world, make_prompt, only=name)
        outputs |= world.finish()
    return outputs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefix_cache": False},
        {"prefill_tokens": 4},
        {"max_running": 1},
        {"max_running": 3, "prefill_tokens": 8},
        {"num_blocks": 17},
        {"num_blocks": 17, "prefix_cache": False, "prefill_tokens": 12},
        {"block_size": 7, "num_blocks": 12},
    ],
    ids=str,
)
def test_output_is_the_same_alone_batched_preempted_and_without_prefix_cache(
    settings: dict[str, Any], decoder: Decoder, make_world: Make, make_prompt: Make, mixture_alone: Outputs
) -> None:
    world = make_world(decoder, **settings)
    submit_mixture(world, make_prompt)
    outputs = world.finish()
    assert tokens(outputs) == tokens(mixture_alone)
    for name, completions in outputs.items():
        for one, alone in zip(completions, mixture_alone[name], strict=True):
            assert one.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    preemptions = world.engine.stats().num_preemptions
    assert (preemptions > 0) == ("num_blocks" in settings)
    assert world.engine.stats().num_held_blocks == 0


def test_the_same_seed_gives_the_same_samples_and_another_seed_others(
    decoder: Decoder, make_world: Make, make_prompt: Make
) -> None:
    outputs = []
    for seed in (3, 3, 4):
        world = make_world(decoder)
        world.submit("r", make_prompt(6), n=4, seed=seed)
        outputs.append(tokens(world.finish())["r"])
    assert outputs[0] == outputs[1]
    assert outputs[0] != outputs[2]
    assert len({tuple(sample) for sample in outputs[0]}) == 4


def test_a_sample_is_the_same_whether_its_whole_group_is_asked_for_or_a_part(
    decoder: Decoder, make_world: Make, make_prompt: Make
) -> None:
    world = make_world(decoder, num_blocks=24)
    world.submit("whole", make_prompt(9), n=6, max_new_tokens=10, seed=5)
    world.submit("part", make_prompt(9), n=3, max_new_tokens=10, seed=5, samples=(5, 1, 2))
    outputs = world.finish()
    assert [one.index for one in outputs["part"]] == [1, 2, 5]
    assert [one.token_ids for one in outputs["part"]] == [outputs["whole"][index].token_ids for index in (1, 2, 5)]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_equal_those_of_a_plain_forward_pass(
    temperature: float,
    family: str,
    make_decoder: Callable[..., Decoder],
    make_world: Make,
    make_prompt: Make,
    full_logprobs: Make,
) -> None:
    decoder = make_decoder(family)
    world = make_world(decoder, num_blocks=30, prefill_tokens=16)
    prompts = {name: make_prompt(length, seed=length) for name, length in (("a", 5), ("b", 21), ("c", 50))}
    for name, prompt in prompts.items():
        world.submit(name, prompt, n=3, max_new_tokens=15, temperature=temperature, num_top_logprobs=2)
    for name, completions in world.finish().items():
        prompt = prompts[name]
        for one in completions:
            full = full_logprobs(decoder, prompt + one.token_ids, temperature or 1.0)[len(prompt) - 1 : -1]
            expected = full.gather(1, torch.tensor(one.token_ids)[:, None])[:, 0].tolist()
            assert one.logprobs == pytest.approx(expected, abs=1e-4)
            for place, top in enumerate(one.top_logprobs):
                assert list(top.values()) == pytest.approx(full[place].topk(2).values.tolist(), abs=1e-4)


def test_a_groups_prompt_is_computed_once_even_when_it_does_not_fit_at_once(
    decoder: Decoder, make_world: Make, make_prompt: Make
) -> None:
    world = make_world(decoder, max_running=3, prefix_cache=False)
    world.submit("r", make_prompt(18), n=8, max_new_tokens=4, ignore_eos=True)
    completions = world.finish()["r"]
    stats = world.engine.stats()
    assert (stats.num_prefill_tokens, stats.num_generated_tokens, stats.num_preemptions) == (18, 32, 0)
    assert [one.num_cached_tokens for one in completions] == [0] + [18] * 7
    assert stats.kv_hit_ratio == pytest.approx(7 / 8)


def test_separate_requests_share_equal_prefixes_even_within_one_step(
    decoder: Decoder, make_world: Make, make_prompt: Make
) -> None:
    world = make_world(decoder)
    prompt = make_prompt(18)
    world.submit("first", prompt)
    world.submit("second", [*prompt[:17], 3])
    outputs = world.finish()
    world.submit("third", prompt)
    outputs |= world.finish()
    assert {name: one[0].num_cached_tokens for name, one in outputs.items()} == {"first": 0, "second": 16, "third": 16}
    assert world.engine.stats().num_prefill_tokens == 18 + 2 + 2


def test_a_later_turn_finds_the_tokens_that_were_sampled(
    decoder: Decoder, make_world: Make, make_prompt: Make, naive_greedy: Make
) -> None:
    world = make_world(decoder)
    prompt = make_prompt(10)
    world.submit("turn1", prompt, max_new_tokens=11, temperature=0.0, ignore_eos=True)
    answer = world.finish()["turn1"][0].token_ids
    follow_up = [*prompt, *answer, 7, 8, 9]
    world.submit("turn2", follow_up, max_new_tokens=5, temperature=0.0)
    second = world.finish()["turn2"][0]
    assert second.num_cached_tokens == 20
    assert second.token_ids == naive_greedy(decoder, follow_up, 5)


def test_new_weights_never_meet_old_kv(
    decoder: Decoder, make_decoder: Callable[..., Decoder], make_world: Make, make_prompt: Make, naive_greedy: Make
) -> None:
    world = make_world(decoder)
    world.engine.set_version(1, "v1")
    prompt = make_prompt(21)
    world.submit("old", prompt, temperature=0.0)
    before = world.finish()["old"][0]
    with torch.no_grad():
        for ours, others in zip(decoder.parameters(), make_decoder("llama", seed=9).parameters(), strict=True):
            ours.copy_(others)
    world.engine.set_version(2, "v2")
    world.submit("new", prompt, temperature=0.0)
    after = world.finish()["new"][0]
    assert before.token_ids != after.token_ids == naive_greedy(decoder, prompt, 8)
    assert after.num_cached_tokens == 0
    assert (set(before.versions), set(after.versions)) == ({1}, {2})


def test_samples_that_run_across_an_update_are_stamped_and_leave_nothing_behind(
    decoder: Decoder, make_world: Make, make_prompt: Make
) -> None:
    world = make_world(decoder)
    prompt = make_prompt(9)
    world.submit("across", prompt, max_new_tokens=8, ignore_eos=True)
    world.steps(3)
    world.engine.set_version(7, "v7")
    one = world.finish()["across"][0]
    assert one.versions == [0, 0, 0, 7, 7, 7, 7, 7]
    world.submit("again", [*prompt, *one.token_ids, 3])
    assert world.finish()["again"][0].num_cached_tokens == 0


def test_a_prompt_in_prefill_at_an_update_is_computed_again(
    decoder: Decoder, make_decoder: Callable[..., Decoder], make_world: Make, make_prompt: Make, naive_greedy: Make
) -> None:
    world = make_world(decoder, prefill_tokens=8)
    prompt = make_prompt(30)
    world.submit("r", prompt, temperature=0.0)
    world.steps(2)
    decoder.load_state_dict(make_decoder("llama", seed=9).state_dict())
    world.engine.set_version(1, "v1")
    assert world.finish()["r"][0].token_ids == naive_greedy(decoder, prompt, 8)


def test_log_probabilities_on_smollm2_equal_the_learners(
    smollm: tuple[Decoder, Tokenizer], full_logprobs: Make
) -> None:
    decoder, tokenizer = smollm
    engine = Engine(decoder, Inference(), tokenizer, Telemetry())
    prompts = [
        tokenizer.encode(text) for text in ("What is 12 + 7? Answer with", "The capital of France is the city of")
    ]
    for index, prompt in enumerate(prompts):
        engine.submit(f"r{index}", prompt, Sampling(max_new_tokens=10, n=4, ignore_eos=True), 1e18)
    outputs: Outputs = {}
    while engine.has_work:
        outputs |= {one.request_id: one.completions for one in engine.step()}
    assert len(outputs) == 2
    for index, prompt in enumerate(prompts):
        for one in outputs[f"r{index}"]:
            full = full_logprobs(decoder, prompt + one.token_ids)[len(prompt) - 1 : -1]
            expected = full.gather(1, torch.tensor(one.token_ids)[:, None])[:, 0].tolist()
            assert one.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module")
def smollm(smollm_dir: Any) -> tuple[Decoder, Tokenizer]:
    # Safetensors and gguf are slow to import for tests that load no model.
    from huilu.model.hf import load_decoder  # noqa: PLC0415

    return load_decoder(smollm_dir, verify=False), Tokenizer.load(smollm_dir)
