"""The rewards that TRL and Huilu share, and that they say what Huilu's own environment says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from huilu.envs.last_number import last_number

SCRIPT = Path(__file__).parents[2] / "bench" / "peers" / "rewards.py"


@pytest.fixture
def rewards() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_rewards", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", ["12", "3 + 9 = 12.", "It is 1,012", "no number", "", "12 or 13", "The answer is -12"])
def test_sums_are_judged_as_our_own_environment_judges_them(rewards: ModuleType, text: str) -> None:
    judged = rewards.last_number([""], [[{"role": "assistant", "content": text}]], answer=[12])
    assert judged == [float(last_number(text) == 12)]


def test_the_coin_depends_on_the_answer_alone_and_is_fair(rewards: ModuleType) -> None:
    thrown = rewards.parity([""] * 400, [str(number) for number in range(400)])
    assert thrown == rewards.parity(["another"] * 400, [str(number) for number in range(400)])
    assert 160 < sum(thrown) < 240
    assert rewards.parity([""], [""]) == [0.0]
