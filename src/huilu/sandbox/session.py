"""A session: a work folder that lasts over several runs, while no process does.

Made by `SandboxClient.session`. Between turns its files are held here, packed, and nothing of it exists anywhere else:
it costs no CPU time while it is idle, and it survives a supervisor that dies. Each turn is a fresh jail with the files
of the turn before. What is to be judged is handed by `artefacts` to a fresh run, never judged in here.
"""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from huilu import errors
from huilu.core.generation import File, Program, RunResult
from huilu.sandbox import limits

ALL = (".",)
_FILE = stat.S_IFREG | 0o644
_TURN = ".turn.py"
"""Where a turn's source lies while it runs."""


class Session:
    """The files, and turns on them one at a time. An async context manager, for symmetry: nothing has to be closed."""

    def __init__(self, run: Callable[[Program], Awaitable[RunResult]], most_bytes: int) -> None:
        self._run, self._most_bytes = run, most_bytes
        self._tree: dict[str, File] = {}
        self._busy = False

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._tree = {}

    async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Put a file into the folder. Raises Usage for a path outside of it, and for more than the disk holds."""
        limits.check_path(path)
        grown = sum(len(file.content) for name, file in self._tree.items() if name != path) + len(content)
        if grown > self._most_bytes:
            raise errors.Usage(f"files of {grown} bytes", expected=f"at most {self._most_bytes}")
        parents = {"/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)}
        for name in (*parents, path):
            held = self._tree.get(name)
            if held is not None and stat.S_ISDIR(held.mode) == (name == path):
                raise errors.Usage(f"{path!r} where {name!r} is", expected="a folder above and a file or nothing there")
        self._tree[path] = File(stat.S_IFREG | stat.S_IMODE(mode), content)

    async def read(self, path: str) -> bytes:
        """A file's content. Raises NotFound where there is none; a link is not followed."""
        file = self._tree.get(path)
        if file is None or not stat.S_ISREG(file.mode):
            raise errors.NotFound(f"no file {path!r} in the session", expected=f"one of {', '.join(self.files()[:20])}")
        return file.content

    def files(self) -> list[str]:
        """The paths of its files."""
        return sorted(path for path, file in self._tree.items() if stat.S_ISREG(file.mode))

    def artefacts(self, paths: Sequence[str]) -> dict[str, bytes]:
        """The content of declared files, for a fresh run that judges them; those that are not there are left out."""
        return {path: self._tree[path].content for path in paths if path in set(self.files())}

    async def run(self, command: Sequence[str], stdin: str = "") -> RunResult:
        """Run a command in the folder, such as ["python", "main.py"]; the folder is what it leaves."""
        return await self._turn(Program(source="", command=tuple(command), stdin=stdin))

    async def run_source(self, source: str, stdin: str = "") -> RunResult:
        """Run Python source in the folder, without a file of it there."""
        written = File(_FILE, limits.encodable(source).encode())
        return await self._turn(Program(source=source, command=("python", _TURN), stdin=stdin), {_TURN: written})

    async def _turn(self, program: Program, further: dict[str, File] | None = None) -> RunResult:
        if self._busy:
            raise errors.Usage("two turns of one session at once", expected="one after the other")
        self._busy = True
        try:
            tree = {**self._tree, **(further or {})}
            result = await self._run(msgspec.structs.replace(program, tree=tree, keep=ALL))
        finally:
            self._busy = False
        if result.kept:  # else it was stopped, and the folder is as it was before
            self._tree = {path: file for path, file in result.files.items() if path != _TURN}
        return msgspec.structs.replace(result, kept=b"")
