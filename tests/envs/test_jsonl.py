"""Task files: rows of every make, each equality, and reward functions of TRL and verl as their authors wrote them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from huilu import errors
from huilu.core.generation import Judgement
from huilu.core.nouns import Message
from huilu.core.ports import Environment
from huilu.envs.registry import build_environment

# Written for TRL's GRPOTrainer and verl's custom_reward_function, with nothing of Huilu in it.
REWARDS = '''
    import re
    import sys

    seen = []

    def format_and_answer(completions, answer, **kwargs):
        """TRL, conversational: half for the tags, half for the answer."""
        rewards = []
        for completion, expected in zip(completions, answer, strict=True):
            match = re.search(r"<answer>(.*?)</answer>", completion[0]["content"])
            right = match is not None and match[1] == expected
            rewards.append(None if expected is None else 0.5 * (match is not None) + 0.5 * right)
        return rewards

    def sees(prompts, completions, **kwargs):
        """TRL: fails unless it gets what TRL would give."""
        assert prompts == [kwargs["expected_prompt"][0]], prompts
        assert completions == [kwargs["expected_completion"][0]], completions
        assert kwargs["level"] == [3]
        return [1.0]

    async def async_judge(prompts, completions, **kwargs):
        print("chatter on stdout")
        return [float(len(completion)) for completion in completions]

    def two(prompts, completions, **kwargs):
        return [1.0, 2.0]

    def not_finite(prompts, completions, **kwargs):
        return [float("nan")]

    def raises(prompts, completions, **kwargs):
        raise KeyError("solution")

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        """verl."""
        found = re.findall(r"#### (-?[0-9.,]+)", solution_str)
        right = bool(found) and found[-1].replace(",", "") == ground_truth
        return {"score": 1.0 if right else 0.0, "acc": right, "index": extra_info["index"], "source": data_source}

    def compute_score_plain(data_source, solution_str, ground_truth, extra_info=None):
        return len(solution_str) / 100 if data_source == "rows" and not extra_info else -1

    def compute_score_numpy(data_source, solution_str, ground_truth, extra_info=None):
        import numpy as np
        return {"score": np.float32(0.5), "hits": np.int64(3)}

    def compute_score_bad(data_source, solution_str, ground_truth, extra_info=None):
        return {"reward": 1.0}
'''


def made(folder: Path, rows: list[dict[str, Any]], **params: Any) -> Environment:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(textwrap.dedent(REWARDS))
    return build_environment("jsonl", {"path": "rows.jsonl", **params}, folder)


def test_a_string_prompt_becomes_one_user_message(tmp_path: Path) -> None:
    task = made(tmp_path, [{"prompt": "2 + 2?", "answer": 4}]).task(0)
    assert task.prompt == (Message("user", "2 + 2?"),)
    assert (task.id, task.env, task.answer) == ("jsonl/0", "jsonl", "4")


def test_messages_stay_messages_and_a_system_message_comes_first(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "2 + 2?"}], "answer": "4"}]
    task = made(tmp_path, rows, system="Be brief.").task(0)
    assert task.prompt == (Message("system", "Be brief."), Message("user", "2 + 2?"))


def test_verls_ground_truth_is_the_answer(tmp_path: Path) -> None:
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "2 + 2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 7},
    }
    assert made(tmp_path, [row], equality="numeric").task(0).answer == "4"


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    rows = [{"question": "2 + 2?", "solution": "4"}]
    task = made(tmp_path, rows, prompt_field="question", answer_field="solution").task(0)
    assert (task.prompt[0].content, task.answer) == ("2 + 2?", "4")


@pytest.mark.parametrize(
    ("row", "params", "said"),
    [
        ({"answer": 1}, {}, r"rows.jsonl:2: no field 'prompt' among answer; expected 'prompt' with the prompt"),
        ({"promt": "x", "answer": 1}, {}, r"did you mean 'promt'"),
        ({"prompt": "", "answer": 1}, {}, r"rows.jsonl:2: 'prompt' is an empty str; expected a string, or a list"),
        ({"prompt": 5, "answer": 1}, {}, r"'prompt' is of type int"),
        ({"prompt": [], "answer": 1}, {}, r"'prompt' is an empty list"),
        ({"prompt": [{"role": "user"}], "answer": 1}, {}, r"missing required field `content`"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": 1}, {}, r"Expected `str`"),
        (
            {"prompt": [{"role": "human", "content": "x"}], "answer": 1},
            {},
            r"role 'human'; expected one of system, user",
        ),
        ({"prompt": "x"}, {}, r"rows.jsonl:2: the answer is missing; expected text or a number in 'answer'"),
        ({"prompt": "x", "answer": ""}, {}, r"the answer is an empty str"),
        ({"prompt": "x", "answer": [1]}, {}, r"the answer is of type list"),
        ({"prompt": "x", "answer": True}, {}, r"the answer is of type bool"),
        ({"prompt": "x", "answer": "many"}, {"equality": "numeric"}, r"no number in the answer 'many'"),
        (
            {"prompt": "x", "reward_model": "rule"},
            {},
            r"'reward_model' is of type str; expected \{style, ground_truth\}",
        ),
        ({"prompt": "x"}, {"judge": "r.py:f", "judge_style": "verl"}, r"rows.jsonl:2: no ground truth"),
    ],
)
def test_a_bad_row_is_named_by_its_line_with_what_was_expected(
    tmp_path: Path, row: dict[str, Any], params: dict[str, Any], said: str
) -> None:
    good = {"prompt": "x", "answer": "1"}
    with pytest.raises(errors.BadData, match=said):
        made(tmp_path, [good, row, good], **params)


def test_equal_rows_are_tasks_of_their_own(tmp_path: Path) -> None:
    environment = made(tmp_path, [{"id": "a", "prompt": "x", "answer": 1}] * 3)
    assert len({environment.task(i).id for i in range(len(environment))}) == 3


@pytest.mark.parametrize(
    ("params", "expected", "answer", "reward"),
    [
        ({}, "Paris", " Paris\n", 1.0),
        ({}, "Paris", "It is Paris", 0.0),
        ({"equality": "numeric"}, "6 * 7 is\n#### 42", "so it is 42.", 1.0),
        ({"equality": "numeric"}, "42", "42.0", 1.0),
        ({"equality": "numeric"}, "42", "about 41.9", 0.0),
        ({"equality": "numeric", "tolerance": 0.01}, "42", "about 41.9", 1.0),
        ({"equality": "numeric"}, "42", "I do not know", 0.0),
        ({"equality": "math"}, "1/2", "So we get \\boxed{0.5}", 1.0),
        ({"equality": "math"}, "\\frac{1}{2}", "The answer is $\\frac{2}{4}$", 1.0),
        ({"equality": "math"}, "x^2 + 1", "\\boxed{1 + x^2}", 1.0),
        ({"equality": "math"}, "$\\{3, 4\\}$", "\\boxed{3, 5}", 0.0),
        ({"equality": "math"}, "42", "", 0.0),
    ],
)
def test_equalities(
    tmp_path: Path, judge: Any, params: dict[str, Any], expected: str, answer: str, reward: float
) -> None:
    (judgement,) = judge(made(tmp_path, [{"prompt": "x", "answer": expected}], **params), [(0, answer)])
    assert (judgement.reward, judgement.passed) == (reward, reward == 1.0)


def test_an_answer_on_which_math_verify_hangs_is_not_judged_and_the_next_one_is(tmp_path: Path, judge: Any) -> None:
    environment = made(tmp_path, [{"prompt": "x", "answer": "10"}], equality="math", timeout_s=1.0)
    hanging, right = judge(environment, [(0, "\\boxed{9^{9^{9^9}}}"), (0, "\\boxed{10}")])
    assert hanging == Judgement(reward=None, passed=False, note="math-verify did not end within 1 s")
    assert right.reward == 1.0


def test_an_expected_answer_that_math_verify_cannot_read_judges_nothing(tmp_path: Path, judge: Any) -> None:
    (judgement,) = judge(made(tmp_path, [{"prompt": "x", "answer": "a lone $"}], equality="math"), [(0, "\\boxed{1}")])
    assert judgement.reward is None


@pytest.mark.parametrize("equality", ["exact", "numeric", "math"])
def test_gold_answers_pass_and_empty_ones_do_not(tmp_path: Path, gold_failures: Any, equality: str) -> None:
    rows = [{"prompt": f"{n}?", "answer": n} for n in range(5)]
    assert gold_failures(made(tmp_path, rows, equality=equality), 8) == []


def test_only_what_runs_in_a_worker_needs_calls(tmp_path: Path) -> None:
    rows = [{"prompt": "x", "answer": 1}]
    assert made(tmp_path, rows).needs == frozenset()
    assert made(tmp_path, rows, equality="math").needs == {"calls"}
    assert made(tmp_path, rows, judge="rewards.py:two").needs == {"calls"}


def test_a_trl_function_judges_conversations_unchanged(tmp_path: Path, judge: Any, gold_failures: Any) -> None:
    prompt = [{"role": "user", "content": "2 + 2?"}]
    rows: list[dict[str, Any]] = [{"prompt": prompt, "answer": "4"}, {"prompt": prompt, "answer": None}]
    environment = made(tmp_path, rows, judge="rewards.py:format_and_answer", gold="<answer>{answer}</answer>")
    right, form, wrong, none = judge(
        environment, [(0, "<answer>4</answer>"), (0, "<answer>5</answer>"), (0, "4"), (1, "<answer>4</answer>")]
    )
    assert [right.reward, form.reward, wrong.reward, none.reward] == [1.0, 0.5, 0.0, None]
    assert [right.passed, form.passed, none.passed] == [True, False, False]
    assert "did not judge" in none.note
    assert gold_failures(environment, 8) == []


def test_a_trl_function_gets_what_trl_would_give_it(tmp_path: Path, judge: Any) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    completion = [{"role": "assistant", "content": "done"}]
    rows: list[dict[str, Any]] = [
        {"prompt": messages, "level": 3, "expected_prompt": messages, "expected_completion": completion},
        {"prompt": "u", "level": 3, "expected_prompt": "u", "expected_completion": "done"},
    ]
    environment = made(tmp_path, rows, judge="rewards.py:sees")
    assert [judgement.reward for judgement in judge(environment, [(0, "done"), (1, "done")])] == [1.0, 1.0]
    assert environment.gold(environment.task(0)) is None


def test_an_async_trl_function_that_prints_is_awaited(tmp_path: Path, judge: Any) -> None:
    environment = made(tmp_path, [{"prompt": "x"}], judge="rewards.py:async_judge", pass_reward=3)
    low, high = judge(environment, [(0, "ab"), (0, "abc")])
    assert [(low.reward, low.passed), (high.reward, high.passed)] == [(2.0, False), (3.0, True)]


def test_a_verl_function_judges_unchanged_and_its_numbers_become_metrics(
    tmp_path: Path, judge: Any, gold_failures: Any
) -> None:
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "2 + 2?"}],
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 7},
    }
    environment = made(tmp_path, [row], judge="rewards.py:compute_score", judge_style="verl", gold="#### {answer}")
    right, wrong = judge(environment, [(0, "so\n#### 4"), (0, "4")])
    assert right == Judgement(reward=1.0, passed=True, metrics={"acc": 1.0, "index": 7.0})
    assert (wrong.reward, wrong.passed) == (0.0, False)
    assert gold_failures(environment, 8) == []


def test_a_verl_function_works_on_plain_rows_and_may_return_numpy(tmp_path: Path, judge: Any) -> None:
    rows = [{"prompt": "x", "answer": "4"}]
    plain = made(tmp_path, rows, judge="rewards.py:compute_score_plain", judge_style="verl")
    assert judge(plain, [(0, "12345")])[0].reward == 0.05
    numpy = made(tmp_path, rows, judge="rewards.py:compute_score_numpy", judge_style="verl")
    assert judge(numpy, [(0, "")])[0] == Judgement(reward=0.5, passed=False, metrics={"hits": 3.0})


@pytest.mark.parametrize(
    ("function", "style", "said"),
    [
        ("two", "trl", r"returned \[1.0, 2.0\]; expected a list of one reward"),
        ("not_finite", "trl", "gave the reward nan; expected a finite number"),
        ("raises", "trl", r"KeyError: 'solution' \(rewards.py:\d+\)"),
        ("compute_score_bad", "verl", "expected a dict with `score`"),
    ],
)
def test_a_function_that_misbehaves_is_an_error_and_never_a_reward(
    tmp_path: Path, judge: Any, function: str, style: str, said: str
) -> None:
    environment = made(tmp_path, [{"prompt": "x", "answer": "1"}], judge=f"rewards.py:{function}", judge_style=style)
    with pytest.raises(errors.ExtensionFailed, match=said):
        judge(environment, [(0, "1")])
