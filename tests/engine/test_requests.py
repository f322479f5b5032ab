"""Requests end for the right reason, hold nothing afterwards, and are refused at once where they could never end."""

from __future__ import annotations

import itertools
import math
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from huilu.config.tree import Inference
from huilu.core.generation import Completion, Sampling
from huilu.engine.engine import Engine
from huilu.errors import BadConfig, QueueFull, Usage
from huilu.model.decoder import Decoder
from huilu.telemetry import Telemetry
from huilu.text.tokenizer import Tokenizer

Make = Callable[..., Any]


@pytest.fixture
def world(decoder: Decoder, make_world: Make) -> Any:
    return make_world(decoder)


def only(outputs: dict[str, tuple[Completion, ...]]) -> Completion:
    ((completion,),) = outputs.values()
    return completion


def sampled(decoder: Decoder, make_world: Make, prompt: list[int], **sampling: Any) -> Completion:
    world = make_world(decoder)
    world.submit("r", prompt, **{"max_new_tokens": 40, "ignore_eos": True, "seed": 1, **sampling})
    return only(world.finish())


def test_output_ends_at_the_requested_length(decoder: Decoder, make_world: Make) -> None:
    one = sampled(decoder, make_world, [3, 4], max_new_tokens=5)
    assert (one.finish_reason, len(one.token_ids), one.text_end, len(one.logprobs)) == ("length", 5, 5, 5)


def test_an_eos_ends_a_sample_and_is_no_text(decoder: Decoder, make_world: Make) -> None:
    free = sampled(decoder, make_world, [3, 4], max_new_tokens=100)
    place = free.token_ids.index(1)
    one = sampled(decoder, make_world, [3, 4], max_new_tokens=100, ignore_eos=False)
    assert one.token_ids == free.token_ids[: place + 1]
    assert (one.finish_reason, one.text_end) == ("stop", place)


def test_a_stop_id_ends_a_sample_even_when_the_eos_does_not(decoder: Decoder, make_world: Make) -> None:
    free = sampled(decoder, make_world, [3, 4])
    stop_id = free.token_ids[6]
    one = sampled(decoder, make_world, [3, 4], stop_ids=(stop_id,))
    place = free.token_ids.index(stop_id)
    assert one.token_ids == free.token_ids[: place + 1]
    assert (one.finish_reason, one.text_end) == ("stop", place)


def test_a_stop_string_is_found_across_token_borders(decoder: Decoder, make_world: Make, letters: Tokenizer) -> None:
    free = sampled(decoder, make_world, [3, 4])
    pieces = [letters.decode([id_]) for id_ in free.token_ids]
    stop = pieces[4][-1] + pieces[5] + pieces[6][0]
    one = sampled(decoder, make_world, [3, 4], stop=("@@@", stop))
    assert one.token_ids == free.token_ids[:7]
    assert (one.finish_reason, one.text_end) == ("stop", 4)


@pytest.mark.parametrize("num_steps", [1, 2, 6])
def test_a_cancelled_request_returns_what_it_has_and_frees_its_blocks(world: Any, num_steps: int) -> None:
    world.submit("gone", list(range(2, 20)), n=3, max_new_tokens=30, ignore_eos=True)
    world.submit("stays", [5, 6], max_new_tokens=2)
    world.steps(num_steps)
    world.engine.cancel("gone")
    outputs = world.finish()
    assert [one.finish_reason for one in outputs["gone"]] == ["cancelled"] * 3
    assert [len(one.token_ids) for one in outputs["gone"]] == [num_steps] * 3
    assert world.engine.stats().num_held_blocks == 0


def test_a_request_that_has_ended_or_never_was_can_be_cancelled(world: Any) -> None:
    world.submit("r", [2])
    assert list(world.finish()) == ["r"]
    world.engine.cancel("r")
    world.engine.cancel("nobody")
    assert not world.engine.has_work


