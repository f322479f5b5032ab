"""Reasoning Gym's own data sets and scorers. Built for prompts in control, and for scoring in a worker process.

Called by `huilu.envs.reasoning_gym` (prompts) and, by name through `Tools.calls`, in a worker (`score`): some of
its scorers evaluate what the model wrote, so they must not run where a hang or a crash would hurt.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import random
import sys
import threading
import types
from typing import Any

from huilu import errors

_ONE_AT_A_TIME = threading.Lock()


def _do_without_pycosat() -> None:
    """Let the package be imported where its one compiled dependency could not be built.

    Only its zebra puzzles use pycosat, and they then fail by name; the package itself would not import at all.
    """
    if "pycosat" not in sys.modules and importlib.util.find_spec("pycosat") is None:
        sys.modules["pycosat"] = types.ModuleType("pycosat", "not installed: it needs a C compiler")


def load_dataset(name: str, size: int, seed: int, config: dict[str, Any]) -> Any:
    """The data set `name`. Raises BadConfig for a name or setting that it does not have, or values it refuses."""
    _do_without_pycosat()
    try:
        # Takes about a second and pulls in matplotlib and sympy: only jobs that use it should pay.
        import reasoning_gym  # noqa: PLC0415
        from reasoning_gym.composite import DatasetSpec  # noqa: PLC0415
        from reasoning_gym.factory import DATASETS  # noqa: PLC0415
    except ImportError as error:
        raise errors.BadConfig(
            f"environment reasoning_gym needs the package of that name: {error}",
            fix="pip install 'huilu[tasks]'; without a C compiler, see requirements/reasoning-gym.txt",
        ) from error
    if name not in DATASETS:
        raise errors.BadConfig(f"Reasoning Gym has no data set {name!r}", fix=errors.nearest(name, DATASETS))
    known = [key for key in inspect.signature(DATASETS[name][1]).parameters if key not in ("size", "seed")]
    for key in config:
        if key not in known:
            raise errors.BadConfig(
                f"Reasoning Gym's {name} has no setting {key!r} for `config`",
                expected=f"one of {', '.join(known)}",
                fix=errors.nearest(key, known),
            )
    if name == "composite":
        config = {**config, "datasets": [DatasetSpec(**spec) for spec in config.get("datasets", [])]}
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **config)
    except (AssertionError, ValueError, TypeError) as error:
        raise errors.BadConfig(f"Reasoning Gym refuses {name} with {config}: {error}") from error


def make_entry(made: Any, seed: int, index: int) -> dict[str, Any]:
    """Question `index` of a data set, the same in every process and thread.

    Some data sets draw from Python's or numpy's global random state (list_functions, pool_matrix), so entries are
    made one at a time, with Python's seeded and put back.
    """
    with _ONE_AT_A_TIME:
        state = random.getstate()
        random.seed(f"{seed}/{index}")
        try:
            entry: dict[str, Any] = made[index]
            return entry
        finally:
            random.setstate(state)


@functools.lru_cache(maxsize=8)
def _cached(name: str, size: int, seed: int, config_json: str) -> Any:
    return load_dataset(name, size, seed, json.loads(config_json))


def score(dataset: str, size: int, seed: int, config: dict[str, Any], index: int, answer: str) -> float:
    """The data set's own score of `answer` to its question `index`; the same data set is made once a process."""
    made = _cached(dataset, size, seed, json.dumps(config, sort_keys=True))
    return float(made.score_answer(answer, entry=make_entry(made, seed, index)))
