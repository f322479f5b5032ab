"""Programs that reach for the jail itself: its first process, its channels, or the verdict of a fault of ours."""

from __future__ import annotations

from tests.sandbox.conftest import run


def test_a_program_cannot_end_its_jail_through_the_limits_of_its_first_process() -> None:
    source = (
        "import os, resource\n"
        "try: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))\n"
        "except PermissionError: print('refused')\n"
        "for _ in range(50):\n  if os.fork() == 0: os._exit(0)\n  os.wait()\n"
    )
    (result,) = run(source)
    assert (result.verdict, result.stdout) == ("AC", "refused\n")


def test_a_program_may_lower_its_own_limits() -> None:
    (result,) = run("import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (9, 9)); print(r.getrlimit(r.RLIMIT_NOFILE))")
    assert (result.verdict, result.stdout) == ("AC", "(9, 9)\n")


def test_text_that_no_encoding_carries_is_run_as_escapes_of_it() -> None:
    literal, bare = run("print(ascii('\udcff'))", "x = \udcff")
    assert (literal.verdict, literal.stdout) == ("AC", "'\\udcff'\n")
    assert bare.verdict == "RE"


def test_killing_its_process_group_reaches_nobody_else() -> None:
    (result,) = run("import os; os.killpg(0, 9)")
    assert (result.verdict, result.signal) == ("RE", 9)
