"""Programs that behave badly, each by doing it: the verdict, and that the next one runs as if nothing had been."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from huilu import errors
from huilu.core.generation import Program
from huilu.sandbox.client import SandboxClient
from huilu.sandbox.levels import detect, require
from tests.sandbox.conftest import HASTY, LIMITS, run, with_sandbox

HOSTILE = {  # a program and its verdict, or those that different levels and Pythons may give
    "spins": ("while True: pass", "TLE"),
    "ignores signals and spins": (
        "import signal\nfor n in (1, 2, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        "TLE",
    ),
    "forks without end": ("import os\nwhile True: os.fork()", "PLE"),
    "starts threads without end": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
        "PLE",
    ),
    "eats memory": ("x = bytearray(10**9)", "MLE"),
    "hides memory in files": ("import os\nos.memfd_create('x')", "RE"),
    "floods stdout": ("while True: print('x' * 10000)", "OLE"),
    "floods stderr": ("import sys\nwhile True: sys.stderr.write('x' * 10000)", "OLE"),
    "fills the disk": (
        "open('/tmp/a', 'wb').write(b'x' * (7 << 20))\nopen('/tmp/b', 'wb').write(b'x' * (7 << 20))",
        "DLE",
    ),
    "makes files without end": ("i = 0\nwhile True:\n  open(f'/tmp/{i}', 'w').close()\n  i += 1", "DLE"),
    "connects out": ("import socket; socket.create_connection(('127.0.0.1', 22))", "RE"),
    "opens a unix socket": ("import socket; socket.socket(socket.AF_UNIX)", "RE"),
    "reads the host's users": ("open('/etc/passwd').read()", "RE"),
    "writes to the system": ("open('/usr/bin/x', 'w')", "RE"),
    "unshares": ("import ctypes, os\nif ctypes.CDLL(None, use_errno=True).unshare(0x10000000): raise OSError", "RE"),
    "mounts": ("import ctypes\nif ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None): raise OSError", "RE"),
    "traces": ("import ctypes\nif ctypes.CDLL(None).ptrace(16, 1, None, None): raise OSError", "RE"),
    "kills itself": ("import os; os.kill(os.getpid(), 9)", "RE"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "RE"),
    "recurses": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", "MLE RE TLE"),
    "is no Python": ("this is no python", "RE"),
    "is no text": ("x = 1 \udcff", "RE"),
}


def test_each_hostile_program_gets_its_verdict_and_the_next_runs_as_if_nothing_had_been() -> None:
    async def work(client: SandboxClient) -> dict[str, str]:
        async def one(source: str) -> str:
            verdict = (await client.run(Program(source=source))).verdict
            after = await client.run(Program(source="print('fine')"))
            assert (after.verdict, after.stdout) == ("AC", "fine\n")
            return verdict

        verdicts = await asyncio.gather(*(one(source) for source, _ in HOSTILE.values()))
        return dict(zip(HOSTILE, verdicts, strict=True))

    found = with_sandbox(work)
    assert {name: found[name] for name, (_, allowed) in HOSTILE.items() if found[name] not in allowed.split()} == {}


@pytest.mark.parametrize("source", ["import time; time.sleep(60)", "import threading; threading.Event().wait()"])
def test_a_program_that_only_waits_is_stopped_by_the_clock(source: str) -> None:
    (result,) = run(source, settings=HASTY)
    assert (result.verdict, result.note) == ("TLE", "not done after 1 s")
    assert result.cpu_s < HASTY.cpu_s


def test_a_program_sees_nobody_and_nothing_of_the_host() -> None:
    source = (
        "import os\n"
        "print(os.getuid(), os.listdir('/work'), sorted(p for p in os.listdir('/proc') if p.isdigit()))\n"
        f"print(os.path.exists({str(Path(__file__).parents[2])!r}), sorted(os.environ))\n"
        "print(os.listdir('/proc/self/fd'))\n"
    )
    (result,) = run(source)
    assert result.verdict == "AC", result.stderr
    seen, environment, descriptors = result.stdout.splitlines()
    assert seen == "65534 ['main.py'] ['1', '2']"
    assert environment == "False ['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED']"
    assert descriptors == "['0', '1', '2', '3']"  # 3 is the listing itself


def test_killing_everything_in_sight_kills_only_itself() -> None:
    first = "import os\ntry: os.kill(1, 9)\nexcept PermissionError: pass\nprint('alive')"  # refused, or not even felt
    results = run(first, "import os; os.kill(-1, 9)", "import os; os.killpg(0, 9)")
    assert [result.verdict for result in results] == ["AC", "RE", "RE"]
    assert results[0].stdout == "alive\n"


def test_a_daemon_that_outlives_its_parent_and_holds_the_pipe_ends_with_it() -> None:
    source = (
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(60)\nelse: print('parent')"
    )
    (result,) = run(source)
    assert (result.verdict, result.stdout) == ("AC", "parent\n")
    assert result.wall_s < LIMITS.wall_s


def test_output_of_any_bytes_is_kept_as_text_up_to_the_limit() -> None:
    odd, long = run(r"import os; os.write(1, b'\xff\x00\x1b[31m \xed\xa0\x80')", "print('x' * 100_000)")
    assert odd.stdout == "\\xff\x00\x1b[31m \\xed\\xa0\\x80"
    assert len(long.stdout) == LIMITS.output_bytes
    assert long.truncated


def test_input_and_files_arrive_and_names_outside_the_work_folder_are_refused() -> None:
    async def work(client: SandboxClient) -> None:
        source = "import sys; print(sys.stdin.read() + open('/work/data/a.txt').read())"
        result = await client.run(Program(source=source, stdin="in ", files={"data/a.txt": b"file"}))
        assert result.stdout == "in file\n"
        for name in ("../x", "/etc/x", "a/../../x"):
            with pytest.raises(errors.Usage):
                await client.run(Program(source="", files={name: b""}))

    with_sandbox(work)


def test_every_result_names_its_level() -> None:
    (result,) = run("pass")
    assert result.isolation == detect().level


def test_a_level_that_the_machine_does_not_reach_is_refused_by_name() -> None:
    with pytest.raises(errors.IsolationRefused, match=r"sandbox\.level"):
        require("moon")


def test_a_supervisor_that_dies_costs_one_retry_and_no_verdict() -> None:
    async def work(client: SandboxClient) -> tuple[str, str]:
        await client.run(Program(source="pass"))
        supervised = client._supervised
        assert supervised is not None
        running = asyncio.create_task(client.run(Program(source="import time; time.sleep(0.3); print('whole')")))
        await asyncio.sleep(0.15)
        os.kill(supervised.pid, signal.SIGKILL)
        result = await running
        return result.verdict, result.stdout

    assert with_sandbox(work) == ("AC", "whole\n")


def test_a_hundred_runs_leave_the_supervisor_as_it_was() -> None:
    async def work(client: SandboxClient) -> tuple[int, int]:
        await client.run(Program(source="pass"))
        assert client._supervised is not None
        descriptors = Path(f"/proc/{client._supervised.pid}/fd")
        before = len(list(descriptors.iterdir()))
        for _ in range(5):
            await asyncio.gather(*(client.run(Program(source="pass")) for _ in range(20)))
        return before, len(list(descriptors.iterdir()))

    before, after = with_sandbox(work)
    assert after == before
