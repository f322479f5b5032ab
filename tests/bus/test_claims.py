"""Claims: which groups a round learns from, in which order, and that no group is learnt from twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, insert, select, update

from huilu import errors
from huilu.bus import claims
from huilu.bus.claims import Terms
from huilu.core.nouns import Claim, ClaimState, Outcome, PolicyVersion
from huilu.core.tasks import Event
from huilu.store import rows
from huilu.store.schema import claimed
from huilu.store.schema import claims as claim_rows
from huilu.work import queue

NOW = 1000.0
Drawn = Callable[[int], list[str]]
Complete = Callable[..., None]


def terms(num: int = 2, *, short: bool = False, max_lag: int = 0, frac: float = 1.0, owner: str = "learner") -> Terms:
    return Terms(num_groups=num, max_lag=max_lag, allow_short=short, owner=owner, lease_s=60.0, sample_frac=frac)


def tasks_of(claim: Claim | None) -> list[str]:
    assert claim is not None
    return [group.task.id for group in claim.groups]


def record(connection: Connection, claim: Claim, number: int, lineage: int = 0, digest: str = "d") -> None:
    """A version that this claim made."""
    version = PolicyVersion(number=number, lineage=lineage, parent=number - 1, round=number, claim_id=claim.id)
    rows.insert_version(connection, version, NOW)
    rows.seal(connection, version, digest)
    claims.apply(connection, claim.id, number, lineage)


def test_a_claim_waits_until_it_is_full(connection: Connection, drawn: Drawn, complete: Complete) -> None:
    one, two = drawn(2)
    complete(two)
    assert claims.claim(connection, 1, terms(), NOW) is None
    complete(one)
    assert tasks_of(claims.claim(connection, 1, terms(), NOW)) == [one, two]


def test_groups_come_in_draw_order_with_their_episodes_by_index(
    connection: Connection, drawn: Drawn, complete: Complete
) -> None:
    ids = drawn(3)
    for task in reversed(ids):
        complete(task)
    found = claims.claim(connection, 1, terms(3), NOW)
    assert tasks_of(found) == ids
    assert found is not None
    assert [[episode.index for episode in group.episodes] for group in found.groups] == [[0, 1]] * 3
    assert {episode.round for episode in found.episodes} == {1}
    assert (found.id, found.round, found.state, found.version, found.digest) == ("c00001", 1, "leased", None, "")


def test_no_more_groups_than_asked_for_and_the_rest_in_the_next_round(
    connection: Connection, drawn: Drawn, complete: Complete
) -> None:
    ids = drawn(3)
    for task in ids:
        complete(task)
    assert tasks_of(claims.claim(connection, 1, terms(), NOW)) == ids[:2]
    assert tasks_of(claims.claim(connection, 2, terms(short=True, max_lag=1), NOW)) == ids[2:]


def test_a_short_claim_is_what_there_is_and_may_be_empty(
    connection: Connection, drawn: Drawn, complete: Complete
) -> None:
    (one,) = drawn(1)
    complete(one)
    assert tasks_of(claims.claim(connection, 1, terms(short=True), NOW)) == [one]
    empty = claims.claim(connection, 2, terms(short=True), NOW)
    assert tasks_of(empty) == []
    assert empty is not None
    assert empty.id == "c00002"


@pytest.mark.parametrize("event", ["filter", "cancel"])
def test_tasks_that_teach_nothing_are_passed_over(
    connection: Connection, drawn: Drawn, complete: Complete, event: Event
) -> None:
    lost, dead, good = drawn(3)
    queue.claim(connection, "w", 2, 60.0, NOW)
    queue.move(connection, lost, event, NOW, 3, fence=None)
    queue.move(connection, dead, "fail", NOW, 0, fence=None, error="broken")
    complete(good)
    assert tasks_of(claims.claim(connection, 1, terms(1), NOW)) == [good]


def test_asking_again_gives_the_same_groups_to_whoever_runs_now(
    connection: Connection, drawn: Drawn, complete: Complete
) -> None:
    ids = drawn(4)
    for task in ids[1:]:
        complete(task)
    first = claims.claim(connection, 1, terms(max_lag=9), NOW)
    complete(ids[0])  # a lower draw that came later
    again = claims.claim(connection, 1, terms(max_lag=9, owner="another"), NOW + 500)
    assert tasks_of(first) == tasks_of(again) == ids[1:3]
    row = connection.execute(select(claim_rows)).one()
    assert (row.owner, row.lease_until) == ("another", NOW + 560)


def test_a_group_is_in_one_claim_only(connection: Connection, drawn: Drawn, complete: Complete) -> None:
    (one,) = drawn(1)
    complete(one)
    claims.claim(connection, 1, terms(1), NOW)
    claims.claim(connection, 2, terms(1, short=True), NOW)
    with pytest.raises(Exception, match="UNIQUE"):
        connection.execute(insert(claimed).values(claim_id="c00002", place=0, task_id=one, trains=True))


def test_a_share_of_the_groups_trains_and_the_same_one_every_time(
    connection: Connection, drawn: Drawn, complete: Complete
) -> None:
    ids = drawn(8)
    for task in ids:
        complete(task)
    found = tasks_of(claims.claim(connection, 1, terms(8, frac=0.5), NOW))
    assert len(found) == 4
    assert found == sorted(found)
    assert found == tasks_of(claims.claim(connection, 1, terms(8, frac=0.5), NOW))
    assert set(found) == claims.sampled(ids, 0.5, 0)
    assert claims.num_ready(connection) == 0  # those that do not train are used up too


def test_a_lot_changes_with_the_seed_and_is_never_empty() -> None:
    ids = [f"t{n}" for n in range(20)]
    assert len({frozenset(claims.sampled(ids, 0.3, seed)) for seed in range(20)}) > 10
    assert len(claims.sampled(ids[:1], 0.01, 0)) == 1
    assert claims.sampled([], 0.5, 0) == set()


def test_a_sample_that_is_too_old_is_a_broken_promise(connection: Connection, drawn: Drawn, complete: Complete) -> None:
    (one,) = drawn(1)
    complete(one, version=1)
    with pytest.raises(errors.Invariant, match="version 1"):
        claims.claim(connection, 4, terms(1, max_lag=1), NOW)


def test_a_sample_at_the_bound_is_young_enough(connection: Connection, drawn: Drawn, complete: Complete) -> None:
    (one,) = drawn(1)
    complete(one, version=2)
    assert tasks_of(claims.claim(connection, 4, terms(1, max_lag=1), NOW)) == [one]


def test_a_claim_knows_the_version_it_made_and_its_digest(
    connection: Connection, drawn: Drawn, complete: Complete
) -> None:
    (one,) = drawn(1)
    complete(one)
    found = claims.claim(connection, 1, terms(1), NOW)
    assert found is not None
    record(connection, found, 1, digest="abc")
    again = claims.claim(connection, 1, terms(1), NOW)
    assert again is not None
    assert (again.state, again.version, again.digest) == (ClaimState.APPLIED, 1, "abc")
    assert again.groups[0].task == found.groups[0].task


def test_a_saved_state_acknowledges_what_it_contains_and_no_more(
    connection: Connection, drawn: Drawn, complete: Complete
) -> None:
    for task in drawn(4):
        complete(task)
    for round_ in (1, 2, 3):
        found = claims.claim(connection, round_, terms(1, max_lag=9), NOW)
        assert found is not None
        record(connection, found, round_)
    claims.claim(connection, 4, terms(1, max_lag=9), NOW)
    assert claims.ack(connection, 2) == 2
    assert claims.ack(connection, 2) == 0
    states = connection.scalars(select(claim_rows.c.state).order_by(claim_rows.c.round)).all()
    assert states == ["acked", "acked", "applied", "leased"]


def test_renewing_extends_the_leases_of_claims_that_are_not_applied(
    connection: Connection, drawn: Drawn, complete: Complete
) -> None:
    for task in drawn(2):
        complete(task)
    first = claims.claim(connection, 1, terms(1), NOW)
    assert first is not None
    record(connection, first, 1)
    claims.claim(connection, 2, terms(1, max_lag=1), NOW)
    assert claims.renew(connection, "learner", 60.0, NOW + 30) == 1
    assert claims.renew(connection, "another", 60.0, NOW + 30) == 0


def test_integrity_finds_nothing_where_nothing_is_wrong(
    connection: Connection, drawn: Drawn, complete: Complete
) -> None:
    for task in drawn(3):
        complete(task)
    found = claims.claim(connection, 1, terms(), NOW)
    assert found is not None
    record(connection, found, 1)
    assert claims.check_integrity(connection) == []


def test_integrity_names_what_contradicts_itself(connection: Connection, drawn: Drawn, complete: Complete) -> None:
    (one,) = drawn(1)
    complete(one)
    claims.claim(connection, 1, terms(1), NOW)
    connection.execute(update(claim_rows).values(state="applied"))
    connection.exec_driver_sql("UPDATE tasks SET state = 'running'")
    assert claims.check_integrity(connection) == [
        "claim c00001 is applied by no version",
        f"task {one} was claimed but is not done",
    ]


def test_an_episode_that_failed_before_its_first_token_is_not_stale(
    connection: Connection, drawn: Drawn, complete: Complete
) -> None:
    (one,) = drawn(1)
    complete(one, version=6, outcomes=(Outcome.OK, Outcome.INFRA_FAILED))
    assert tasks_of(claims.claim(connection, 7, terms(1), NOW)) == [one]


def test_a_lost_lineages_digest_is_nothing_to_replay(connection: Connection, drawn: Drawn, complete: Complete) -> None:
    for task in drawn(2):
        complete(task)
    for round_ in (1, 2):
        found = claims.claim(connection, round_, terms(1, max_lag=1), NOW)
        assert found is not None
        record(connection, found, round_, digest=f"old {round_}")
    rows.supersede(connection, 0)
    again = claims.claim(connection, 1, terms(1, max_lag=1), NOW)
    assert again is not None
    assert again.digest == ""
    record(connection, again, 1, lineage=1, digest="new 1")
    replayed = [claims.claim(connection, round_, terms(1, max_lag=1), NOW) for round_ in (1, 2)]
    assert [claim.digest for claim in replayed if claim is not None] == ["new 1", ""]


@pytest.mark.parametrize("max_lag", [1, 2])
def test_a_slow_task_is_overtaken_only_as_long_as_its_samples_stay_young_enough(
    connection: Connection, drawn: Drawn, complete: Complete, max_lag: int
) -> None:
    slow, *others = drawn(6)
    for task in others:
        complete(task, version=9)
    taken = []
    for round_ in range(1, max_lag + 1):
        taken += tasks_of(claims.claim(connection, round_, terms(1, max_lag=max_lag), NOW))
    assert taken == others[:max_lag]
    # Sampled at version 0, it must be in round max_lag + 1, though others are complete.
    assert claims.claim(connection, max_lag + 1, terms(1, max_lag=max_lag), NOW) is None
    complete(slow)
    assert tasks_of(claims.claim(connection, max_lag + 1, terms(1, max_lag=max_lag), NOW)) == [slow]
