"""Claims say what was measured: bars, ratios of pairs, and what a quick run may not say."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import claims
import pytest

PEER = {"peer": 100.0, "peer_name": "other 1.0"}


@pytest.mark.parametrize(("ratio", "holds"), [(1.4, True), (1.39, False), (None, None)])
def test_a_claim_against_a_peer_holds_by_its_ratio(ratio: float | None, holds: bool | None) -> None:
    assert claims.at_least("speed", "tokens/s", 1e9, 1.4, **PEER, ratio=ratio).holds is holds


@pytest.mark.parametrize(("ours", "holds"), [(50.0, True), (50.1, False)])
def test_a_claim_without_a_peer_holds_by_its_figure(ours: float, holds: bool) -> None:
    assert claims.at_most("wait", "ms", ours, 50.0).holds is holds


def test_the_fastest_peer_is_the_one_to_beat_and_its_ratio_is_the_median_of_the_pairs() -> None:
    found = claims.versus([10.0, 30.0, 20.0], {"slow": [1.0, 1.0, 1.0], "fast": [5.0, 10.0, 20.0]})
    assert found == {"peer": 10.0, "peer_name": "fast", "ratio": 2.0}


def shown(
    found: list[claims.Claim], capsys: pytest.CaptureFixture[str], *, quick: bool, record: bool = False
) -> list[dict[str, object]]:
    claims.show(found, argparse.Namespace(json=True, quick=quick, record=record))
    printed: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return printed


def test_a_quick_run_claims_nothing_and_shows_what_the_peer_did_when_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(claims, "RECORDED", tmp_path / "recorded.json")
    full = claims.at_least("speed", "tokens/s", 150.0, 1.4, **PEER, ratio=1.5)
    (told,) = shown([full], capsys, quick=False, record=True)
    assert list(told) == ["claim", "unit", "ours", "peer", "peer_name", "ratio", "bar", "holds"]
    assert (told["ratio"], told["holds"]) == (1.5, True)

    known, unknown = shown(
        [claims.at_least("speed", "tokens/s", 90.0, 1.4), claims.at_least("other", "tokens/s", 90.0, 1.4)],
        capsys,
        quick=True,
    )
    assert (known["peer"], known["ratio"], known["holds"]) == (100.0, None, None)
    assert str(known["peer_name"]).startswith("other 1.0, recorded 2")
    assert (unknown["peer"], unknown["holds"]) == (None, None)
    assert claims.recorded()["speed"]["ours"] == 150.0  # a quick run records nothing


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = [claims.at_least("speed", "tokens/s", 150.0, 1.4, **PEER, ratio=1.2)]
    claims.show(found, argparse.Namespace(json=False, quick=False, record=False))
    printed = capsys.readouterr().out
    assert "speed" in printed
    assert "no" in printed.split()
