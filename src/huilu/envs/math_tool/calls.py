"""The tool call in an answer: the Python program that the model wants to have run. Text alone.

Called by `math_tool`. Two ways to write one, as the environment's `syntax` says:

    python      a fenced block: ```python … ```        (as in ToRA and Qwen2.5-Math; any instruction model writes it)
    tool_call   <tool_call>{"name": "python", "arguments": {"code": "…"}}</tool_call>      (Hermes; SmolLM2, Qwen)
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from huilu.envs.code.extract import fenced_blocks

Syntax = Literal["python", "tool_call"]
TOOL = "python"
_CALL = re.compile(r"<tool_call>(?P<call>.*?)(?:</tool_call>|\Z)", re.DOTALL)

INSTRUCTIONS: dict[str, str] = {
    "python": (
        "You may run Python: write one ```python block that prints what you want to know, and stop. "
        "You are then shown its output. Put the final answer in \\boxed{}, without a program."
    ),
    "tool_call": (
        "You may call a tool. <tools>"
        '[{"name": "python", "description": "Runs a Python program and returns what it prints", '
        '"parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}]'
        "</tools> To call it, write "
        '<tool_call>{"name": "python", "arguments": {"code": "..."}}</tool_call> and stop. '
        "Put the final answer in \\boxed{}, without a call."
    ),
}


class BadCall(msgspec.Struct, frozen=True):
    """A call that cannot be read, and why: it is told to the model."""

    why: str


def find_call(answer: str, syntax: Syntax) -> str | BadCall | None:
    """The program of the last call in an answer; None where there is none, so that the answer is final."""
    if syntax == "python":
        blocks = [block for block in fenced_blocks(answer.replace("\r\n", "\n")) if block.strip()]
        return blocks[-1] if blocks else None
    calls = [match["call"] for match in _CALL.finditer(answer)]
    return _read(calls[-1]) if calls else None


def _read(text: str) -> str | BadCall:
    try:
        call: Any = msgspec.json.decode(text.strip())
    except msgspec.DecodeError as error:
        return BadCall(f"the call is no JSON: {error}")
    if isinstance(call, list) and len(call) == 1:  # SmolLM2 writes a list of calls
        call = call[0]
    arguments = call.get("arguments") if isinstance(call, dict) else None
    if not isinstance(arguments, dict) or call.get("name") != TOOL or not isinstance(arguments.get("code"), str):
        return BadCall(f'the call must be {{"name": "{TOOL}", "arguments": {{"code": "..."}}}}')
    return str(arguments["code"])
