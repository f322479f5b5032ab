"""The program in a model's answer: a fenced block, a whole function, or only the rest of one.

Called by `code`, `code_repair` and `math_tool`. Works on text alone: what a model wrote is never parsed or run in
this process.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^\n`]*$", re.MULTILINE)
_PYTHON = ("", "python", "python3", "py")
_CODE_AT_COLUMN_0 = re.compile(
    r"(?:async |def |class |import |from |return\b|raise\b|pass$|@|#|[)\]}]|[A-Za-z_]\w* ?=)"
    r"|(?:if|elif|else|for|while|with|try|except|finally)\b.*:\s*(?:#.*)?$"
)
INDENT = " " * 4


def extract_program(answer: str, prompt: str, entry_point: str) -> str | None:
    """Source that defines `entry_point`: the prompt's imports and helpers, and the answer's code. None without code.

    The last fenced block that defines the function counts, then the first Python block, then the text itself. An
    answer without the function's `def` continues the prompt, as a base model does.
    """
    code = _code_of(answer.replace("\r\n", "\n"), entry_point)
    if not code.strip():
        return None
    if not _defines(code, entry_point):
        return prompt + ("" if prompt.endswith("\n") else "\n") + _as_body(code)
    future, rest = _split_future_imports(_dedent(code))
    return future + _preamble(prompt, entry_point) + rest


def extract_script(answer: str) -> str | None:
    """A whole program: the last Python block, or the text itself where no block is. None without code."""
    text = answer.replace("\r\n", "\n")
    blocks = fenced_blocks(text)
    script = blocks[-1] if blocks else text
    return script if script.strip() else None


def _code_of(answer: str, entry_point: str) -> str:
    blocks = fenced_blocks(answer)
    defining = [block for block in blocks if _defines(block, entry_point)]
    if defining:
        return defining[-1]
    if blocks:
        return blocks[0]
    return _without_prose(answer, entry_point)


def fenced_blocks(text: str) -> list[str]:
    """The Python or unmarked fenced blocks of a Markdown text; a block cut off by the end counts."""
    blocks, opening = [], None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif fence["mark"][0] == opening["mark"][0] and len(fence["mark"]) >= len(opening["mark"]):
            if opening["language"].lower() in _PYTHON:
                blocks.append(text[opening.end() + 1 : fence.start()])
            opening = fence if fence["language"] else None  # a second opening: the first was never closed
    if opening is not None and opening["language"].lower() in _PYTHON:
        blocks.append(text[opening.end() + 1 :])
    return blocks


def _defines(code: str, name: str) -> bool:
    return re.search(rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+{re.escape(name)}\b", code, re.MULTILINE) is not None


def _without_prose(text: str, entry_point: str) -> str:
    """Unfenced text without what is said before the code and after it."""
    lines = text.splitlines(keepends=True)
    if _defines(text, entry_point):
        first = next((i for i, line in enumerate(lines) if _CODE_AT_COLUMN_0.match(line)), 0)
        lines = lines[first:]
    kept: list[str] = []
    open_quotes = dict.fromkeys(('"""', "'''"), False)
    for i, line in enumerate(lines):
        at_column_0 = line.strip() and not line[0].isspace()
        if i > 0 and at_column_0 and not any(open_quotes.values()) and not _CODE_AT_COLUMN_0.match(line):
            break
        kept.append(line)
        for quote in open_quotes:
            open_quotes[quote] ^= line.count(quote) % 2 == 1
    return "".join(kept)


def _as_body(code: str) -> str:
    """Code as the inside of a function: indented once, however the model indented it."""
    lines = [_spaces_for_tabs(line) for line in code.rstrip().split("\n")]
    while lines and not lines[0].strip():
        lines.pop(0)
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    if min(indents) < indents[0]:  # a body as it should be, and more after it
        return "\n".join(lines) + "\n"
    if _lost_its_first_indent(lines[0], indents):
        lines[0] = INDENT + lines[0]
        return "\n".join(lines) + "\n"
    return "\n".join(INDENT + line[indents[0] :] if line.strip() else "" for line in lines) + "\n"


def _spaces_for_tabs(line: str) -> str:
    text = line.lstrip(" \t")
    return line[: len(line) - len(text)].expandtabs(4) + text


def _lost_its_first_indent(first_line: str, indents: list[int]) -> bool:
    """Is only the first line at column 0, because the text was stripped, and not because it opens a block?"""
    if indents[0] > 0 or len(indents) == 1 or min(indents[1:]) < len(INDENT):
        return False
    return not (first_line.rstrip().endswith(":") and indents[1] == len(INDENT))


def _dedent(code: str) -> str:
    """Code moved left by the indent of its first line, where every line has it."""
    lines = code.splitlines(keepends=True)
    first = next(line for line in lines if line.strip())
    margin = first[: len(first) - len(first.lstrip())]
    if not margin or any(line.strip() and not line.startswith(margin) for line in lines):
        return code
    return "".join(line[len(margin) :] if line.strip() else line for line in lines)


def _split_future_imports(code: str) -> tuple[str, str]:
    """`from __future__` lines, which must come first in a file, and the rest."""
    lines = code.splitlines(keepends=True)
    future = [line for line in lines if line.startswith("from __future__ ")]
    return "".join(future), "".join(line for line in lines if not line.startswith("from __future__ "))


def _preamble(prompt: str, entry_point: str) -> str:
    """What the prompt defines before the function: imports and helpers that an answer may leave out."""
    starts = [
        match.start()
        for match in re.finditer(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}\b", prompt, re.MULTILINE)
    ]
    return prompt[: starts[-1]].strip("\n") + "\n\n" if starts and prompt[: starts[-1]].strip() else ""
