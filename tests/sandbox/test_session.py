"""Sessions: files last, processes do not, and nothing of a session is judged where its programs ran."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from huilu import errors
from huilu.core.generation import Program
from huilu.sandbox.client import SandboxClient
from tests.sandbox.conftest import alive, named, with_sandbox


def test_files_last_from_turn_to_turn_with_their_modes_links_and_folders() -> None:
    async def work(client: SandboxClient) -> None:
        async with client.session() as session:
            await session.write("data/in.txt", b"one")
            first = await session.run_source(
                "import os\nos.makedirs('out/deep'); os.mkdir('empty'); os.symlink('out/deep', 'link')\n"
                "open('out/deep/x', 'w').write(open('data/in.txt').read() + ' two'); os.chmod('out/deep/x', 0o700)\n"
                "print(sorted(os.listdir()))"
            )
            assert (first.verdict, first.stdout) == ("AC", "['.turn.py', 'data', 'empty', 'link', 'out']\n")
            second = await session.run(
                ["bash", "-c", "ls -A; cat link/x; test -x out/deep/x && test -d empty && echo !"]
            )
            assert (second.verdict, second.stdout) == ("AC", "data\nempty\nlink\nout\none two!\n"), second
            assert session.files() == ["data/in.txt", "out/deep/x"]
            assert await session.read("out/deep/x") == b"one two"
            assert session.artefacts(["out/deep/x", "missing", "link"]) == {"out/deep/x": b"one two"}

    with_sandbox(work)


def test_processes_do_not_last() -> None:
    name = f"hs{os.getpid()}"
    source = (
        f"import os, time\nif os.fork() == 0:\n  os.setsid(); {named(name)}; open('up', 'w').close(); time.sleep(60)\n"
    )
    source += "while not os.path.exists('up'): time.sleep(0.01)\nos.remove('up')"

    async def work(client: SandboxClient) -> None:
        async with client.session() as session:
            assert (await session.run_source(source)).verdict == "AC"
            assert alive(name) == []
            assert (await session.run_source("print(1)")).stdout == "1\n"

    with_sandbox(work)


def test_a_turn_that_is_stopped_leaves_the_folder_as_it_was() -> None:
    async def work(client: SandboxClient) -> None:
        async with client.session() as session:
            await session.write("a", b"before")
            stopped = await session.run_source("open('a', 'w').write('after')\nwhile True: pass")
            assert stopped.verdict == "TLE"
            assert await session.read("a") == b"before"

    with_sandbox(work)


def test_a_failing_turn_keeps_what_it_wrote() -> None:
    async def work(client: SandboxClient) -> None:
        async with client.session() as session:
            failed = await session.run_source("open('a', 'w').write('half')\nraise ValueError")
            assert failed.verdict == "RE"
            assert await session.read("a") == b"half"

    with_sandbox(work)


def test_a_session_outlives_its_supervisor() -> None:
    async def work(client: SandboxClient) -> None:
        async with client.session() as session:
            await session.run_source("open('a', 'w').write('kept')")
            assert client._supervised is not None
            os.kill(client._supervised.pid, signal.SIGKILL)
            assert (await session.run(["python", "-c", "print(open('a').read())"])).stdout == "kept\n"

    with_sandbox(work)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", ".", "a\0b"])
def test_names_outside_the_folder_are_the_callers_mistake(path: str) -> None:
    async def work(client: SandboxClient) -> None:
        with pytest.raises(errors.Usage):
            await client.session().write(path, b"")

    with_sandbox(work)


def test_a_file_where_a_folder_is_and_two_turns_at_once_are_the_callers_mistake() -> None:
    async def work(client: SandboxClient) -> None:
        session = client.session()
        await session.write("a/b", b"")
        await session.write("c", b"")
        await session.run_source("pass")
        for path in ("a", "c/d", "a/b/c"):
            with pytest.raises(errors.Usage):
                await session.write(path, b"")
        turn = asyncio.create_task(session.run_source("import time; time.sleep(0.3)"))
        await asyncio.sleep(0)
        with pytest.raises(errors.Usage, match="at once"):
            await session.run_source("pass")
        assert (await turn).verdict == "AC"
        with pytest.raises(errors.NotFound):
            await session.read("missing")

    with_sandbox(work)


def test_too_much_to_keep_is_a_full_disk_and_a_sparse_file_is_that_too() -> None:
    async def work(client: SandboxClient) -> list[str]:
        session = client.session()
        turns = ["for n in range(3):\n  with open(str(n), 'wb') as f: f.truncate(7 << 20)", "print(1)"]
        return [(await session.run_source(turn)).verdict for turn in turns]

    assert with_sandbox(work) == ["DLE", "AC"]


def test_a_command_that_is_not_there_is_the_programs_error() -> None:
    async def work(client: SandboxClient) -> None:
        result = await client.run(Program(source="", command=("no-such-command",)))
        assert (result.verdict, result.exit_code) == ("RE", 127)
        assert "No such file" in result.stderr

    with_sandbox(work)


def test_a_script_gets_its_arguments_and_only_declared_files_come_back() -> None:
    async def work(client: SandboxClient) -> None:
        program = Program(
            source="",
            command=("python", "tool.py", "-v", "x"),
            files={"tool.py": b"import sys\nprint(sys.argv)\nfor n in 'abc': open(n, 'w').write(n)"},
            keep=("a", "b", "missing"),
        )
        result = await client.run(program)
        assert result.stdout == "['tool.py', '-v', 'x']\n"
        assert {path: file.content for path, file in result.files.items()} == {"a": b"a", "b": b"b"}

    with_sandbox(work)
