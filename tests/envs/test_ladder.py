"""The ladder: what is asked is what is judged, on every rung; stubs pass nowhere; the same seed, the same tasks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from huilu.config.tree import Data, Tasks
from huilu.envs.code.extract import extract_program
from huilu.envs.code_repair.ladder import climb
from huilu.envs.code_repair.problems import Problem
from huilu.envs.code_repair.rungs import RUNGS
from huilu.envs.registry import build_environment
from huilu.envs.report import report_sources
from huilu.envs.sources import split_sources

SIZE = 60


def passes(source: str, tests: tuple[Any, ...]) -> bool:
    """Whether trusted source passes assertions, run here."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    try:
        for test in tests:
            exec(test, namespace)
    except AssertionError:
        return False
    return True


def solution(problem: Problem) -> str:
    assert problem.canonical_solution is not None
    source = extract_program(problem.canonical_solution, problem.starter_code, str(problem.entry_point))
    assert source is not None
    return source


def arguments_of(problem: Problem) -> list[str]:
    return problem.starter_code.partition("(")[2].partition(")")[0].split(", ")


@pytest.mark.parametrize("rung", RUNGS)
def test_the_right_answer_passes_every_test_of_its_problem(rung: str) -> None:
    problems = climb((rung,), SIZE, 0)
    assert len(problems) == SIZE
    for problem in problems:
        assert passes(solution(problem), (*problem.visible, *problem.hidden)), problem.task_id


@pytest.mark.parametrize("rung", RUNGS)
def test_stubs_pass_no_problems_hidden_tests(rung: str) -> None:
    for problem in climb((rung,), SIZE, 0):
        values = {test.partition(" == ")[2] for test in (*problem.visible, *problem.hidden) if isinstance(test, str)}
        stubs = ["None", "0", "''", "[]", "True", "False", *arguments_of(problem), *values]
        for stub in stubs:
            assert not passes(f"{problem.starter_code}    return {stub}\n", problem.hidden), (problem.task_id, stub)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_table_of_the_visible_tests_passes_them_and_no_hidden_ones(rung: str) -> None:
    for problem in climb((rung,), SIZE, 0):
        table = {}
        for test in problem.visible:
            assert isinstance(test, str)
            call, _, value = test.removeprefix("assert ").partition(" == ")
            table[call.partition("(")[2][:-1]] = value
        answers = ", ".join(f"repr(({key},)): {value}" for key, value in table.items())
        source = f"def {problem.entry_point}(*a):\n    return {{{answers}}}.get(repr(a))\n"
        assert passes(source, problem.visible), problem.task_id
        assert not passes(source, problem.hidden), problem.task_id


def test_the_hidden_tests_do_not_repeat_the_visible_ones() -> None:
    for problem in climb(tuple(RUNGS), SIZE, 0):
        assert not set(problem.visible) & set(problem.hidden)


def test_no_two_problems_ask_the_same() -> None:
    asked = [(problem.prompt, problem.starter_code) for problem in climb(tuple(RUNGS), 200, 0)]
    assert len(set(asked)) == len(asked) == 200 * len(RUNGS)


def test_the_same_seed_gives_the_same_ladder_and_another_seed_another() -> None:
    first = climb(("strings",), 20, 7)
    assert first == climb(("strings",), 20, 7)
    assert first == climb(("lists", "strings"), 20, 7)[20:]
    assert {p.prompt for p in first} != {p.prompt for p in climb(("strings",), 20, 8)}


def test_every_family_of_a_rung_is_asked() -> None:
    for rung, families in RUNGS.items():
        problems = climb((rung,), SIZE, 0)
        for family in families:
            shape = ".+".join(map(re.escape, re.split(r"\{\w\}", family.says)))
            assert any(re.search(f"returns {shape}", problem.prompt) for problem in problems), family.says


def test_the_held_out_split_asks_nothing_that_is_trained_on() -> None:
    params = {"ladder": {"rungs": ["lists", "loops"], "size": SIZE}}
    build: Callable[[str, dict[str, Any]], Any] = lambda env, given: build_environment(env, given, Path())  # noqa: E731
    sources = split_sources(Data(sources=[Tasks(env="code_repair", params=params, holdout=40)]), build)
    (report,) = report_sources(sources)
    assert (report.num_train, report.num_holdout, report.num_leaked, report.num_repeated) == (80, 40, 0, 0)
