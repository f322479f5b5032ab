"""The model process seen from control: starts it, calls it, and notices when it is gone.

Called by assembly; implements the ports `Generator`, `Learner` and `Engine`. Never imports torch: the process
is `python -m huilu.assembly.model`, joined by one socket pair, and ends when the socket does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from huilu import errors, wire
from huilu.core.generation import Completion, Sampling
from huilu.core.nouns import Claim, PolicyVersion, StepReport
from huilu.serving import protocol

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 3.0
T = TypeVar("T")


class ModelClient:
    """One model process. Close it, or its death is yours to explain."""

    def __init__(self, process: subprocess.Popen[bytes], peer: wire.Peer, log: Path) -> None:
        self._process, self._peer, self._log = process, peer, log
        self._ids = itertools.count()

    @classmethod
    async def launch(cls, log: Path, environment: Mapping[str, str]) -> ModelClient:
        """Start the process; its stderr goes to `log`."""
        ours, theirs = socket.socketpair()
        with log.open("ab") as stderr:
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - returns at once; our own module
                [sys.executable, "-m", "huilu.assembly.model", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C is control's to handle
            )
        theirs.close()
        ours.setblocking(False)
        return cls(process, await wire.Peer.over(ours, "the model process"), log)

    @property
    def pid(self) -> int:
        """The process, for whoever measures it from outside."""
        return self._process.pid

    async def start(self, request: protocol.Start) -> protocol.ModelInfo:
        """Load the model. Raises BadWeights, NotFound and the like as the process names them."""
        return await self._call("start", request, protocol.ModelInfo, START_TIMEOUT_S)

    async def generate(self, prompt_ids: list[int], sampling: Sampling, timeout_s: float) -> list[Completion]:
        """`sampling.n` completions; a caller that is cancelled takes its request along."""
        request = protocol.Generate(
            request_id=f"r{next(self._ids)}", prompt_ids=prompt_ids, sampling=sampling, timeout_s=timeout_s
        )
        try:
            return await self._call("generate", request, list[Completion], timeout_s + 60.0)
        except asyncio.CancelledError:
            with contextlib.suppress(errors.HuiluError):
                await asyncio.shield(self._call("cancel", protocol.Cancel(request.request_id), bool, 1.0))
            raise

    async def step(self, claim: Claim) -> StepReport:
        return await self._call("step", claim, StepReport)

    async def digest(self) -> str:
        """The digest of the learner's weights as they are."""
        return await self._call("digest", None, str)

    async def drift(self) -> float:
        """KL from the start weights, nats a token."""
        return await self._call("drift", None, float)

    async def sync(self, version: PolicyVersion) -> None:
        await self._call("sync", protocol.Sync(version.number, version.id), bool)

    async def save(self, weights: Path, state: Path | None = None) -> int:
        """Write a Hugging Face folder and the learner's state, each whole or not at all; bytes written."""
        return await self._call("save", protocol.Save(str(weights), str(state or "")), int)

    async def load(self, weights: Path, state: Path | None = None) -> str:
        """Take over saved files; the digest of the weights."""
        return await self._call("load", protocol.Load(str(weights), str(state or "")), str)

    async def stats(self) -> dict[str, float]:
        """Counters of the process so far."""
        return (await self._call("stats", None, protocol.Stats, 30.0)).values

    async def close(self) -> None:
        """End the process: it leaves when its socket closes, and is killed if it does not."""
        await self._peer.close()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await loop.run_in_executor(None, self._process.wait)

    async def _call(self, method: str, body: object, result: type[T], timeout_s: float | None = None) -> T:
        try:
            return await self._peer.call(method, body, result, timeout_s)
        except errors.ProcessDied as error:
            raise self._obituary() from error

    def _obituary(self) -> errors.ProcessDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        lines = self._log.read_text(errors="replace").strip().splitlines()[-3:] if self._log.exists() else []
        status = self._process.poll()
        how = "still runs" if status is None else f"ended with {_name(status)}"
        last = f"; its last words: {' / '.join(lines)}" if lines else ""
        return errors.ProcessDied(f"the model process {how}{last}", fix="run again with --resume")


def _name(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
