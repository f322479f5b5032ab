"""Code that the job brought along, called in worker processes that can be killed: the `Calls` port.

Called by environments through `Tools.calls`. A call that passes its deadline, or whose process crashes, costs that
process and nobody else's call. Never imports the code it calls.

    call -> a free worker -> load (once a function, own deadline) -> call (the caller's deadline)
            time-out: SIGKILL, TimedOut      crash: ExtensionFailed with what it printed last
            killed from outside: once more on a fresh worker, then WorkerDied (infrastructure, never a reward)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huilu import errors, wire
from huilu.telemetry import Telemetry

LOAD_TIMEOUT_S = 120.0
"""Deadline of importing a function's module, seconds; sympy and the like take a while on a busy machine."""
TAIL_BYTES = 4096
EXIT_S = 5.0
POLL_S = 0.01
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that a crash does not send: the operator's, or the kernel's for want of memory."""


class Calls:
    """A small pool of workers, started when first needed; each runs one call at a time.

    `folder` is where relative paths in targets start, and the workers' working directory. `secrets` are further
    environment variables, by value; they reach the workers alone, and are struck out of every error. Belongs to
    one event loop; close it in the end.
    """

    def __init__(
        self,
        folder: Path,
        telemetry: Telemetry,
        *,
        secrets: Mapping[str, str] | None = None,
        num_workers: int = 2,
        load_timeout_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        self._folder, self._telemetry = folder.absolute(), telemetry
        self._secrets = dict(secrets or {})
        self._load_timeout_s = load_timeout_s
        self._slots = asyncio.Semaphore(num_workers)
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._closed = False

    async def call(self, target: str, kwargs: dict[str, Any], timeout_s: float) -> Any:
        """The result of the function `target`, on plain values. `timeout_s` counts from when a worker runs it.

        Raises ExtensionFailed (it raised, crashed or returned what cannot be sent), TimedOut, NotFound (no such
        function), WorkerDied.
        """
        async with self._slots:
            try:
                return await self._attempt_twice(target, kwargs, timeout_s)
            except errors.HuiluError as error:
                self._telemetry.count("huilu_extension_errors_total", what=error.code)
                raise self._without_secrets(error) from None

    async def close(self) -> None:
        """Kill every worker; calls under way fail."""
        self._closed = True
        await asyncio.gather(*(self._discard(worker) for worker in list(self._workers)))

    async def _attempt_twice(self, target: str, kwargs: dict[str, Any], timeout_s: float) -> Any:
        try:
            return await self._attempt(target, kwargs, timeout_s)
        except errors.WorkerDied as error:
            self._telemetry.count("huilu_extension_errors_total", what=error.code)
            return await self._attempt(target, kwargs, timeout_s)

    async def _attempt(self, target: str, kwargs: dict[str, Any], timeout_s: float) -> Any:
        if self._closed:
            raise errors.WorkerDied("the run is ending and its workers are gone")
        worker = self._idle.pop() if self._idle else await self._start()
        reusable = False
        try:
            result = await worker.call(target, kwargs, timeout_s, self._load_timeout_s)
            reusable = True
            return result
        except errors.ProcessDied as error:
            raise await worker.post_mortem(target) from error
        except errors.TimedOut:
            raise
        except errors.HuiluError:
            reusable = True  # the function failed, not its process
            raise
        finally:
            if reusable and not self._closed:
                self._idle.append(worker)
            else:
                await self._discard(worker)

    async def _start(self) -> _Worker:
        worker = await _Worker.start(self._folder, {**os.environ, **self._secrets})
        self._workers.add(worker)
        return worker

    async def _discard(self, worker: _Worker) -> None:
        self._workers.discard(worker)
        await worker.kill()

    def _without_secrets(self, error: errors.HuiluError) -> errors.HuiluError:
        observed = error.observed
        for name, value in self._secrets.items():
            if value:
                observed = observed.replace(value, f"<{name}>")
        return type(error)(observed, expected=error.expected, fix=error.fix)


class _Worker:
    """One process, its channel, and the end of what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], peer: wire.Peer, output: _Output) -> None:
        self._process, self._peer, self._output = process, peer, output
        self._loaded: set[str] = set()
        self._killed = False

    @classmethod
    async def start(cls, folder: Path, environ: dict[str, str]) -> _Worker:
        ours, theirs = socket.socketpair()
        output = _Output()
        # -P: a file of the job called like a standard module must not hide it; -u: a crash loses no output
        command = [sys.executable, "-u", "-P", "-m", "huilu.work.worker", str(theirs.fileno()), str(os.getpid())]
        try:
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own module; starting does not wait
                command,
                stdin=subprocess.DEVNULL,
                stdout=output.sink,
                stderr=output.sink,
                cwd=folder,
                env=environ,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the run's to handle; killing the group gets its children too
            )
        except OSError as error:
            ours.close()
            output.close()
            raise errors.from_os(error, f"starting a worker in {folder}") from error
        finally:
            theirs.close()
            output.close_sink()
        ours.setblocking(False)
        # A function may hold the interpreter for long: its deadline, not silence, says when it is given up.
        peer = await wire.Peer.over(ours, f"worker {process.pid}", silence_s=math.inf, stall_s=math.inf)
        return cls(process, peer, output)

    async def call(self, target: str, kwargs: dict[str, Any], timeout_s: float, load_timeout_s: float) -> Any:
        try:
            wire.raw(kwargs)
        except (TypeError, ValueError, OverflowError) as error:
            raise errors.BadData(f"the arguments of {target} cannot be sent: {error}") from error
        if target not in self._loaded:
            await self._ask("load", target, {}, load_timeout_s)
            self._loaded.add(target)
        return await self._ask("call", target, kwargs, timeout_s)

    async def _ask(self, method: str, target: str, kwargs: dict[str, Any], timeout_s: float) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._peer.call(method, (target, kwargs), object)
        except TimeoutError as error:
            doing = "importing it" if method == "load" else "running it"
            raise errors.TimedOut(
                f"{target}: {doing} took more than {timeout_s:g} s, and its process was killed"
            ) from error

    async def post_mortem(self, target: str) -> errors.HuiluError:
        """The error of a process that ended by itself, or closed its channel."""
        status = await self._status()
        if status is not None and -status in FROM_OUTSIDE:
            return errors.WorkerDied(
                f"{target}: its process got {signal.Signals(-status).name} from outside",
                fix="look for the kernel's out-of-memory killer in the system log",
            )
        if status is None:
            end = "closed its channel"
        elif status < 0:
            end = f"crashed with {signal.Signals(-status).name}"
        else:
            end = f"ended with status {status}"
        said = self._output.tail()
        return errors.ExtensionFailed(f"{target}: its process {end}" + (f"; it last said:\n{said}" if said else ""))

    async def _status(self) -> int | None:
        """The exit status, negative for a signal, soon after the end; None while the process lives on.

        Peeks without reaping: until `kill` is done with it, the process id still names the group.
        """
        for _ in range(round(EXIT_S / POLL_S)):
            if self._killed:
                return -signal.SIGKILL
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # noqa: ASYNC222 - WNOHANG
            if ended is not None:
                return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            await asyncio.sleep(POLL_S)
        return None

    async def kill(self) -> None:
        """End the process, and what it started in its session."""
        if self._killed:
            return
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._peer.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, EXIT_S)
        self._output.close()


class _Output:
    """The end of what a process prints, drained as it comes so that printing never blocks it."""

    def __init__(self) -> None:
        self._source, self.sink = os.pipe()
        os.set_blocking(self._source, False)
        self._kept = bytearray()
        self._open = True
        asyncio.get_running_loop().add_reader(self._source, self._drain)

    def tail(self) -> str:
        self._drain()
        return self._kept.decode("utf-8", "replace").strip()

    def close_sink(self) -> None:
        os.close(self.sink)

    def close(self) -> None:
        if self._open:
            self._open = False
            asyncio.get_running_loop().remove_reader(self._source)
            os.close(self._source)

    def _drain(self) -> None:
        if not self._open:
            return
        try:
            part = os.read(self._source, 1 << 16)
        except BlockingIOError:
            return
        if not part:  # the last writer is gone
            asyncio.get_running_loop().remove_reader(self._source)
        self._kept = (self._kept + part)[-TAIL_BYTES:]
