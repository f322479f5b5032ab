"""Functions that a job brought, run for real in worker processes: results, crashes, hangs, kills, leaks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from huilu import errors
from huilu.telemetry import Telemetry
from huilu.work.calls import Calls

T = TypeVar("T")
LONG_S = 60.0

JOB_CODE = """
    import asyncio, os, signal, subprocess, sys, threading, time
    import beside

    def add(a, b):
        return a + b

    async def add_later(a, b):
        await asyncio.sleep(0)
        return a + b

    def grey(level):
        import colorsys
        return colorsys.rgb_to_hsv(level, level, level)[2]

    def neighbour():
        return beside.NAME

    def chatter():
        print("x" * 100_000)
        sys.stdout.buffer.write(b"\\x00\\x00\\x00\\x01\\xff")
        os.write(1, b"raw bytes on descriptor one")
        return "fine"

    def pid():
        return os.getpid()

    def where():
        return os.getcwd()

    def environ(name):
        return os.environ.get(name)

    def fail(text):
        raise ValueError(text)

    def leave():
        sys.exit(3)

    def leave_now():
        print("last words")
        sys.stdout.flush()
        os._exit(7)

    def crash():
        print("about to crash")
        os.kill(os.getpid(), signal.SIGSEGV)

    def hang():
        while True:
            time.sleep(0.01)

    def hang_in_c():
        return 9 ** (9 ** 9)

    def hang_with_a_child(path):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open(path, "w").write(str(child.pid))
        time.sleep(600)

    def die_from_outside(marker, times):
        with open(marker, "a") as file:
            file.write("x")
        if os.path.getsize(marker) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.path.getsize(marker)

    def main_thread():
        return threading.current_thread() is threading.main_thread()

    def odd():
        return object()

    def arrays():
        import numpy
        return [numpy.float32(1.5), numpy.arange(3), (1, 2), None]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job_code.py").write_text(textwrap.dedent(JOB_CODE))
    (tmp_path / "beside.py").write_text("NAME = 'the file beside it'\n")
    return tmp_path


def with_calls(
    folder: Path, scenario: Callable[[Calls], Awaitable[T]], telemetry: Telemetry | None = None, **settings: Any
) -> T:
    async def run() -> T:
        calls = Calls(folder, telemetry or Telemetry(), **settings)
        try:
            return await scenario(calls)
        finally:
            await calls.close()

    return asyncio.run(run())


def call_one(folder: Path, name: str, timeout_s: float = LONG_S, **kwargs: Any) -> Any:
    return with_calls(folder, lambda calls: calls.call(f"job_code.py:{name}", kwargs, timeout_s))


