"""Sandboxes on other machines and in other hands: an ordinary user, a strict umask, no namespaces, no groups."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from huilu import errors
from huilu.core.generation import Program, RunResult
from huilu.sandbox import levels
from huilu.sandbox.client import SandboxClient
from huilu.sandbox.supervised import Supervised
from tests.sandbox.conftest import alive, check, named, run, until, with_sandbox

SOMEBODY = 65533
SLEEPS = "import time; time.sleep(1e9)"
BOMBS = {
    "MLE": "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
    "TLE": "while True: pass",
    "DLE": "file = open('/tmp/f', 'wb')\nwhile True: file.write(b'x' * 10**5)",
    "AC": "print('fine')",
}
AS_SOMEBODY = """
import asyncio
from huilu.core.generation import Program
from huilu.sandbox.supervised import Supervised
async def main():
    supervised = await Supervised.launch("userns")
    print(await supervised.run(Program(source="import os; print(os.getuid())"), 30.0))
    await supervised.close()
asyncio.run(main())
"""
WITH_A_MOUNT_INSIDE = """
import asyncio
from pathlib import Path
from huilu.core.generation import Program
from huilu.sandbox.kernel import linux
from huilu.sandbox.supervised import Supervised
linux.unshare(linux.CLONE_NEWNS)
linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
linux.mount("tmpfs", "/usr/src", "tmpfs", options="mode=1777")
Path("/usr/src/there").touch()
TRIES = '''
import os
print(os.listdir("/usr/src"))
try: open("/usr/src/planted", "w")
except OSError as error: print(error.strerror)
'''
async def main():
    supervised = await Supervised.launch("userns")
    print((await supervised.run(Program(source=TRIES), 30.0)).stdout)
    await supervised.close()
asyncio.run(main())
"""
WITHOUT_NAMESPACES = """
from huilu import errors
from huilu.sandbox import levels
from huilu.sandbox.kernel import linux, seccomp
linux.filter_calls(seccomp.for_this_machine())
print(levels.detect())
try: levels.require("userns")
except errors.IsolationRefused as error: print(error.exit_status)
"""


def test_an_ordinary_user_gets_namespaces_too() -> None:
    """As root, this becomes somebody else first; run by anybody else, every test in this folder shows it."""
    if os.geteuid() != 0:
        pytest.skip("not root: the other tests are this one")
    pythons = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
    python = next((path for path in pythons if for_everybody(path)), None)
    if python is None:
        pytest.skip("no Python of this version that everybody may run")
    packages = [str(Path(levels.__file__).parents[2]), *(path for path in sys.path if path.endswith("site-packages"))]
    done = subprocess.run(
        [python, "-B", "-c", AS_SOMEBODY],
        user=SOMEBODY,
        group=SOMEBODY,
        extra_groups=[],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(packages)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip("the packages cannot be read by everybody")
    assert "verdict='AC'" in done.stdout, done


def for_everybody(path: str) -> bool:
    """Whether everybody may go to this file."""
    file = Path(path).resolve()
    return file.exists() and all(place.stat().st_mode & stat.S_IXOTH for place in (file, *file.parents))


def test_a_strict_umask_hides_nothing_from_the_program() -> None:
    before = os.umask(0o077)
    try:
        (result,) = run("print(1)")
    finally:
        os.umask(before)
    assert result.verdict == "AC"


def test_a_machine_without_namespaces_is_refused_and_says_what_is_missing() -> None:
    """The filter of a jail is much like a container's: under it, no jail can be made."""
    command = [sys.executable, "-c", WITHOUT_NAMESPACES]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "level='refused'" in said
    assert "not permitted" in said
    assert said.endswith("\n4\n")


