"""Folders that appear whole or not at all: written under a temporary name, synced, renamed.

Called by `hf` and `gguf`. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from huilu.errors import from_os


@contextlib.contextmanager
def published(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that becomes it when the block ends, and vanishes when the block raises.

    Every file is on disk before the rename. `folder` must not exist, or be empty. Failed system calls become
    DiskFull, NotWritable or Outside.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=temporary_prefix(folder), dir=folder.parent))
        try:
            yield temporary
            temporary.chmod(0o755)
            for path in temporary.iterdir():
                # safetensors makes files that only their owner can read
                path.chmod(0o644)
            sync(temporary)
            temporary.rename(folder)
            _sync_path(folder.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise from_os(error, f"writing {folder}") from error


def temporary_prefix(folder: Path) -> str:
    """How the temporary names of `folder` begin, so that what a killed process left can be found."""
    return f".{folder.name}.tmp-"


def sync(folder: Path) -> None:
    """Have the disk hold every file directly in `folder`, and their names."""
    for path in folder.iterdir():
        _sync_path(path)
    _sync_path(folder)


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
