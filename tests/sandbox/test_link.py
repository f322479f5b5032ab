"""Clients that send half, read nothing, or ask for more than fits, and answers that flood their channel."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from huilu import errors, wire
from huilu.core.generation import Program, RunResult
from huilu.sandbox.client import SandboxClient
from huilu.sandbox.link import Link
from huilu.sandbox.supervised import Supervised
from tests.sandbox.conftest import HASTY, LIMITS, check, with_sandbox

BIG = b"x" * (4 << 20)
FLOODS = {  # what f does when it is asked, and the verdicts that this may come to
    "announces more than is allowed": ("import os\ndef f(x):\n  os.write(4, b'\\xff' * 4); return 2", "INC RE"),
    "never ends its answer": (
        "import os\ndef f(x):\n  os.write(4, b'\\0\\xff\\xff\\xff')\n  while True: os.write(4, b' ' * 65536)",
        "INC RE TLE",
    ),
    "answers unasked": (
        "import os, threading\ndef g():\n  while True: os.write(4, b'\\0\\0\\0\\x02[]')\n"
        "threading.Thread(target=g, daemon=True).start()\ndef f(x): return 2",
        "INC RE",
    ),
    "nests deeply": ("def f(x):\n  a = []\n  for _ in range(100_000): a = [a]\n  return a", "RE"),
    "nests JSON deeply": (
        "import os\ndef f(x):\n  d = (1 << 18).to_bytes(4, 'big') + b'[' * (1 << 18)\n"
        "  while d: d = d[os.write(4, d):]\n  return 2",
        "INC RE",
    ),
    "answers hugely": ("def f(x): return 'x' * (30 << 20)", "WA MLE INC"),
}


def test_answers_that_flood_their_channel_cost_only_themselves() -> None:
    results = check(*((source, "assert f(1) == 2") for source, _ in FLOODS.values()))
    found = {name: result.verdict for name, result in zip(FLOODS, results, strict=True)}
    assert {name: found[name] for name, (_, allowed) in FLOODS.items() if found[name] not in allowed.split()} == {}


def test_an_answer_that_drips_is_stopped_by_the_clock() -> None:
    source = (
        "import os, time\ndef f(x):\n  os.write(4, b'\\0\\0\\1\\0')\n  while True: os.write(4, b' '); time.sleep(0.05)"
    )
    (result,) = check((source, "assert f(1) == 2"), settings=HASTY)
    assert result.verdict == "TLE"


def test_a_long_answer_is_compared_in_full() -> None:
    source = "def f(x): return list(range(x))"
    right, wrong = check((source, "assert f(50_000) == [*range(50_000)]"), (source, "assert f(50_000) == [1]"))
    assert (right.verdict, wrong.verdict) == ("AC", "WA")


def test_a_client_that_sends_half_a_frame_delays_no_deadline() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "huilu.sandbox.daemon", str(theirs.fileno()), "userns"]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as supervisor:
        theirs.close()
        ours.settimeout(20.0)
        program = Program(source="import time; time.sleep(60)", wall_s=0.3)
        frame = wire.pack(wire.Call(1, "run", wire.raw(program)))
        ours.sendall(frame + frame[: len(frame) // 2])
        while not isinstance(answer := read(ours), wire.Answer):
            assert isinstance(answer, wire.Beat), answer
        ours.close()
        assert supervisor.wait(20.0) == 0
    assert msgspec.msgpack.decode(answer.body, type=RunResult).verdict == "TLE"


def read(sock: socket.socket) -> wire.Frame:
    body = wire.receive(sock)
    assert body is not None
    return msgspec.msgpack.decode(body, type=wire.Frame)


def test_what_a_client_does_not_read_waits_and_arrives_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = Link(theirs)
        for number in range(3):
            link.send(wire.Answer(number, wire.raw(BIG)))
        assert link.behind
        ours.setblocking(False)
        came = bytearray()
        while link.behind:
            came += ours.recv(1 << 20)
            link.flush()
        while len(came) < 3 * len(wire.pack(wire.Answer(0, wire.raw(BIG)))):
            came += ours.recv(1 << 20)
    assert bytes(came) == b"".join(wire.pack(wire.Answer(number, wire.raw(BIG))) for number in range(3))


def test_calls_come_out_once_they_are_whole_however_they_arrive() -> None:
    ours, theirs = socket.socketpair()
    calls = [wire.Call(number, "run", wire.raw("x" * number)) for number in range(5)]
    data = wire.pack(calls[0]) + wire.pack(wire.Calls(calls[1:4])) + wire.pack(wire.Beat(1)) + wire.pack(calls[4])
    with theirs:
        link, found = Link(theirs), []
        for start in range(0, len(data), 7):
            ours.sendall(data[start : start + 7])
            received = link.receive()
            assert received is not None
            found += received
        assert link.receive() == []
        ours.close()
        assert link.receive() is None
    assert found == calls


def test_a_frame_longer_than_any_is_refused_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(errors.Invariant, match="announced"):
            Link(theirs).receive()


@pytest.mark.parametrize("spare", range(0, 16, 3))
def test_a_run_that_cannot_be_started_is_a_failed_sandbox_and_leaves_nothing_open(spare: int) -> None:
    """At every number of descriptors left, something else of a check's start fails."""

    async def work(client: SandboxClient) -> None:
        assert (await client.check(Program(source="def f(): return 1"), "assert f() == 1")).verdict == "AC"
        supervised = client._supervised
        assert supervised is not None
        open_before, usual = descriptors(supervised), resource.prlimit(supervised.pid, resource.RLIMIT_NOFILE)
        free = [number for number in range(100) if number not in open_before]
        resource.prlimit(supervised.pid, resource.RLIMIT_NOFILE, (free[spare], usual[1]))
        with pytest.raises(errors.SandboxFailed):
            await supervised.check(Program(source="def f(): return 1"), "assert f() == 1", 20.0)
        resource.prlimit(supervised.pid, resource.RLIMIT_NOFILE, usual)
        assert descriptors(supervised) == open_before
        assert (await client.check(Program(source="def f(): return 1"), "assert f() == 1")).verdict == "AC"

    with_sandbox(work, LIMITS)


def descriptors(supervised: Supervised) -> list[int]:
    return sorted(int(entry.name) for entry in Path(f"/proc/{supervised.pid}/fd").iterdir())


def test_many_runs_at_once_need_no_raised_limit_of_descriptors() -> None:
    async def work() -> list[RunResult]:
        supervised = await Supervised.launch("userns")
        program = Program(source="import time; time.sleep(0.5)")
        try:
            return await asyncio.gather(*(supervised.run(program, 60.0) for _ in range(40)))
        finally:
            await supervised.close()

    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, usual[1]))
    try:
        results = asyncio.run(work())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert {result.verdict for result in results} == {"AC"}
