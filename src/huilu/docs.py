"""Pages of the documentation that are made from the code: commands and errors. Called by `python -m huilu.docs`.

A test keeps the committed pages equal to what this makes. Settings and metrics have their pages in their own rooms.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from huilu import errors
from huilu.cli.app import COMMANDS, load
from huilu.config import explain

DOCS = Path("docs")


def commands_page() -> str:
    """Every command with its arguments and options, as Markdown."""
    lines = ["# Commands", "", "Made from the code by `python -m huilu.docs`; a test keeps the two equal.", ""]
    for path, (place, about) in COMMANDS.items():
        lines += [f"## `huilu {path}`", "", about, "", "| argument | default | meaning |", "| --- | --- | --- |"]
        lines += [f"| {name} | {default} | {meaning} |" for name, default, meaning in _parameters(load(place))]
        lines.append("")
    return "\n".join(lines)


def errors_page(root: type[errors.HuiluError]) -> str:
    """Every error with its code and exit status, as Markdown."""
    lines = [
        "# Errors",
        "",
        "Every error a command can end with. `code` stands in logs and JSON. Made by `python -m huilu.docs`.",
        "",
        "| code | exit status | meaning |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| `{kind.code}` | {kind.exit_status} | {(kind.__doc__ or '').splitlines()[0]} |" for kind in _family(root)
    ]
    return "\n".join(lines) + "\n"


def _family(root: type[errors.HuiluError]) -> Iterator[type[errors.HuiluError]]:
    yield root
    for child in root.__subclasses__():
        yield from _family(child)


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        info = next(
            (each for each in typing.get_args(hints[name]) if isinstance(each, ArgumentInfo | OptionInfo)), None
        )
        if isinstance(info, ArgumentInfo):
            yield f"`{info.metavar or name.upper()}`", "required", info.help or ""
        elif info is not None:
            declared = [info.default, *(info.param_decls or ())] if isinstance(info.default, str) else info.param_decls
            names = ", ".join(f"`{each}`" for each in declared or (f"--{name.replace('_', '-')}",))
            yield names, _default(parameter.default), info.help or ""


def _default(value: Any) -> str:
    return "" if value in (None, "", False, [], inspect.Parameter.empty) else f"`{value}`"


def main() -> None:
    """Write the pages."""
    (DOCS / "commands.md").write_text(commands_page())
    (DOCS / "errors.md").write_text(errors_page(errors.HuiluError))
    (DOCS / "settings.md").write_text(explain.settings_table())


if __name__ == "__main__":
    main()