def alive(pid: int) -> bool:
    """Is the process running (a zombie that waits to be reaped is not)?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_dead(pid: int) -> bool:
    """Gone within ten seconds: a killed process may take a moment to disappear."""
    for _ in range(1000):
        if not alive(pid):
            return True
        time.sleep(0.01)
    return False


def test_a_function_in_a_file_beside_the_job_is_called_with_plain_values(folder: Path) -> None:
    assert call_one(folder, "add", a=[1], b=[2, {"x": None}]) == [1, 2, {"x": None}]


def test_a_function_in_an_installed_module_is_called_by_its_dotted_name(folder: Path) -> None:
    assert with_calls(folder, lambda calls: calls.call("textwrap:dedent", {"text": "  a"}, LONG_S)) == "a"


def test_a_module_beside_the_job_file_is_found_by_name(folder: Path) -> None:
    assert with_calls(folder, lambda calls: calls.call("job_code:add", {"a": 1, "b": 2}, LONG_S)) == 3


@pytest.mark.parametrize("name", ["socket", "colorsys"], ids=["used by the worker", "used by the function"])
def test_a_file_called_like_a_standard_module_does_not_hide_it(folder: Path, name: str) -> None:
    (folder / f"{name}.py").write_text("raise RuntimeError('hidden')\n")
    assert call_one(folder, "grey", level=0.5) == 0.5


def test_an_async_function_is_awaited(folder: Path) -> None:
    assert call_one(folder, "add_later", a=1, b=2) == 3


def test_a_file_may_import_the_file_beside_it(folder: Path) -> None:
    assert call_one(folder, "neighbour") == "the file beside it"


def test_functions_run_in_the_main_thread_where_signals_work(folder: Path) -> None:
    assert call_one(folder, "main_thread") is True


def test_functions_run_in_the_job_files_folder(folder: Path) -> None:
    assert call_one(folder, "where") == str(folder)


def test_what_a_function_prints_never_reaches_the_channel(folder: Path) -> None:
    async def scenario(calls: Calls) -> list[Any]:
        return [await calls.call("job_code.py:chatter", {}, LONG_S) for _ in range(3)]

    assert with_calls(folder, scenario) == ["fine"] * 3


def test_numpy_values_come_back_as_numbers_and_lists(folder: Path) -> None:
    assert call_one(folder, "arrays") == [1.5, [0, 1, 2], [1, 2], None]


def test_a_value_that_cannot_be_sent_back_is_named(folder: Path) -> None:
    with pytest.raises(errors.ExtensionFailed, match=r"job_code\.py:odd returned object.*expected numbers"):
        call_one(folder, "odd")


def test_arguments_that_cannot_be_sent_are_named(folder: Path) -> None:
    with pytest.raises(errors.BadData, match=r"arguments of job_code\.py:add cannot be sent"):
        call_one(folder, "add", a=1 << 70, b=object())


def test_what_a_function_raises_arrives_with_its_text_and_line(folder: Path) -> None:
    with pytest.raises(
        errors.ExtensionFailed, match=r"job_code\.py:fail: ValueError: no such row \(job_code\.py:\d+\)"
    ):
        call_one(folder, "fail", text="no such row")


def test_sys_exit_in_a_function_is_its_failure_and_not_the_workers_end(folder: Path) -> None:
    async def scenario(calls: Calls) -> tuple[int, int]:
        before = await calls.call("job_code.py:pid", {}, LONG_S)
        with pytest.raises(errors.ExtensionFailed, match="SystemExit: 3"):
            await calls.call("job_code.py:leave", {}, LONG_S)
        return before, await calls.call("job_code.py:pid", {}, LONG_S)

    before, after = with_calls(folder, scenario, num_workers=1)
    assert before == after


def test_a_wrong_function_name_is_answered_with_the_nearest_right_one(folder: Path) -> None:
    with pytest.raises(errors.NotFound, match="did you mean 'add_later'"):
        call_one(folder, "add_latr")


@pytest.mark.parametrize(
    ("target", "said"),
    [("gone.py:f", "gone.py is no file"), ("no_such_module:f", "no module is called 'no_such_module'")],
)
def test_a_missing_file_or_module_is_named(folder: Path, target: str, said: str) -> None:
    with pytest.raises(errors.NotFound, match=said):
        with_calls(folder, lambda calls: calls.call(target, {}, LONG_S))


def test_a_module_that_misses_one_of_its_own_imports_says_which(folder: Path) -> None:
    (folder / "needy.py").write_text("import not_installed\n")
    with pytest.raises(errors.ExtensionFailed, match=r"No module named 'not_installed' \(needy.py:1\)"):
        with_calls(folder, lambda calls: calls.call("needy.py:f", {}, LONG_S))


@pytest.mark.parametrize("name", ["hang", "hang_in_c"])
def test_a_call_past_its_deadline_is_killed_and_the_next_one_gets_a_fresh_worker(folder: Path, name: str) -> None:
    async def scenario(calls: Calls) -> tuple[int, int]:
        before = await calls.call("job_code.py:pid", {}, LONG_S)
        with pytest.raises(errors.TimedOut, match=f"{name}: running it took more than 0.2 s"):
            await calls.call(f"job_code.py:{name}", {}, 0.2)
        return before, await calls.call("job_code.py:pid", {}, LONG_S)

    before, after = with_calls(folder, scenario, num_workers=1)
    assert before != after
    assert not alive(before)


def test_a_module_that_never_ends_importing_has_a_deadline_of_its_own(folder: Path) -> None:
    (folder / "endless.py").write_text("while True: pass\n")
    with pytest.raises(errors.TimedOut, match=r"endless\.py:f: importing it took more than 0\.5 s"):
        with_calls(folder, lambda calls: calls.call("endless.py:f", {}, LONG_S), load_timeout_s=0.5)


def test_a_killed_worker_takes_what_it_started_with_it(folder: Path) -> None:
    note = folder / "child"

    async def scenario(calls: Calls) -> int:
        hanging = asyncio.create_task(calls.call("job_code.py:hang_with_a_child", {"path": str(note)}, LONG_S))
        while not (note.exists() and note.read_text()):
            await asyncio.sleep(0.01)
        assert alive(int(note.read_text()))
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        return int(note.read_text())

    assert wait_until_dead(with_calls(folder, scenario))


@pytest.mark.parametrize(
    ("name", "end", "words"),
    [("leave_now", "ended with status 7", "last words"), ("crash", "crashed with SIGSEGV", "about to crash")],
)
def test_a_crash_is_the_extensions_failure_with_what_it_said_last(
    folder: Path, name: str, end: str, words: str
) -> None:
    with pytest.raises(errors.ExtensionFailed) as caught:
        call_one(folder, name)
    assert end in str(caught.value)
    assert words in str(caught.value)


def test_a_worker_killed_from_outside_is_tried_once_more(folder: Path) -> None:
    assert call_one(folder, "die_from_outside", marker=str(folder / "marker"), times=1) == 2


def test_killed_from_outside_twice_is_an_infrastructure_error(folder: Path) -> None:
    with pytest.raises(errors.WorkerDied, match="SIGKILL from outside"):
        call_one(folder, "die_from_outside", marker=str(folder / "marker"), times=9)
    assert (folder / "marker").read_text() == "xx"


def test_an_idle_worker_that_was_killed_costs_nobody_a_call(folder: Path) -> None:
    async def scenario(calls: Calls) -> int:
        os.kill(await calls.call("job_code.py:pid", {}, LONG_S), signal.SIGKILL)
        result: int = await calls.call("job_code.py:add", {"a": 1, "b": 2}, LONG_S)
        return result

    assert with_calls(folder, scenario) == 3


def test_no_more_calls_run_at_once_than_there_are_workers_and_workers_are_reused(folder: Path) -> None:
    async def scenario(calls: Calls) -> list[int]:
        pids: list[int] = await asyncio.gather(*(calls.call("job_code.py:pid", {}, LONG_S) for _ in range(12)))
        return pids

    assert len(set(with_calls(folder, scenario, num_workers=2))) <= 2


def test_close_kills_busy_workers_and_their_calls_fail(folder: Path) -> None:
    async def scenario(calls: Calls) -> tuple[int, Any]:
        busy = await calls.call("job_code.py:pid", {}, LONG_S)
        hanging = asyncio.create_task(calls.call("job_code.py:hang", {}, LONG_S))
        await asyncio.sleep(0.1)
        await calls.close()
        ended = await asyncio.gather(hanging, return_exceptions=True)
        return busy, ended[0]

    busy, error = with_calls(folder, scenario, num_workers=1)
    assert isinstance(error, errors.WorkerDied)
    assert not alive(busy)


def test_a_cancelled_call_frees_its_worker_by_killing_it(folder: Path) -> None:
    async def scenario(calls: Calls) -> tuple[int, int]:
        before = await calls.call("job_code.py:pid", {}, LONG_S)
        hanging = asyncio.create_task(calls.call("job_code.py:hang", {}, LONG_S))
        await asyncio.sleep(0.1)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        return before, await calls.call("job_code.py:pid", {}, LONG_S)

    before, after = with_calls(folder, scenario, num_workers=1)
    assert before != after
    assert not alive(before)


def test_secrets_reach_the_worker_and_neither_this_process_nor_an_error(folder: Path) -> None:
    async def scenario(calls: Calls) -> tuple[Any, str]:
        seen = await calls.call("job_code.py:environ", {"name": "JUDGE_KEY"}, LONG_S)
        with pytest.raises(errors.ExtensionFailed) as caught:
            await calls.call("job_code.py:fail", {"text": "refused: s3cr3t-value"}, LONG_S)
        return seen, str(caught.value)

    seen, told = with_calls(folder, scenario, secrets={"JUDGE_KEY": "s3cr3t-value"})
    assert seen == "s3cr3t-value"
    assert "JUDGE_KEY" not in os.environ
    assert "s3cr3t-value" not in told
    assert "refused: <JUDGE_KEY>" in told


def test_every_failure_is_counted_by_kind(folder: Path) -> None:
    telemetry = Telemetry()

    async def scenario(calls: Calls) -> None:
        for name, timeout_s in [("leave", LONG_S), ("leave_now", LONG_S), ("hang", 0.2)]:
            with pytest.raises(errors.HuiluError):
                await calls.call(f"job_code.py:{name}", {}, timeout_s)
        await calls.call("job_code.py:die_from_outside", {"marker": str(folder / "m"), "times": 1}, LONG_S)

    with_calls(folder, scenario, telemetry)
    counted = {
        kind: telemetry.value("huilu_extension_errors_total", what=kind)
        for kind in ("extension_failed", "timed_out", "worker_died")
    }
    assert counted == {"extension_failed": 2, "timed_out": 1, "worker_died": 1}


def test_a_worker_dies_with_its_parent_even_while_a_function_hangs(folder: Path) -> None:
    program = textwrap.dedent(f"""
        import asyncio, os, signal
        from pathlib import Path
        from huilu.telemetry import Telemetry
        from huilu.work.calls import Calls

        async def main():
            calls = Calls(Path({str(folder)!r}), Telemetry(), num_workers=1)
            print(await calls.call("job_code.py:pid", {{}}, 60), flush=True)
            hanging = asyncio.create_task(calls.call("job_code.py:hang_in_c", {{}}, 60))
            await asyncio.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """)

    async def run() -> int:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == -signal.SIGKILL
        return int(out)

    assert wait_until_dead(asyncio.run(run()))
