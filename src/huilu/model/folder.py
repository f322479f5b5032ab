"""Folders that appear whole or not at all: written under a temporary name, synced, renamed.

Called by `hf` and `gguf`. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from huilu.errors import from_os


@contextlib.contextmanager
def published(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that becomes it when the block ends, and vanishes when the block raises.

    Every file is on disk before the rename. `folder` must not exist, or be empty. Errors as of `disk_errors`.
    """
    with disk_errors(f"writing {folder}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=temporary_prefix(folder), dir=folder.parent))
        try:
            yield temporary
            temporary.chmod(0o755)
            for path in temporary.iterdir():
                # safetensors makes files that only their owner can read
                path.chmod(0o644)
                sync(path)
            sync(temporary)
            temporary.rename(folder)
            sync(folder.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextlib.contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Failed system calls become DiskFull, NotWritable or Outside, also those inside safetensors.

    Safetensors wraps a failed call in an error of its own, with the number in its text.
    """
    try:
        yield
    except OSError as error:
        raise from_os(error, what) from error
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        code = int(number[1])
        raise from_os(OSError(code, os.strerror(code)), what) from error


def temporary_prefix(folder: Path) -> str:
    """How the temporary names of `folder` begin, so that what a killed process left can be found."""
    return f".{folder.name}.tmp-"


def sync(path: Path) -> None:
    """Have the disk hold a file, or a folder's names (not what its files contain)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