def test_a_request_past_its_deadline_keeps_its_tokens_so_far(world: Any) -> None:
    world.submit("late", [2, 3], deadline=10.0, max_new_tokens=30, ignore_eos=True)
    world.steps(4)
    world.clock[0] = 10.0
    one = only(world.finish())
    assert (one.finish_reason, len(one.token_ids)) == ("timeout", 4)
    assert world.engine.stats().num_held_blocks == 0


def test_a_request_that_waits_past_its_deadline_ends_without_tokens(decoder: Decoder, make_world: Make) -> None:
    world = make_world(decoder, max_running=1)
    world.submit("first", [2], max_new_tokens=20, ignore_eos=True)
    world.submit("late", [3], deadline=5.0, n=2)
    world.steps(2)
    world.clock[0] = 6.0
    outputs = world.finish()
    assert [(one.finish_reason, one.token_ids) for one in outputs["late"]] == [("timeout", [])] * 2
    assert outputs["first"][0].finish_reason == "length"


def test_an_abort_ends_what_has_begun_and_leaves_what_waits(decoder: Decoder, make_world: Make) -> None:
    world = make_world(decoder, max_running=2)
    world.submit("begun", [2, 3], n=4, max_new_tokens=9, ignore_eos=True)
    world.submit("waits", [4, 5], max_new_tokens=2, ignore_eos=True)
    world.steps(3)
    world.engine.abort_running()
    assert world.engine.num_running == 0
    outputs = world.finish()
    assert [one.finish_reason for one in outputs["begun"]] == ["aborted"] * 4
    assert [len(one.token_ids) for one in outputs["begun"]] == [3, 3, 0, 0]
    assert outputs["waits"][0].finish_reason == "length"


def test_a_pause_lets_begun_requests_end_and_begins_no_other(decoder: Decoder, make_world: Make) -> None:
    world = make_world(decoder, num_blocks=10, max_running=4)
    world.submit("begun", list(range(2, 14)), n=4, max_new_tokens=20, ignore_eos=True)
    world.submit("waits", [4, 5])
    world.steps(1)
    world.engine.pause()
    assert world.engine.num_running == 4
    outputs = world.finish()
    assert list(outputs) == ["begun"]
    assert world.engine.stats().num_preemptions > 0
    assert world.engine.num_running == 0
    world.engine.resume()
    assert list(world.finish()) == ["waits"]


def test_requests_are_served_in_the_order_of_arrival(decoder: Decoder, make_world: Make) -> None:
    world = make_world(decoder, max_running=1)
    for name in ("a", "b", "c"):
        world.submit(name, [2, 3], max_new_tokens=3, ignore_eos=True)
    assert list(world.finish()) == ["a", "b", "c"]


def test_who_came_last_makes_way_when_blocks_run_out(decoder: Decoder, make_world: Make) -> None:
    world = make_world(decoder, num_blocks=8, block_size=4)
    world.submit("first", [2, 3, 4], max_new_tokens=20, ignore_eos=True)
    world.submit("second", [2, 3, 5], max_new_tokens=20, ignore_eos=True)
    lengths: dict[str, int] = {}
    for step in range(1, 60):
        lengths |= dict.fromkeys(world.steps(1), step)
    assert world.engine.stats().num_preemptions > 0
    assert lengths["first"] == 20 < lengths["second"]


def test_an_iteration_computes_no_more_prompt_tokens_than_allowed(decoder: Decoder, make_world: Make) -> None:
    world = make_world(decoder, prefill_tokens=16)
    for length in (5, 9, 3, 40, 8, 16, 2):
        world.submit(f"r{length}", list(range(2, 2 + length)), max_new_tokens=3)
    counts = [0]
    while world.engine.has_work:
        world.engine.step()
        counts.append(world.engine.stats().num_prefill_tokens)
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 16


