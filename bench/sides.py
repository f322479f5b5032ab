"""The peers as processes: each runs a script of bench/peers/ with the Python of its own environment (`make peers`).

Imported by the scripts beside it. One JSON line goes in, one comes out; a peer waits, using no CPU, while another side
is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from claims import ROOT, say

ENVIRONMENTS = ROOT / ".venv-peers"
SCRIPTS = ROOT / "bench" / "peers"


class Peer:
    """A running peer."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self.pid = name, process.pid
        self._process, self._log = process, log
        self.peak_bytes = 0

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to one message. Raises RuntimeError with the peer's last words when it died."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a peer without pipes")
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line:
            await self._process.wait()
            words = self._log.read_text(errors="replace").strip().splitlines()[-15:]
            raise RuntimeError(f"{self.name} ended with status {self._process.returncode}:\n" + "\n".join(words))
        answer: dict[str, Any] = json.loads(line)
        self.peak_bytes = answer["peak_bytes"]
        return answer


@contextlib.asynccontextmanager
async def peer(environment: str, script: str, package: str, first: dict[str, Any]) -> AsyncIterator[Peer]:
    """The peer until the block ends, loaded. Its name is the package and its version."""
    python = ENVIRONMENTS / environment / "bin" / "python"
    if not (python.parents[1] / "made").exists():
        raise SystemExit(f"no peer at {python}\n  next: make peers, or --quick to run without peers")
    with tempfile.TemporaryDirectory(prefix="huilu-peer-") as scratch:
        log = Path(scratch) / "log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                str(python),
                str(SCRIPTS / script),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )
        running = Peer(f"{package} {version(environment, package)}", process, log)
        try:
            say(f"loading {running.name} ...")
            await running.ask(first)
            yield running
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def version(environment: str, package: str) -> str:
    """The version that the requirements pin."""
    lines = (ROOT / "requirements" / f"peers-{environment}.txt").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{package}=="))


class Load:
    """How much of the machine others used while something was measured, from the kernel's counters."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    @contextlib.contextmanager
    def watch(self, pid: int) -> Iterator[None]:
        """Count while the block runs; process `pid` is what is being measured."""
        before, own = _machine(), _process(pid)
        yield
        now = _machine()
        others = now[0] - before[0] - (_process(pid) - own)
        self.shares.append(max(0.0, others / max(now[1] - before[1], 1)))

    def report(self) -> str:
        """One line for people."""
        return f"other programs used {statistics.median(self.shares):.0%} of the CPU in the median run"


def _machine() -> tuple[int, int]:
    """Busy and total ticks of all CPUs."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _process(pid: int) -> int:
    """Ticks that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
