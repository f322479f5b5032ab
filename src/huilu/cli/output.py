"""How commands speak: records as JSON or lines on stdout, errors and progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from huilu import errors

SCHEMA_VERSION = 1


def print_json(value: Any) -> None:
    """One object on stdout, indented."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2) + b"\n")
    sys.stdout.buffer.flush()


def print_rows(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table on stdout; plain tab-separated lines when it is not a terminal."""
    if not sys.stdout.isatty():
        sys.stdout.writelines("\t".join(row) + "\n" for row in [columns, *rows])
        return
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def complain(error: errors.HuiluError) -> None:
    """An error for people: what, seen, expected, next; on stderr."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error[/] [dim]\\[{error.code}][/] ", end="")
    console.print(str(error), markup=False)
