"""What goes into a jail's files: the program as it is, or the two sides of a check. Called by `daemon`."""

from __future__ import annotations

import msgspec

from huilu.core.generation import Program
from huilu.sandbox.zygotes.root import PYTHON

MAIN = "/work/main.py"
_PYTHONS = ("python", "python3")


def start(program: Program) -> tuple[str, tuple[str, ...]]:
    """(what a zygote's child starts, its arguments). A Python script runs in the zygote's own interpreter."""
    if not program.command:
        return "script", (MAIN,)
    name, *arguments = program.command
    if name not in _PYTHONS:
        return "command", program.command
    if arguments and not arguments[0].startswith("-"):
        return "script", tuple(arguments)
    return "command", (*PYTHON, *arguments)


def source(program: Program) -> bytes:
    """The program's text as a file."""
    return program.source.encode("utf-8", "surrogateescape")


def plain(program: Program) -> Program:
    """The jail in which a program runs as it stands."""
    if program.command:
        return program
    return msgspec.structs.replace(program, files={**program.files, "main.py": source(program)})


def candidate(program: Program) -> Program:
    """The jail in which the answer runs; `inside/serve.py` is part of its zygote."""
    return msgspec.structs.replace(program, files={**program.files, "candidate.py": source(program)})


def examiner(program: Program, check: str) -> Program:
    """The jail in which the test runs. It has the program's limits and none of its files."""
    files = {"check.py": check.encode()}
    return msgspec.structs.replace(program, source=check, files=files, tree={}, keep=(), stdin="")
