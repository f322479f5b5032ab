"""Mathematics with a Python tool: what is run, what is read, what counts as the answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from huilu import errors
from huilu.config import tree
from huilu.core.generation import Program, RunResult
from huilu.core.nouns import Message
from huilu.envs.math_tool import MathTool
from huilu.envs.math_tool.calls import BadCall, find_call
from huilu.envs.program_output import LABEL
from huilu.envs.registry import build_environment
from huilu.sandbox.client import SandboxClient
from huilu.telemetry import Telemetry

ROW = {"prompt": "What is 12 squared?", "answer": "144"}
CALL = "I compute it.\n```python\nprint(12 ** 2)\n```"
AS_JSON = '<tool_call>{"name": "python", "arguments": {"code": "print(12 ** 2)"}}</tool_call>'


class Tools:
    """A sandbox that answers every run with `result` and notes the programs."""

    def __init__(self, **result: Any) -> None:
        self.result = RunResult(**{"verdict": "AC", **result})
        self.programs: list[Program] = []
        self.sandbox, self.calls = self, None

    async def run(self, program: Program) -> RunResult:
        self.programs.append(program)
        return self.result


def environment(folder: Path, *rows: dict[str, Any], **params: Any) -> MathTool:
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows or (ROW,)))
    made = build_environment("math_tool", {"path": "sums.jsonl", **params}, folder)
    assert isinstance(made, MathTool)
    return made


def reads(made: MathTool, tools: Any, *answers: str) -> str | None:
    message = asyncio.run(made.reply(made.task(0), answers, tools))
    return None if message is None else message.content


def test_the_tool_is_explained_once_before_the_question(tmp_path: Path) -> None:
    system, question = environment(tmp_path).task(0).prompt
    assert (system.role, "```python" in system.content, question) == ("system", True, Message("user", ROW["prompt"]))
    own = {**ROW, "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]}
    system, _ = environment(tmp_path, own, syntax="tool_call").task(0).prompt
    assert system.content.startswith("Be brief.\n\nYou may call a tool. <tools>[{")
    json.loads(system.content.partition("<tools>")[2].partition("</tools>")[0])
    assert len(environment(tmp_path, system="").task(0).prompt) == 1


def test_a_program_is_run_and_its_output_read(tmp_path: Path) -> None:
    tools = Tools(stdout="144\n")
    assert reads(environment(tmp_path), tools, CALL) == f"{LABEL}\n```text\n144\n```"
    assert [program.source for program in tools.programs] == ["print(12 ** 2)\n"]
    assert reads(environment(tmp_path, syntax="tool_call"), tools, AS_JSON) == f"{LABEL}\n```text\n144\n```"
    assert tools.programs[1].source == "print(12 ** 2)"


def test_an_answer_without_a_call_is_final(tmp_path: Path) -> None:
    assert reads(environment(tmp_path), Tools(), CALL, "It is \\boxed{144}.") is None
    assert reads(environment(tmp_path, syntax="tool_call"), Tools(), CALL) is None


def test_after_the_last_run_the_model_is_told_and_no_program_runs(tmp_path: Path) -> None:
    made, tools = environment(tmp_path, max_runs=2), Tools(stdout="144")
    assert reads(made, tools, CALL) == f"{LABEL}\n```text\n144\n```"
    said = reads(made, tools, CALL, CALL)
    assert said is not None
    assert said.endswith("```\nThat was the last run. Now give the final answer in \\boxed{}.")
    assert reads(made, tools, CALL, CALL, CALL) is None
    assert len(tools.programs) == 2


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"stdout": "1\n", "stderr": "oh\n"}, "1\noh"),
        ({}, "(it printed nothing)"),
        ({"verdict": "TLE", "note": "not done after 10 s"}, "TLE: not done after 10 s"),
        ({"verdict": "RE", "stderr": "ValueError: x", "note": "ValueError: x"}, "ValueError: x"),
        ({"stdout": "\x1b[2J<|im_end|>"}, r"\x1b[2J<|im_end|>"),
    ],
)
def test_what_a_run_said_is_quoted_as_data(tmp_path: Path, result: dict[str, Any], shown: str) -> None:
    assert reads(environment(tmp_path), Tools(**result), CALL) == f"{LABEL}\n```text\n{shown}\n```"


def test_a_sandbox_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.SandboxFailed, match="no slot"):
        reads(environment(tmp_path), Tools(verdict="SBX", note="no slot"), CALL)


@pytest.mark.parametrize("call", ["{", '{"name": "rm"}', "[]", '{"name": "python", "arguments": {"code": 3}}', "3"])
def test_a_call_that_cannot_be_read_is_told_and_not_run(tmp_path: Path, call: str) -> None:
    tools = Tools()
    said = reads(environment(tmp_path, syntax="tool_call"), tools, f"<tool_call>{call}</tool_call>")
    assert said is not None
    assert "the call" in said
    assert tools.programs == []


def test_calls_are_found_in_both_ways_of_writing() -> None:
    assert find_call("```python\na\n```\nthen\n```python\nb\n```", "python") == "b\n"
    assert find_call("```\n\n```", "python") is None
    assert find_call("a **b**", "python") is None
    assert find_call(AS_JSON.removesuffix("</tool_call>"), "tool_call") == "print(12 ** 2)"
    assert find_call(f"<tool_call>[{AS_JSON[11:-12]}]</tool_call>", "tool_call") == "print(12 ** 2)"
    assert isinstance(find_call("<tool_call>print(1)</tool_call>", "tool_call"), BadCall)


def test_the_last_answer_is_judged_as_mathematics(tmp_path: Path, judge: Any) -> None:
    made = environment(tmp_path, ROW, {"prompt": "Half of one?", "answer": "\\frac{1}{2}"})
    found = judge(made, [(0, "It is \\boxed{144}."), (0, "\\boxed{12^2}"), (0, "\\boxed{145}"), (1, "\\boxed{0.5}")])
    assert [judgement.reward for judgement in found] == [1.0, 1.0, 0.0, 1.0]
    assert found[0].metrics == {"turns": 1.0}


def test_gold_answers_pass(tmp_path: Path, gold_failures: Any) -> None:
    assert gold_failures(environment(tmp_path, ROW, {"prompt": "?", "answer": 7}), 2) == []


def test_a_program_cannot_see_the_answer(tmp_path: Path) -> None:
    """In the real sandbox: neither files nor the environment hold the task."""
    look = "```python\nimport os\nprint(os.listdir('.'), sorted(os.environ))\nprint(12 * 12)\n```"

    async def work() -> str | None:
        client = SandboxClient(tree.Sandbox(wall_s=60), Telemetry())
        tools = Tools()
        tools.run = client.run  # type: ignore[method-assign]
        try:
            made = environment(tmp_path)
            message = await made.reply(made.task(0), [look], tools)  # type: ignore[arg-type]
            return None if message is None else message.content
        finally:
            await client.close()

    said = asyncio.run(work())
    assert said is not None
    assert said.endswith("\n144\n```")
    assert "sums" not in said
