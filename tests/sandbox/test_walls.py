"""What a program in a jail can reach: every door is tried from inside."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.sandbox.conftest import run

CALLS = {
    # name: (number on x86-64, number on aarch64)
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "pidfd_getfd": (438, 438),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
CLONE = (56, 220)
NEW_NAMESPACES = (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000)
COLUMN = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine)
tables_only = pytest.mark.skipif(COLUMN is None, reason="no table of system calls for this machine")

SOCKETS = """
import json, socket
opened = []
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET, 38, 40):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        try: socket.socket(family, kind)
        except PermissionError: continue
        except OSError as error: opened.append(str(error))
        else: opened.append(f"{family} {kind}")
print(json.dumps(opened))
"""
WRITES = """
import os, sys
for top in ("/", "/usr", "/usr/lib", "/dev", "/proc", sys.base_prefix, os.path.dirname(os.__file__)):
    try: os.open(os.path.join(top, "planted"), os.O_WRONLY | os.O_CREAT)
    except OSError: continue
    print("wrote in", top)
for file in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/self/uid_map"):
    try: os.write(os.open(file, os.O_WRONLY), b"x")
    except OSError: continue
    print("wrote", file)
"""
INIT = """
import os
names = ["environ", "mem", "maps", "cwd/.", "root/."]
names += ["fd/" + name for name in os.listdir("/proc/1/fd")]
for name in names:
    for how in (os.O_RDONLY, os.O_WRONLY):
        try: os.open("/proc/1/" + name, how)
        except OSError: continue
        print("opened", name)
"""


def said(source: str) -> str:
    """What the program printed; it must have ended well."""
    (result,) = run(source)
    assert result.verdict == "AC", result
    return result.stdout


def test_no_socket_of_any_family_can_be_made_and_asyncio_works_without() -> None:
    assert json.loads(said(SOCKETS)) == []
    assert said("import asyncio; print(asyncio.run(asyncio.sleep(0, 'done')))") == "done\n"


@tables_only
def test_dangerous_system_calls_are_refused() -> None:
    numbers = {name: pair[COLUMN or 0] for name, pair in CALLS.items()}
    source = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, number in {numbers}.items():\n"
        "    if (libc.syscall(number, 0, 0, 0, 0, 0, 0), ctypes.get_errno()) != (-1, 1): print(name)\n"
    )
    assert said(source) == ""


@tables_only
def test_clone_makes_no_namespace() -> None:
    source = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for flag in {NEW_NAMESPACES}:\n"
        f"    print(libc.syscall({CLONE[COLUMN or 0]}, flag | 17, 0, 0, 0, 0), ctypes.get_errno())"
    )
    assert said(source) == "-1 1\n" * len(NEW_NAMESPACES)


def test_every_namespace_is_the_jails_own() -> None:
    names = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    inside = said(f"import os\nfor name in {names}: print(os.readlink(f'/proc/self/ns/{{name}}'))").split()
    outside = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in names]
    assert len(inside) == len(names)
    assert not set(inside) & set(outside)


def test_the_program_has_no_capability_and_no_way_to_one() -> None:
    text = said("print(open('/proc/self/status').read())")
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    assert {status[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["Uid"].split()[0] != "0"


def test_nothing_of_the_system_can_be_written() -> None:
    assert said(WRITES) == ""


def test_init_cannot_be_looked_into() -> None:
    assert said(INIT) == ""


def test_installed_packages_are_not_there_since_they_may_hold_the_answers() -> None:
    tops = ["/usr/lib", "/usr/lib64", "/usr/local/lib", f"{sys.base_prefix}/lib", f"{sys.base_prefix}/lib64"]
    source = (
        "import glob\n"
        f"for top in {tops}:\n"
        "    for kind in ('site-packages', 'dist-packages'):\n"
        "        for found in glob.glob(f'{top}/python*/{kind}/*'): print(found)"
    )
    assert said(source) == ""


def test_the_supervisors_environment_does_not_come_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUILU_TEST_SECRET", "do-not-tell")
    assert "HUILU_TEST_SECRET" not in said("import os\nprint(sorted(os.environ))")


def test_jails_leave_no_mount_behind() -> None:
    before = Path("/proc/self/mounts").read_text()
    run("print(1)")
    assert Path("/proc/self/mounts").read_text() == before


def test_the_jail_has_no_terminal() -> None:
    assert said("import os\ntry: os.open('/dev/tty', os.O_RDWR)\nexcept OSError: print('none')") == "none\n"


def test_locks_of_multiprocessing_work() -> None:
    assert said("import multiprocessing\nwith multiprocessing.Lock(): print('held')") == "held\n"


def test_runs_hash_alike_so_that_verdicts_repeat() -> None:
    first, second = run("print(hash('a'))", "print(hash('a'))")
    assert first.stdout == second.stdout
