"""The quickstart over several seeds: held-out pass rate before and after, and wall time. No peer: TRL's figure for the
same model and task stands in the issue that asked for this. Claims: at least 0.8 after, for 4 of 5 seeds, in 6 minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
BAR_PASS_RATE, BAR_SEEDS_FRAC, BAR_WALL_S = 0.8, 0.8, 360.0


def one(seed: int, rounds: int | None) -> dict[str, Any]:
    """The summary of a run with this seed."""
    with tempfile.TemporaryDirectory(prefix="huilu-seeds-") as scratch:
        command = [
            sys.executable,
            "-m",
            "huilu",
            "run",
            str(RECIPE),
            "--run-dir",
            f"{scratch}/run",
            "--json",
            "--quiet",
        ]
        command += ["--set", f"seed={seed}", *(["--set", f"rounds={rounds}"] if rounds else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def main() -> None:
    """Run the seeds and print the claims."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--json", action="store_true", help="print one list of claims")
    arguments.add_argument("--quick", action="store_true", help="one seed, two rounds, nothing claimed")
    wanted = arguments.parse_args()
    runs = []
    for seed in range(1 if wanted.quick else wanted.seeds):
        found = one(seed, 2 if wanted.quick else None)
        runs.append(found)
        before, after = found["eval_before"]["pass_rate"], found["eval_after"]["pass_rate"]
        print(f"seed {seed}: {before:.2f} -> {after:.2f} in {found['wall_seconds']['total']:.0f} s", file=sys.stderr)
    passed = sum(found["eval_after"]["pass_rate"] >= BAR_PASS_RATE for found in runs) / len(runs)
    slowest = max(found["wall_seconds"]["total"] for found in runs)
    none = {"peer": None, "peer_name": None, "ratio": None}
    claims = [
        {
            "claim": f"seeds that end at {BAR_PASS_RATE} or better on 100 held-out sums",
            "unit": "share",
            "ours": passed,
            **none,
            "bar": BAR_SEEDS_FRAC,
            "holds": None if wanted.quick else passed >= BAR_SEEDS_FRAC,
        },
        {
            "claim": "the slowest seed's wall time",
            "unit": "s",
            "ours": slowest,
            **none,
            "bar": BAR_WALL_S,
            "holds": None if wanted.quick else slowest <= BAR_WALL_S,
        },
    ]
    if wanted.json:
        print(json.dumps(claims, indent=2))
    else:
        for claim in claims:
            print(
                f"{claim['claim']}: {claim['ours']:.2f} {claim['unit']} (bar {claim['bar']}; holds: {claim['holds']})"
            )


if __name__ == "__main__":
    main()
