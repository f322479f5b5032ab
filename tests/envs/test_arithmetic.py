"""Sums: what is asked, in which order, and which answers are right."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from huilu.core.nouns import Message
from huilu.envs.last_number import last_number
from huilu.envs.registry import build_environment


def test_the_question_is_asked_in_the_words_of_the_quickstart() -> None:
    task = build_environment("arithmetic", {}).task(20 * 2 + 6)
    assert task.prompt == (Message("user", "What is 3 + 7? Answer with just the number."),)
    assert task.answer == 10
    assert task.id == "arithmetic/46"


def test_every_ordered_pair_is_asked_once() -> None:
    environment = build_environment("arithmetic", {"low": -1, "high": 2, "ops": ["+", "*"]})
    questions = {environment.task(i).prompt[0].content for i in range(len(environment))}
    assert len(questions) == len(environment) == 2 * 4 * 4
    assert "What is -1 * 2? Answer with just the number." in questions


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("10", 1.0),
        ("3 + 7 = 10.", 1.0),
        ("The answer is **10**", 1.0),
        ("10 is what I get from 3 and 7", 0.0),
        ("", 0.0),
        ("ten", 0.0),
        ("-10", 0.0),
        ("100", 0.0),
        ("9" * 6000, 0.0),
    ],
)
def test_the_last_number_of_an_answer_is_judged(judge: Callable[..., Any], answer: str, reward: float) -> None:
    (judgement,) = judge(build_environment("arithmetic", {}), [(46, answer)])
    assert (judgement.reward, judgement.passed) == (reward, reward == 1.0)


def test_gold_answers_score_one_under_every_operation(gold_failures: Callable[..., Any]) -> None:
    environment = build_environment("arithmetic", {"low": -30, "high": 40, "ops": ["+", "-", "*"]})
    assert gold_failures(environment, 500) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5-3", "3"),
        ("5 - 3 = 2", "2"),
        ("it is -3", "-3"),
        ("it is \u22123", "-3"),
        ("(5)-3", "3"),
        ("1,234", "1234"),
        ("1,234,567.50 dollars", "1234567.5"),
        ("1,2345", "2345"),
        ("1, 2 and 3.", "3"),
        ("12.0", "12"),
        ("2.5e-3", "0.0025"),
        ("x2", "2"),
        ("#### 72", "72"),
        ("\u0664", None),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))


@given(st.integers(), st.text(alphabet="abc .:;=\n", max_size=20))
def test_any_whole_number_is_found_at_the_end_of_any_words(number: int, words: str) -> None:
    assert last_number(f"{words} {number}") == number
