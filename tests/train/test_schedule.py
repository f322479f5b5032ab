"""Learning rates at the points where schedules go wrong."""

from __future__ import annotations

import pytest

from huilu.config.tree import Optimizer
from huilu.train.schedule import learning_rate


def rates(num_steps: int, **settings: object) -> list[float]:
    optimizer = Optimizer(learning_rate=1.0, **settings)  # type: ignore[arg-type]
    return [learning_rate(optimizer, step, num_steps) for step in range(num_steps)]


def test_constant_is_constant() -> None:
    assert rates(3) == [1.0, 1.0, 1.0]


def test_the_warm_up_never_wastes_a_step_at_zero() -> None:
    assert rates(5, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_linear_falls_to_zero_at_the_end() -> None:
    assert rates(4, lr_schedule="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert rates(6, lr_schedule="linear", warmup_steps=2) == pytest.approx([1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25])


def test_cosine_is_half_way_at_half_time() -> None:
    assert rates(4, lr_schedule="cosine") == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466])


def test_steps_beyond_the_last_have_no_negative_rate() -> None:
    optimizer = Optimizer(learning_rate=1.0, lr_schedule="linear")
    assert learning_rate(optimizer, 9, 4) == 0.0
