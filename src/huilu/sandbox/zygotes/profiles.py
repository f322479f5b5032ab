"""Profiles: what a program finds already loaded, one zygote each. A profile is one row of the table.

Called by `daemon` and `zygotes`. A profile has a digest of all that it is made of, its zygote the date it was built.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from huilu.core.generation import Program
from huilu.sandbox.zygotes import bundle
from huilu.sandbox.zygotes.root import PACKAGES


class Profile(NamedTuple):
    """One row. `packages` are installed ones, shown to its programs whether `imports` names them or not."""

    name: str
    imports: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    """Of the zygote while it imports; not of its programs."""


_STDLIB = (
    "abc", "argparse", "ast", "base64", "bisect", "collections", "contextlib", "copy", "csv", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json", "math", "operator",
    "random", "re", "statistics", "string", "textwrap", "threading", "time", "traceback", "types", "typing",
)  # fmt: skip
TABLE = {
    profile.name: profile
    for profile in (
        Profile("bare"),
        Profile("stdlib", _STDLIB),
        Profile("numpy", (*_STDLIB, "numpy"), ("numpy",), (("OPENBLAS_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1"))),
    )
}
AUTO = "auto"
_MENTIONS = re.compile(r"^[ \t]*(?:import|from)[ \t]+([\w., \t]+)", re.MULTILINE)


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A profile as its zygote has it."""

    name: str
    digest: str
    built_at: str
    modules: tuple[str, ...]


def choose(program: Program) -> Profile:
    """The profile that a program asks for, or by its imports, the smallest that has what it needs loaded."""
    if program.profile != AUTO:
        return TABLE[program.profile]
    found: set[str] = set()
    for match in _MENTIONS.finditer(program.source):
        found.update(name.strip().split(".")[0].split(" ")[0] for name in match[1].split(","))
    if "numpy" in found and installed("numpy"):
        return TABLE["numpy"]
    return TABLE["stdlib" if found & set(_STDLIB) else "bare"]


@functools.cache
def installed(package: str) -> tuple[Path, ...]:
    """The folders of an installed package: itself, and the libraries that its wheel brings beside it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return ()
    folder = Path(next(iter(spec.submodule_search_locations)))
    beside = folder.with_name(f"{package}.libs")
    return (folder, beside) if beside.is_dir() else (folder,)


def available() -> tuple[Profile, ...]:
    """The profiles whose packages are installed here."""
    return tuple(profile for profile in TABLE.values() if all(map(installed, profile.packages)))


def script(profile: Profile) -> str:
    """The text that its zygote runs."""
    head = f"import sys\nsys.path.append({PACKAGES!r})\n" if profile.packages else ""
    names = [name for name, _ in profile.environment]
    foot = f"import os\nfor name in {names!r}: del os.environ[name]\n" if names else ""
    return head + bundle.script(profile.imports, foot)


@functools.cache
def digest(profile: Profile) -> str:
    """SHA-256 over the interpreter, the zygote's text and the versions of the packages."""
    parts = [sys.version, script(profile), repr(profile)]
    parts += [importlib.metadata.version(package) for package in profile.packages]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
