"""What goes into a jail's files: the program as it is, or the two sides of a check. Called by `daemon`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from huilu.core.generation import Program

INSIDE = Path(__file__).parent / "inside"


def source(program: Program) -> bytes:
    """The program's text as a file."""
    return program.source.encode("utf-8", "surrogateescape")


def candidate(program: Program) -> Program:
    """The jail in which the answer runs."""
    files = {**program.files, "candidate.py": source(program), "serve.py": _script("serve")}
    return msgspec.structs.replace(program, files=files)


def examiner(program: Program, check: str) -> Program:
    """The jail in which the test runs. It has the program's limits and none of its files."""
    files = {"check.py": check.encode(), "examine.py": _script("examine")}
    return msgspec.structs.replace(program, files=files, stdin="")


def _script(name: str) -> bytes:
    return (INSIDE / "values.py").read_bytes() + b"\n\n" + (INSIDE / f"{name}.py").read_bytes()
