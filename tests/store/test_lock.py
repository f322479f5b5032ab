"""The lock of a run's folder: one holder, named, gone with its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from huilu import errors
from huilu.store import lock

CHILD = """
import sys, time
from pathlib import Path
from huilu.store import lock

with lock.held(Path(sys.argv[1]), 5.0):
    print("held", flush=True)
    time.sleep(600)
"""


def holding(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def end(child: subprocess.Popen[str], number: int) -> None:
    child.send_signal(number)
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def test_a_second_holder_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    child = holding(tmp_path / "lock")
    try:
        with pytest.raises(errors.Locked, match=f"process {child.pid} on "), lock.held(tmp_path / "lock", 6.0):
            raise AssertionError("two hold it")
    finally:
        end(child, signal.SIGKILL)


def test_death_releases_the_lock(tmp_path: Path) -> None:
    end(holding(tmp_path / "lock"), signal.SIGKILL)
    with lock.held(tmp_path / "lock", 6.0):
        pass


def test_the_end_of_the_block_releases_it_and_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(LookupError), lock.held(tmp_path / "lock", 1.0):
        raise LookupError
    with lock.held(tmp_path / "lock", 2.0):
        assert f'"pid":{os.getpid()}' in (tmp_path / "lock").read_text()


def test_a_program_that_the_holder_starts_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with lock.held(tmp_path / "lock", 1.0):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with lock.held(tmp_path / "lock", 2.0):
        pass
    child.communicate(b"\n")


def test_a_holder_that_left_no_name_is_still_a_holder(tmp_path: Path) -> None:
    child = holding(tmp_path / "lock")
    (tmp_path / "lock").write_text("")
    try:
        with pytest.raises(errors.Locked, match="another process"), lock.held(tmp_path / "lock", 6.0):
            pass
    finally:
        end(child, signal.SIGKILL)


def test_a_folder_that_is_not_there_is_an_error_by_name(tmp_path: Path) -> None:
    with pytest.raises(errors.Outside, match="missing"), lock.held(tmp_path / "missing" / "lock", 1.0):
        pass
