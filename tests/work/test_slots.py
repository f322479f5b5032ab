"""The budget of rollout work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from huilu.work.slots import Slots


def test_on_policy_a_batch_is_free_only_after_the_one_before_settled() -> None:
    slots = Slots(8, rounds=3, max_lag=0, max_extra=0)
    assert slots.free == 8
    slots.take(8)
    assert slots.free == 0
    slots.settle()
    assert slots.free == 8


def test_a_lag_of_one_lets_one_more_batch_out() -> None:
    assert Slots(8, rounds=3, max_lag=1, max_extra=0).free == 16


def test_nothing_is_free_beyond_the_last_round() -> None:
    slots = Slots(8, rounds=3, max_lag=5, max_extra=0)
    assert slots.free == 24


def test_a_restart_that_is_ahead_of_its_saved_state_waits_for_the_replay() -> None:
    slots = Slots(8, rounds=10, max_lag=0, max_extra=0, settled=3, used=40)
    assert slots.free == 0
    slots.settle()
    assert slots.free == 0
    slots.settle()
    assert slots.free == 8


def test_lost_groups_are_replaced_up_to_the_cap_and_the_cap_returns_with_the_round() -> None:
    slots = Slots(2, rounds=5, max_lag=0, max_extra=1)
    slots.take(2)
    assert slots.lose()
    assert not slots.lose()
    assert slots.free == 1
    slots.settle()
    assert slots.lose()


@given(st.lists(st.sampled_from(["take", "settle", "lose"]), max_size=60), st.integers(0, 3), st.integers(0, 4))
def test_what_is_out_never_exceeds_the_window(actions: list[str], max_lag: int, max_extra: int) -> None:
    batch, rounds = 4, 6
    slots = Slots(batch, rounds, max_lag, max_extra)
    out, settled, lost = 0, 0, 0
    for action in actions:
        if action == "take":
            out += slots.free
            slots.take(slots.free)
        elif action == "settle" and settled < rounds:
            settled += 1
            slots.settle()
        elif action == "lose" and out > lost and slots.lose():
            lost += 1
        assert out - lost <= batch * min(settled + 1 + max_lag, rounds)