def test_without_control_groups_limits_still_hold() -> None:
    async def work() -> list[RunResult]:
        supervised = await Supervised.launch("userns")
        small: dict[str, Any] = {"memory_bytes": 128 << 20, "disk_bytes": 8 << 20, "wall_s": 30.0, "cpu_s": 2.0}
        try:
            return [await supervised.run(Program(source=source, **small), 30.0) for source in BOMBS.values()]
        finally:
            await supervised.close()

    results = asyncio.run(work())
    assert [(result.verdict, result.isolation) for result in results] == [(verdict, "userns") for verdict in BOMBS]


def test_what_is_mounted_inside_a_system_folder_is_read_only_too() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount for this test")
    command = [sys.executable, "-c", WITH_A_MOUNT_INSIDE]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said == "['there']\nRead-only file system\n\n"


def test_memory_of_many_processes_counts_together_without_control_groups() -> None:
    """Each holds less than the limit, all of them far more."""
    source = (
        "import os, time\n"
        "for _ in range(8):\n  if os.fork() == 0:\n    x = bytearray(60 << 20); x[::4096] = b'x' * len(x[::4096])\n"
        "    time.sleep(20); os._exit(0)\n"
        "time.sleep(20)"
    )
    result = at_userns(Program(source=source, memory_bytes=128 << 20, wall_s=30.0))
    assert result.verdict == "MLE", result


def test_cpu_time_of_a_run_that_was_killed_is_counted() -> None:
    spins, sleeps = (at_userns(Program(source=source, wall_s=0.8)) for source in (BOMBS["TLE"], SLEEPS))
    assert (spins.verdict, sleeps.verdict) == ("TLE", "TLE")
    assert spins.cpu_s > 2 * sleeps.cpu_s


def at_userns(program: Program) -> RunResult:
    """The program's result at level userns, whatever this machine could do better."""

    async def work() -> RunResult:
        supervised = await Supervised.launch("userns")
        try:
            return await supervised.run(program, 30.0)
        finally:
            await supervised.close()

    return asyncio.run(work())


def test_levels_can_be_asked_for_while_an_event_loop_runs() -> None:
    levels.detect.cache_clear()

    async def asks() -> str:
        return levels.require("userns").level

    assert asyncio.run(asks()) in levels.ORDER


def test_a_test_that_never_asked_the_program_proves_nothing() -> None:
    (result,) = check(("", "assert sum([1, 2]) == 3"))
    assert result.verdict == "INC"


@pytest.mark.parametrize("files", [{"": b""}, {".": b""}, {"a": b"", "a/b": b""}, {"big": bytes(9 << 20)}])
def test_files_that_cannot_be_placed_are_the_callers_mistake(files: dict[str, bytes]) -> None:
    with pytest.raises(errors.Usage):
        with_sandbox(lambda client: client.run(Program(source="1", files=files)))


def test_a_closed_client_fails_its_runs_at_once_and_starts_nothing_more() -> None:
    async def work(client: SandboxClient) -> None:
        task = asyncio.create_task(client.run(Program(source=SLEEPS)))
        await until(lambda: client._supervised is not None)
        await asyncio.sleep(0.3)  # the program starts
        await client.close()
        with pytest.raises(errors.SandboxFailed, match="closed"):
            await task

    with_sandbox(work)


def test_jails_end_with_a_client_that_is_killed(tmp_path: Path) -> None:
    name = f"hl{os.getpid()}"
    program = f"{named(name)}\n{SLEEPS}"
    source = (
        "import asyncio\nfrom huilu.config import tree\nfrom huilu.core.generation import Program\n"
        "from huilu.sandbox.client import SandboxClient\nfrom huilu.telemetry import Telemetry\n"
        "client = SandboxClient(tree.Sandbox(wall_s=100.0), Telemetry())\n"
        f"asyncio.run(client.run(Program(source={program!r})))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", source], env=environment, stderr=subprocess.DEVNULL) as client:
        asyncio.run(until(lambda: bool(alive(name))))
        client.kill()
    asyncio.run(until(lambda: not alive(name) and not list(tmp_path.iterdir())))
