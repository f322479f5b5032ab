"""A running supervisor process and the connection to it. Called by `client` and `levels`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
from typing import IO

from huilu import errors, wire
from huilu.core.generation import Program, RunResult
from huilu.sandbox.daemon import Check
from huilu.sandbox.zygotes.profiles import Built

STOP_S = 3.0
TAIL_CHARS = 300


class Supervised:
    """One supervisor. It ends when this closes, or when this process dies."""

    def __init__(self, process: subprocess.Popen[bytes], peer: wire.Peer, log: IO[bytes]) -> None:
        self._process, self._peer, self._log = process, peer, log

    @classmethod
    async def launch(cls, level: str) -> Supervised:
        """Start a supervisor for jails of this level."""
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - returns at once; our own module
            [sys.executable, "-m", "huilu.sandbox.daemon", str(theirs.fileno()), level],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        theirs.close()
        ours.setblocking(False)
        return cls(process, await wire.Peer.over(ours, "the sandbox's supervisor"), log)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self, program: Program, timeout_s: float) -> RunResult:
        return await self._call("run", program, timeout_s)

    async def check(self, program: Program, check: str, timeout_s: float) -> RunResult:
        return await self._call("check", Check(program, check), timeout_s)

    async def profiles(self, timeout_s: float) -> list[Built]:
        """The profiles here, each with its zygote started."""
        return await self._peer.call("profiles", None, list[Built], timeout_s)

    async def close(self) -> None:
        """End the supervisor and all its jails."""
        await self._peer.close()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await loop.run_in_executor(None, self._process.wait)
        self._log.close()

    async def _call(self, method: str, body: object, timeout_s: float) -> RunResult:
        try:
            return await self._peer.call(method, body, RunResult, timeout_s)
        except errors.ProcessDied as error:
            raise errors.SandboxFailed(f"its supervisor died{self._last_words()}") from error

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._log.seek(0)
            text = self._log.read().decode(errors="replace").strip()
            return f": {text[-TAIL_CHARS:]}" if text else ""
        return ""
