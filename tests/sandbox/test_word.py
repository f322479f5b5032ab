"""The examiner's word: nothing that the answer does, and nothing that the test catches, turns a failure into a pass."""

from __future__ import annotations

import pytest

from tests.sandbox.conftest import check

ENDS = "def f(x):\n  import os; os._exit(0)"
CAUGHT = {
    "an exit under a bare except": (ENDS, "try:\n  f(1)\nexcept: pass"),
    "an exit under finally": (ENDS, "def t():\n  try: f(1)\n  finally: return\nt()"),
    "garbage under a bare except": (
        "import os\ndef f(x):\n  os.write(4, b'\\0\\0\\0\\2{}')\n  return 2",
        "try:\n  f(1)\nexcept: pass",
    ),
    "an odd value under a bare except": ("def f(x): return object()", "try:\n  f(1)\nexcept: pass"),
    "a loop cut short": ("def f(x): raise StopIteration", "assert all(map(f, [1, 2, 3]))"),
    "an argument that cannot cross": ("def f(x): return 2", "try:\n  f(object())\nexcept TypeError: pass"),
}


def test_what_the_test_catches_does_not_turn_a_lost_candidate_into_a_pass() -> None:
    results = check(*CAUGHT.values())
    found = {name: result.verdict for name, result in zip(CAUGHT, results, strict=True)}
    assert "AC" not in found.values(), found


def test_an_answer_that_closes_its_channel_and_lives_on_is_to_blame() -> None:
    (result,) = check(("import os, time\ndef f(x):\n  os.closerange(3, 9); time.sleep(9)", "assert f(1) == 2"))
    assert result.verdict == "INC", result.note


@pytest.mark.parametrize("value", ["Counter('aab')", "OrderedDict(a=2, b=1)", "defaultdict(int, a=2, b=1)"])
def test_the_standard_librarys_dicts_cross_as_dicts(value: str) -> None:
    (result,) = check((f"from collections import *\ndef f(): return {value}", "assert f() == {'a': 2, 'b': 1}"))
    assert result.verdict == "AC", result.note


def test_an_error_that_needs_more_than_a_text_still_counts_as_an_error() -> None:
    source = "def f(): b'\\xff'.decode()"
    (result,) = check((source, "try:\n  f()\nexcept Exception: pass\nelse: assert False"))
    assert result.verdict == "AC", result.note
