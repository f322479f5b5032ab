"""One row of a task file: its prompt, its answer, and the columns a reward function may want.

Called by `huilu.envs.jsonl`. Knows the field names of TRL (`prompt`, any further columns) and of verl
(`data_source`, `prompt` messages, `reward_model.ground_truth`, `extra_info`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from huilu import errors
from huilu.core.nouns import Message

_ROLES = ("system", "user", "assistant", "tool")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One task. `conversational` says that the file gave messages, not a string."""

    prompt: tuple[Message, ...]
    conversational: bool
    answer: Any
    columns: dict[str, Any]


def parse_row(fields: dict[str, Any], prompt_field: str, answer_field: str) -> Row:
    """The row in one object of the file; `answer` is None when there is none. Raises BadData."""
    if prompt_field not in fields:
        raise errors.BadData(
            f"no field {prompt_field!r} among {', '.join(fields) or 'none'}",
            expected=f"{prompt_field!r} with the prompt",
            fix=errors.nearest(prompt_field, fields) or "name the field with `prompt_field`",
        )
    prompt = fields[prompt_field]
    return Row(
        prompt=_messages(prompt, prompt_field),
        conversational=not isinstance(prompt, str),
        answer=_answer(fields, answer_field),
        columns={name: value for name, value in fields.items() if name != prompt_field},
    )


def _messages(prompt: Any, field: str) -> tuple[Message, ...]:
    expected = "a string, or a list of {role, content} with text content"
    if isinstance(prompt, str) and prompt.strip():
        return (Message("user", prompt),)
    if not isinstance(prompt, list) or not prompt:
        raise errors.BadData(f"{field!r} is {_describe(prompt)}", expected=expected)
    try:
        messages = tuple(msgspec.convert(prompt, list[Message]))
    except msgspec.ValidationError as error:
        raise errors.BadData(f"{field!r}: {error}", expected=expected) from error
    for message in messages:
        if message.role not in _ROLES:
            raise errors.BadData(f"{field!r} has the role {message.role!r}", expected=f"one of {', '.join(_ROLES)}")
    return messages


def _answer(fields: dict[str, Any], answer_field: str) -> Any:
    """The expected answer: verl's ground truth where the row is verl's, the named field otherwise."""
    reward_model = fields.get("reward_model")
    if answer_field in fields or reward_model is None:
        return fields.get(answer_field)
    if not isinstance(reward_model, dict) or "ground_truth" not in reward_model:
        raise errors.BadData(f"'reward_model' is {_describe(reward_model)}", expected="{style, ground_truth}")
    return reward_model["ground_truth"]


def answer_text(answer: Any, field: str) -> str:
    """An expected answer as text, for the equalities. Raises BadData for what is neither text nor a number."""
    if isinstance(answer, str) and answer.strip():
        return answer
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        return str(answer)
    raise errors.BadData(
        f"the answer is {_describe(answer)}",
        expected=f"text or a number in {field!r} (or verl's reward_model.ground_truth)",
        fix="name the field with `answer_field`, or judge with `judge`",
    )


def _describe(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, (str, list, dict)) and not value:
        return f"an empty {type(value).__name__}"
    return f"of type {type(value).__name__}"
