"""Reasoning Gym's data sets: the same tasks everywhere, its own scores, and settings it refuses."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from huilu import errors
from huilu.core.nouns import Message
from huilu.envs.registry import build_environment


@pytest.mark.parametrize("dataset", ["chain_sum", "countdown", "knights_knaves"])
def test_gold_answers_score_one_and_empty_ones_do_not(gold_failures: Any, dataset: str) -> None:
    environment = build_environment("reasoning_gym", {"dataset": dataset, "size": 20, "seed": 0})
    assert len(environment) == 20
    assert environment.gold(environment.task(0)) is not None
    assert gold_failures(environment, 5) == []


def test_the_reward_is_the_data_sets_own_score(judge: Any) -> None:
    environment = build_environment("reasoning_gym", {"dataset": "chain_sum", "pass_score": 0.01})
    gold = environment.gold(environment.task(0))
    right, partly, wrong = judge(environment, [(0, f" {gold}\n"), (0, f"It is {gold}"), (0, "no idea")])
    assert (right.reward, right.passed) == (1.0, True)
    assert 0 < partly.reward < 1
    assert partly.passed
    assert (wrong.reward, wrong.passed) == (0.0, False)


def test_with_a_tag_only_what_stands_in_the_last_one_is_judged(judge: Any, gold_failures: Any) -> None:
    params = {"dataset": "chain_sum", "system": "Answer in <answer> tags.", "answer_tag": "answer"}
    environment = build_environment("reasoning_gym", params)
    task = environment.task(0)
    assert task.prompt[0] == Message("system", "Answer in <answer> tags.")
    good = f"<answer>0</answer> no: <answer> {task.answer} </answer>!"
    right, bare, opened = judge(environment, [(0, good), (0, task.answer), (0, f"<answer>{task.answer}")])
    assert [right.reward, bare.reward, opened.reward] == [1.0, 0.0, 0.0]
    assert bare.note == "no <answer> in the answer"
    assert gold_failures(environment, 2) == []


def test_the_data_sets_own_settings_are_passed_on() -> None:
    params = {"dataset": "chain_sum", "config": {"min_terms": 6, "max_terms": 6, "max_digits": 2}}
    environment = build_environment("reasoning_gym", params)
    question = environment.task(0).prompt[0].content
    assert sum(question.count(op) for op in (" + ", " - ")) == 5


def test_a_composite_of_data_sets_is_one_too(gold_failures: Any) -> None:
    parts = [{"name": name, "weight": 1.0, "config": dict[str, Any]()} for name in ("chain_sum", "lcm")]
    params = {"dataset": "composite", "size": 6, "config": {"datasets": parts}}
    environment = build_environment("reasoning_gym", params)
    assert gold_failures(environment, 4) == []


@pytest.mark.parametrize("dataset", ["list_functions", "pool_matrix"])
def test_data_sets_that_use_global_random_state_are_the_same_in_every_thread(dataset: str) -> None:
    params = {"dataset": dataset, "size": 30}
    one, other = build_environment("reasoning_gym", params), build_environment("reasoning_gym", params)
    with ThreadPoolExecutor(8) as threads:
        at_once = list(threads.map(one.task, range(30)))
    assert at_once == [other.task(i) for i in reversed(range(30))][::-1]


def test_a_question_is_the_same_in_another_process() -> None:
    """Question 0 of list_functions has examples from Python's global random state."""
    params = {"dataset": "list_functions", "size": 1}
    code = (
        "from huilu.envs.registry import build_environment\n"
        f"print(build_environment('reasoning_gym', {params!r}).task(0).prompt[0].content, end='')"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == build_environment("reasoning_gym", params).task(0).prompt[0].content


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"dataset": "chain_sums"}, "did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "config": {"min_term": 3}}, "no setting 'min_term'.*\n.*did you mean 'min_terms'"),
        ({"dataset": "chain_sum", "config": {"seed": 3}}, "no setting 'seed' for `config`"),
        ({"dataset": "chain_sum", "config": {"min_terms": 5, "max_terms": 2}}, "refuses chain_sum"),
        ({"dataset": "chain_sum", "size": 0}, r"`int` >= 1"),
    ],
)
def test_wrong_settings_are_refused_with_the_nearest_right_one(params: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.BadConfig, match=said):
        build_environment("reasoning_gym", params)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(errors.BadConfig, match=r"pip install 'huilu\[tasks\]'; without a C compiler"):
        build_environment("reasoning_gym", {"dataset": "chain_sum"})


def test_without_a_compiler_only_the_puzzles_that_need_pycosat_fail() -> None:
    program = (
        "import importlib.util as u, sys; real = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'pycosat' else real(name, *more)\n"
        "from huilu.envs.registry import build_environment\n"
        "env = build_environment('reasoning_gym', {'dataset': 'chain_sum', 'size': 3})\n"
        "print(len(env), sys.modules['pycosat'].__doc__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("3 not installed")
