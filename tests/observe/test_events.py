"""The events of a run as typed records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from huilu.errors import Invariant
from huilu.observe import events
from huilu.observe.events import ErrorRaised, Event, RoundEnded, StageBegan, VerdictGiven, decode, tell
from huilu.telemetry import Telemetry


@pytest.mark.parametrize(
    "event",
    [
        StageBegan(at=5.0, name="round", number=3, total=14),
        RoundEnded(at=5.0, round=3, rounds=14, reward_mean=0.5, seconds={"train": 1.0}),
        VerdictGiven(at=5.0, version=3, promote=False, reasons=("the score fell",), evidence={"kl": None}),
        ErrorRaised(at=5.0, message="disk full", code="disk_full", fix="free space"),
    ],
)
def test_what_is_told_is_decoded_to_the_same_record(event: Event) -> None:
    got: list[Mapping[str, Any]] = []
    tell(Telemetry(got.append, now=lambda: 5.0), event)
    assert decode(got[0]) == event


def test_events_of_other_names_are_left_alone() -> None:
    assert decode({"at": 1.0, "event": "block_evicted", "block": 3}) is None


def test_a_known_event_with_a_wrong_field_is_a_bug_that_names_the_field() -> None:
    with pytest.raises(Invariant, match=r"round.*reward_mean"):
        decode({"at": 1.0, "event": "round", "round": 1, "rounds": 2, "reward_mean": "high"})


def test_every_record_is_known_by_its_name_and_documented() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(Event)}
    assert tags == events.EVENTS
    assert all(f"| {tag} " in (events.__doc__ or "") for tag in tags)
