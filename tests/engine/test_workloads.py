"""Random workloads: whatever happens around it, every sample is what its request alone gives, and no block is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from huilu.core.generation import Sampling
from huilu.engine.sampler import Draw, draw_tokens
from huilu.model.decoder import Decoder, causal_attend

Make = Callable[..., Any]
EOS = 1
# Prompts with common beginnings, so that the prefix cache has something to find.
PROMPTS = [[7, 8, 9, 10, 11, 12, 13, 14, 15][:length] + tail for length in (0, 4, 9) for tail in ([2], [3, 4, 5, 6, 2])]
SAMPLINGS = [
    Sampling(max_new_tokens=1, n=2),
    Sampling(max_new_tokens=9, n=3, seed=1),
    Sampling(max_new_tokens=12, temperature=0.0),
    Sampling(max_new_tokens=6, n=4, top_k=5, ignore_eos=True, seed=2),
]
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, len(PROMPTS) - 1), st.integers(0, len(SAMPLINGS) - 1)),
    st.tuples(st.just("step"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 3), st.just(0)),
    st.tuples(st.sampled_from(["pause", "resume", "abort", "version"]), st.just(0), st.just(0)),
)
ENGINES = st.fixed_dictionaries(
    {
        "block_size": st.integers(1, 6),
        "max_running": st.integers(1, 6),
        "prefill_tokens": st.integers(1, 24),
        "prefix_cache": st.booleans(),
    }
)


@pytest.fixture(scope="module")
def expected() -> Callable[[Decoder, int, int], list[list[int]]]:
    """What each request gives alone, by recomputing everything for every token."""
    known: dict[tuple[int, int, int], list[int]] = {}

    @torch.no_grad()
    def alone(decoder: Decoder, prompt: int, sampling: int, index: int) -> list[int]:
        token_ids, asked = list(PROMPTS[prompt]), SAMPLINGS[sampling]
        for position in range(asked.max_new_tokens):
            ids_T, places_T = torch.tensor(token_ids), torch.arange(len(token_ids))
            hidden_TD = decoder.hidden(ids_T, places_T, causal_attend([len(token_ids)]))
            (drawn,) = draw_tokens(decoder.logits(hidden_TD[-1:]), [Draw(asked, index, position)])
            token_ids.append(drawn.token_id)
            if drawn.token_id == EOS and not asked.ignore_eos:
                break
        return token_ids[len(PROMPTS[prompt]) :]

    def compute(decoder: Decoder, prompt: int, sampling: int) -> list[list[int]]:
        for index in range(SAMPLINGS[sampling].n):
            if (prompt, sampling, index) not in known:
                known[prompt, sampling, index] = alone(decoder, prompt, sampling, index)
        return [known[prompt, sampling, index] for index in range(SAMPLINGS[sampling].n)]

    return compute


def act(world: Any, action: str, argument: int, submitted: dict[str, tuple[int, int]], choice: int) -> dict[str, Any]:
    engine = world.engine
    match action:
        case "submit":
            name = f"r{len(submitted)}"
            submitted[name] = (argument, choice)
            engine.submit(name, PROMPTS[argument], SAMPLINGS[choice], world.clock[0] + 6)
        case "step":
            outputs: dict[str, Any] = world.steps(argument)
            return outputs
        case "cancel":
            engine.cancel(f"r{argument}")
        case "wait":
            world.clock[0] += argument
        case "version":
            engine.set_version(len(submitted), f"v{len(submitted)}")
        case "abort":
            engine.abort_running()
        case _:
            getattr(engine, action)()
    return {}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(engine=ENGINES, spare_blocks=st.integers(0, 12), actions=st.lists(ACTIONS, min_size=5, max_size=30))
def test_every_sample_is_what_its_request_alone_gives(
    decoder: Decoder,
    make_world: Make,
    expected: Callable[[Decoder, int, int], list[list[int]]],
    engine: dict[str, Any],
    spare_blocks: int,
    actions: list[tuple[str, int, int]],
) -> None:
    longest = max(map(len, PROMPTS)) + 12
    world = make_world(decoder, num_blocks=-(-longest // engine["block_size"]) + spare_blocks, **engine)
    submitted: dict[str, tuple[int, int]] = {}
    outputs: dict[str, Any] = {}
    for action, argument, choice in actions:
        outputs |= act(world, action, argument, submitted, choice)
        world.engine.check_integrity()
    world.engine.resume()
    outputs |= world.finish()
    assert outputs.keys() == submitted.keys()
    for name, completions in outputs.items():
        for one, alone in zip(completions, expected(decoder, *submitted[name]), strict=True):
            whole = one.finish_reason in ("stop", "length")
            assert one.token_ids == (alone if whole else alone[: len(one.token_ids)])
    assert world.engine.stats().num_held_blocks == 0
    world.engine.check_integrity()
