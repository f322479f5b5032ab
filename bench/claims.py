"""Claims: what a script of bench/ measured, against what it must reach; as a table, or as one JSON list.

Imported by the scripts beside it. The last full run of each claim is kept in recorded.json, with its date and
machine, so that `--quick`, which runs no peer, can show what the peer did then.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
RECORDED = Path(__file__).with_name("recorded.json")
CACHE = ROOT / "build" / "bench"


class Claim(msgspec.Struct, kw_only=True):
    """One figure. `bar` bounds `ratio`, ours over the peer's, or `ours` where there is no peer. None: no claim."""

    claim: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None
    bar: float | None = None
    holds: bool | None = None


def figure(claim: str, unit: str, ours: float) -> Claim:
    """A figure that is worth showing and claims nothing."""
    return Claim(claim=claim, unit=unit, ours=ours)


def at_least(claim: str, unit: str, ours: float, bar: float, **peer: Any) -> Claim:
    """The ratio to a peer, where there is one, or else the figure itself, must reach `bar`."""
    made = Claim(claim=claim, unit=unit, ours=ours, bar=bar, **peer)
    reached = made.ratio if made.peer_name else made.ours
    made.holds = None if reached is None else reached >= bar
    return made


def at_most(claim: str, unit: str, ours: float, bar: float, **peer: Any) -> Claim:
    """The ratio to a peer, where there is one, or else the figure itself, must not pass `bar`."""
    made = at_least(claim, unit, ours, bar, **peer)
    reached = made.ratio if made.peer_name else made.ours
    made.holds = None if reached is None else reached <= bar
    return made


def versus(ours: Sequence[float], peers: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Rates of interleaved runs against the fastest peer: its median, its name, and the median ratio of the pairs."""
    name = max(peers, key=lambda each: statistics.median(peers[each]))
    ratios = [mine / theirs for mine, theirs in zip(ours, peers[name], strict=True)]
    return {"peer": statistics.median(peers[name]), "peer_name": name, "ratio": statistics.median(ratios)}


def arguments(about: str | None, pairs: int | None = None) -> argparse.ArgumentParser:
    """What every script takes; `pairs` where it has a peer, or ourselves in another way, to take turns with."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one list of claims")
    parser.add_argument("--quick", action="store_true", help="ours only, once, in under 50 s; nothing is claimed")
    if pairs is not None:
        parser.add_argument("--pairs", type=int, default=pairs, help="interleaved runs of each side")
    parser.add_argument("--record", action="store_true", help=f"keep the figures in {RECORDED.name}")
    return parser


def show(found: list[Claim], wanted: argparse.Namespace) -> None:
    """Print the claims; a quick run claims nothing and shows what peers did when they ran last."""
    if wanted.quick:
        found = [_unclaimed(each) for each in found]
    elif wanted.record:
        record(found)
    if wanted.json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    table = Table(title=machine(), title_justify="left")
    for column in ("claim", "ours", "unit", "peer", "", "ratio", "bar", "holds"):
        table.add_column(column)
    for each in found:
        holds = {None: "", True: "yes", False: "[bold red]no[/]"}[each.holds]
        numbers = [_short(value) for value in (each.peer, each.ratio, each.bar)]
        table.add_row(
            each.claim, _short(each.ours), each.unit, numbers[0], each.peer_name or "", numbers[1], numbers[2], holds
        )
    Console().print(table)


def record(found: list[Claim]) -> None:
    """Keep these figures as the last ones of their claims."""
    kept = recorded()
    now = {"date": datetime.date.today().isoformat(), "machine": machine()}
    kept |= {each.claim: {**msgspec.to_builtins(each), **now} for each in found}
    RECORDED.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")


def recorded() -> dict[str, dict[str, Any]]:
    """The last full run of each claim."""
    kept: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return kept


def machine() -> str:
    """The class of machine, as far as speed goes."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    vector = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "")
    return " ".join(filter(None, [f"{os.cpu_count()} cores,", platform.machine(), vector]))


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def _unclaimed(one: Claim) -> Claim:
    if one.peer is not None:  # measured in this very run: a ceiling, or ourselves in another way
        one.holds = None
        return one
    last = recorded().get(one.claim, {})
    one.peer, one.peer_name = last.get("peer"), None
    if one.peer is not None:
        one.peer_name = f"{last['peer_name']}, recorded {last['date']}"
    one.ratio = one.holds = None
    return one


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
