"""A ladder of generated coding tasks, easy enough for a small model to climb: seeded, no two alike, with tests.

Called by `code_repair`. The expected values come from the ladder's own solutions, which are text of this package; what
a model wrote never comes here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from huilu.core import ids
from huilu.envs.code_repair.problems import Problem
from huilu.envs.code_repair.rungs import RUNGS, Family

NUM_VISIBLE = 2
NUM_HIDDEN = 6
TRIES = 200
"""Draws of arguments until the hidden tests tell the function from a constant."""

_NAMES = (
    *("f", "g", "h", "solve", "calc", "compute", "work", "run", "task", "apply", "get", "make", "answer", "result"),
    *("value", "func", "do", "process", "transform", "evaluate"),
)
_ARGUMENTS = {
    "i": ("a b", "x y", "m n", "p q", "first second", "left right"),
    "n": ("n m", "a b", "x y", "count other", "num rest"),
    "s": ("s t", "text other", "word more", "name last"),
    "l": ("numbers others", "xs ys", "items more", "values rest"),
    "w": ("words others", "names more", "texts rest"),
}
_LETTERS = "aeinor"
_SYLLABLES = (
    "an",
    "ba",
    "co",
    "de",
    "el",
    "fi",
    "ga",
    "ho",
    "in",
    "jo",
    "ka",
    "lo",
    "mi",
    "no",
    "or",
    "pe",
    "ra",
    "se",
)


class _Dice:
    """Choices from `random()` alone, which every Python version makes alike."""

    def __init__(self, seed: int) -> None:
        self._stream = random.Random(seed)

    def whole(self, low: int, high: int) -> int:
        return low + int(self._stream.random() * (high - low + 1))

    def pick(self, choices: Any) -> Any:
        return choices[self.whole(0, len(choices) - 1)]

    def value(self, kind: str) -> Any:
        """An argument of this kind."""
        if kind == "i":
            return self.whole(-9, 20)
        if kind == "n":
            return self.whole(1, 12) if self.whole(0, 1) else self.whole(13, 60)
        if kind == "s":
            return "".join(self.pick(_SYLLABLES) for _ in range(self.whole(1, 5)))
        return [self.value("i" if kind == "l" else "s") for _ in range(self.whole(2, 6))]


class _Filled(NamedTuple):
    """A family with its names and constants."""

    name: str
    arguments: list[str]
    says: str
    source: str

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.arguments)})"


def climb(rungs: tuple[str, ...], size: int, seed: int) -> list[Problem]:
    """`size` problems of each rung, in the order of the rungs; fewer where a rung has no more that differ."""
    return [problem for rung in rungs for problem in _problems(rung, size, seed)]


def _problems(rung: str, size: int, seed: int) -> Iterator[Problem]:
    asked: set[str] = set()
    dice = _Dice(ids.seed_for(seed, "ladder", rung))
    families, misses = RUNGS[rung], 0
    while len(asked) < size and misses < TRIES:
        family = families[len(asked) % len(families)]
        filled = _fill(family, dice)
        key = f"{filled.source}{filled.says}"
        cases = _cases(family, filled, dice) if key not in asked else None
        if cases is None:
            misses += 1
            continue
        asked.add(key)
        misses = 0
        yield Problem(
            task_id=f"{rung}/{len(asked) - 1}",
            prompt=f"Write a Python function `{filled.signature}` that returns {filled.says}.",
            entry_point=filled.name,
            starter_code=filled.source.partition("\n")[0] + "\n",
            visible=tuple(cases[:NUM_VISIBLE]),
            hidden=tuple(cases[NUM_VISIBLE:]),
            canonical_solution=f"```python\n{filled.source}```",
        )


def _fill(family: Family, dice: _Dice) -> _Filled:
    name = dice.pick(_NAMES)
    arguments = dice.pick(_ARGUMENTS[family.kinds[0]]).split()[: len(family.kinds)]
    values = dict(zip("ab", arguments, strict=False))
    values |= {"k": dice.whole(2, 9), "d": dice.whole(2, 4), "c": dice.pick(_LETTERS)}
    body = family.body.format(**values).replace("\n", "\n    ")
    source = f"def {name}({', '.join(arguments)}):\n    {body}\n"
    return _Filled(name, arguments, family.says.format(**values), source)


def _cases(family: Family, filled: _Filled, dice: _Dice) -> list[str] | None:
    """Tests with different arguments, whose values no stub can all give; None where none are found."""
    namespace: dict[str, Any] = {}
    exec(compile(filled.source, "ladder", "exec"), namespace)  # noqa: S102 - this package's own text
    function = namespace[filled.name]
    for _ in range(TRIES):
        calls: dict[str, tuple[list[Any], Any]] = {}
        while len(calls) < NUM_VISIBLE + NUM_HIDDEN:
            arguments = [dice.value(kind) for kind in family.kinds]
            calls[", ".join(map(repr, arguments))] = (arguments, function(*arguments))
        found = list(calls.values())
        if _telling(found[:NUM_VISIBLE]) and _telling(found[NUM_VISIBLE:]):
            return [f"assert {filled.name}({shown}) == {value!r}" for shown, (_, value) in calls.items()]
    return None


def _telling(cases: list[tuple[list[Any], Any]]) -> bool:
    """Does neither a constant nor an argument given back pass all of these?"""
    values = {repr(value) for _, value in cases}
    echoed = [all(arguments[i] == value for arguments, value in cases) for i in range(len(cases[0][0]))]
    return len(values) > 1 and not any(echoed)
