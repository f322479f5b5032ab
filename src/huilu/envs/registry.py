"""The environments by name: the one line that adds an environment, and how its settings are checked.

Called by assembly and the docs' tests. Third parties add theirs without touching this file: an entry point in the
group `huilu.envs` whose object is a `Kind` (or a plain pair of the same two things).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from huilu import errors
from huilu.core.ports import Environment
from huilu.envs import arithmetic, code, code_repair, jsonl, math_tool, reasoning_gym

ENTRY_POINT_GROUP = "huilu.envs"


class Kind(NamedTuple):
    """An environment that can be built: its settings' type, and `build(settings, folder)`.

    `folder` is where relative paths in the settings start: the job file's folder.
    """

    settings: type[msgspec.Struct]
    build: Callable[[Any, Path], Environment]


ENVIRONMENTS: dict[str, Kind] = {
    "arithmetic": Kind(arithmetic.Settings, arithmetic.build),
    "code": Kind(code.Settings, code.build),
    "code_repair": Kind(code_repair.Settings, code_repair.build),
    "jsonl": Kind(jsonl.Settings, jsonl.build),
    "math_tool": Kind(math_tool.Settings, math_tool.build),
    "reasoning_gym": Kind(reasoning_gym.Settings, reasoning_gym.build),
}


def environment_names() -> list[str]:
    """Every environment that a job can name, third parties' included."""
    return sorted({*ENVIRONMENTS, *(point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP))})


def build_environment(name: str, params: dict[str, Any], folder: Path = Path()) -> Environment:
    """The environment `name` with these settings. Raises BadConfig (wrong name, key, value) and BadData."""
    kind = find_kind(name)
    known = {field.encode_name for field in msgspec.structs.fields(kind.settings)}
    for key in params:
        if key not in known:
            raise errors.BadConfig(
                f"environment {name} has no setting {key!r}",
                expected=f"one of {', '.join(sorted(known))}",
                fix=errors.nearest(key, known),
            )
    try:
        settings = msgspec.convert(params, kind.settings)
    except msgspec.ValidationError as error:
        raise errors.BadConfig(f"environment {name}: {error}", fix="see docs/environments.md") from error
    return kind.build(settings, folder)


def find_kind(name: str) -> Kind:
    """The kind called `name`; ours first, so that nobody else's entry point can replace one."""
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP, name=name):
        with errors.boundary(f"loading environment {name} from {point.value}"):
            settings, build = point.load()
            return Kind(settings, build)
    names = environment_names()
    raise errors.BadConfig(
        f"no environment is called {name!r}", expected=f"one of {', '.join(names)}", fix=errors.nearest(name, names)
    )