def test_at_most_max_running_samples_decode_at_once_and_no_slot_is_ever_empty(
    decoder: Decoder, make_world: Make
) -> None:
    world = make_world(decoder, max_running=3)
    for index in range(4):
        world.submit(f"r{index}", [2, 3, index + 4], n=2, max_new_tokens=3 + 2 * index, ignore_eos=True)
    most, num_steps = 0.0, 0
    while world.engine.has_work:
        world.engine.step()
        most = max(most, world.telemetry.value("huilu_engine_running"))
        num_steps += 1
    assert most == 3
    # Jobs of 3, 3, 5, 5, 7, 7, 9, 9 tokens taken in turn by three slots: 3+5+9, 3+7+9, 5+7.
    assert num_steps == 19


def test_a_full_queue_refuses_and_takes_again_once_there_is_room(decoder: Decoder, make_world: Make) -> None:
    world = make_world(decoder, max_waiting=2)
    world.submit("a", [2])
    world.submit("b", [2])
    with pytest.raises(QueueFull, match="2 requests wait"):
        world.submit("c", [2])
    world.steps(1)
    world.submit("c", [2])
    assert set(world.finish()) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("prompt", "sampling", "match"),
    [
        ([], {}, "empty prompt"),
        ([2, 60], {}, "outside the vocabulary"),
        ([-1], {}, "outside the vocabulary"),
        ([2], {"stop_ids": (60,)}, "outside the vocabulary"),
        ([2] * 100, {"max_new_tokens": 29}, "sequence of 129 tokens"),
        ([2], {"max_new_tokens": 0}, "max_new_tokens"),
        ([2], {"temperature": -0.1}, "temperature"),
        ([2], {"temperature": math.nan}, "temperature"),
        ([2], {"temperature": math.inf}, "temperature"),
        ([2], {"top_p": 0.0}, "top_p"),
        ([2], {"top_p": 1.1}, "top_p"),
        ([2], {"top_k": -1}, "top_k"),
        ([2], {"min_p": 1.5}, "min_p"),
        ([2], {"n": 0}, "n 0"),
        ([2], {"n": 1 << 40}, "n 10995"),
        ([2], {"n": 3, "samples": (0, 1)}, "samples"),
        ([2], {"n": 2, "samples": (1, 1)}, "samples"),
        ([2], {"stop": ("",)}, "stop"),
        ([2], {"num_top_logprobs": 61}, "num_top_logprobs"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    world: Any, prompt: list[int], sampling: dict[str, Any], match: str
) -> None:
    with pytest.raises(Usage, match=match):
        world.submit("r", prompt, **sampling)
    assert not world.engine.has_work


def test_a_request_that_all_blocks_could_not_hold_is_refused_and_the_largest_that_fits_is_served(
    decoder: Decoder, make_world: Make
) -> None:
    world = make_world(decoder, num_blocks=5, block_size=4)
    with pytest.raises(Usage, match="KV cache"):
        world.submit("r", [2] * 11, max_new_tokens=11)
    world.submit("r", [2] * 11, n=8, max_new_tokens=10, ignore_eos=True)
    assert [len(one.token_ids) for one in world.finish()["r"]] == [10] * 8


def test_an_id_can_be_used_again_only_after_its_request_ended(world: Any) -> None:
    world.submit("r", [2])
    with pytest.raises(Usage, match="here already"):
        world.submit("r", [3])
    world.finish()
    world.submit("r", [3])
    assert list(world.finish()) == ["r"]


def test_a_cache_too_small_for_one_block_is_refused(decoder: Decoder, letters: Tokenizer) -> None:
    with pytest.raises(BadConfig, match="kv_bytes"):
        Engine(decoder, Inference(kv_bytes=100), letters, Telemetry())


@pytest.mark.parametrize("point", ["mid-prefill", "mid-decode"])
def test_the_kill_points_are_reached(
    point: str, decoder: Decoder, letters: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: kills.append(number))
    engine = Engine(decoder, Inference(kv_bytes=1 << 20), letters, Telemetry(kill_at=f"{point}:2"))
    for name in ("a", "b"):
        engine.submit(name, [2, 3], Sampling(max_new_tokens=4, ignore_eos=True), 1e9)
    while engine.has_work:
        engine.step()
    assert kills == [signal.SIGKILL]
