"""A program under a job's limits, and what a program may not ask for. Pure; called by `client` and `session`."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from huilu import errors
from huilu.config import tree
from huilu.core.generation import Program

RESERVED = ("main.py", "candidate.py", "check.py")


def limited(program: Program, settings: tree.Sandbox) -> Program:
    """The program under the job's limits. Raises Usage for files that cannot be placed in the work folder."""
    folders = {folder for name in program.files for folder in check_path(name).parents}
    for name in program.files:
        if PurePosixPath(name) in folders:
            raise errors.Usage(f"a file called {name!r}", expected="a path that is no other file's folder")
    size_bytes = sum(map(len, program.files.values())) + sum(len(file.content) for file in program.tree.values())
    if size_bytes > settings.disk_bytes:
        raise errors.Usage(f"files of {size_bytes} bytes", expected=f"at most {settings.disk_bytes}")
    return msgspec.structs.replace(
        program,
        source=encodable(program.source),
        stdin=encodable(program.stdin),
        wall_s=settings.wall_s,
        cpu_s=settings.cpu_s,
        memory_bytes=settings.memory_bytes,
        output_bytes=settings.output_bytes,
        disk_bytes=settings.disk_bytes,
        inodes=settings.inodes,
        open_files=settings.open_files,
        processes=settings.processes,
    )


def check_path(name: str) -> PurePosixPath:
    """A file's path in the work folder. Raises Usage for one that is outside, or of no file."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not path.name:
        raise errors.Usage(f"a file called {name!r}", expected="a path inside the work folder, of no folder")
    return path


def encodable(text: str) -> str:
    """The text with its lone surrogates, which no encoding carries, as escapes: the same in a string literal."""
    return text.encode("utf-8", "backslashreplace").decode()
