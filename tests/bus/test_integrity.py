"""The check of what must hold: silent on a sound bus, and one line for each kind of damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Connection

from huilu.bus import claims
from huilu.bus.claims import Terms
from huilu.bus.integrity import check_integrity
from huilu.core.nouns import PolicyVersion
from huilu.store import rows
from huilu.work import queue

NOW, GROUP = 1000.0, 2


@pytest.fixture
def sound(connection: Connection, drawn: Callable[[int], list[str]], complete: Callable[..., None]) -> Connection:
    """Two tasks learnt, one complete, one running, one queued, one dead."""
    ids = drawn(6)
    for task in ids[:3]:
        complete(task)
    queue.move(connection, ids[3], "give_back", NOW, 3, fence=None)
    queue.move(connection, ids[5], "fail", NOW, 0, fence=None, error="broken")
    terms = Terms(num_groups=2, max_lag=0, allow_short=True, owner="learner", lease_s=60.0)
    found = claims.claim(connection, 1, terms, NOW)
    assert found is not None
    rows.insert_version(connection, PolicyVersion(number=1, lineage=0, parent=0, round=1, claim_id=found.id), NOW)
    claims.apply(connection, found.id, 1, 0)
    return connection


def test_a_sound_bus_has_nothing_to_say(sound: Connection) -> None:
    assert check_integrity(sound, GROUP) == []


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            "DELETE FROM feedback WHERE key = 't000000.e1:verifier'",
            ["1 pieces of feedback are unaccounted for"],
        ),
        (
            "UPDATE feedback SET state = 'in_flight' WHERE key = 't000001.e0:verifier'",
            ["feedback t000001.e0:verifier is in flight, but its episode has ended"],
        ),
        ("UPDATE tasks SET owner = NULL WHERE id = 't000004'", ["task t000004 is running with the owner None"]),
        ("UPDATE tasks SET owner = 'w' WHERE id = 't000005'", ["task t000005 is dead with the owner w"]),
        ("DELETE FROM episodes WHERE id = 't000002.e0'", ["task t000002 is done with 1 of 2 episodes"]),
        (
            "UPDATE episodes SET task_id = 't000003' WHERE task_id = 't000002'",
            ["task t000002 is done with 0 of 2 episodes", "task t000003 is queued with 2 of 2 episodes"],
        ),
        (
            "UPDATE tasks SET claim_id = NULL WHERE id = 't000000'",
            ["task t000000 names the claim None, and c00001 names it"],
        ),
        (
            "UPDATE tasks SET claim_id = 'c00001' WHERE id = 't000002'",
            ["task t000002 names the claim c00001, and None names it"],
        ),
        (
            "DELETE FROM versions",
            ["claim c00001 is applied by version 1 of lineage 0, which is not recorded"],
        ),
    ],
)
def test_each_kind_of_damage_is_told(sound: Connection, damage: str, told: list[str]) -> None:
    sound.exec_driver_sql(damage)
    assert check_integrity(sound, GROUP) == told
