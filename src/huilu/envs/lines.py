"""A JSON Lines file as a sequence of rows: checked whole once, then read row by row from its offsets.

Called by `code` and `jsonl`. Keeps 16 bytes a row in memory, not the rows (a `.gz` file is unpacked in memory).
Every error names the file and the line. Opens the file for each read, so it owns nothing that must be closed.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import msgspec

from huilu import errors

T = TypeVar("T")
_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


class Lines(Generic[T]):
    """The rows of `path`, each parsed by `parse`, which raises BadData about one row without knowing its place.

    Blank lines are skipped; a byte order mark and CRLF are accepted. Raises BadData for a missing or empty file
    and for the first bad line. Safe to use from several threads.
    """

    def __init__(self, path: Path, parse: Callable[[dict[str, Any]], T]) -> None:
        self._path, self._parse = path, parse
        self._content = _unpacked(path) if path.suffix == ".gz" else None
        self._starts, self._sizes = array("Q"), array("Q")
        with self._open() as file:
            self._stamp = _stamp(file)
            for number, start, raw in _lines(file):
                self._row(raw, f"{path}:{number}")
                self._starts.append(start)
                self._sizes.append(len(raw))
        if not self._starts:
            raise errors.BadData(f"{path} has no rows", expected="one JSON object a line")

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> T:
        """Row `index`, counted without blank lines. Raises BadData when the file is no longer the one checked."""
        start, size = self._starts[index], self._sizes[index]
        with self._open() as file:
            if _stamp(file) != self._stamp:
                raise errors.BadData(
                    f"{self._path} changed while the run used it", fix="start a new run on the new file"
                )
            file.seek(start)
            return self._row(file.read(size), f"{self._path}, row {index}")

    def _open(self) -> IO[bytes]:
        if self._content is not None:
            return io.BytesIO(self._content)
        try:
            return self._path.open("rb")
        except OSError as error:
            raise _unreadable(self._path, error) from error

    def _row(self, raw: bytes, place: str) -> T:
        try:
            return self._parse(_object(raw))
        except errors.BadData as error:
            raise errors.BadData(f"{place}: {error.observed}", expected=error.expected, fix=error.fix) from error


def _lines(file: IO[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Each line that is not blank: its number from 1, the offset of its first byte, and its bytes."""
    start = 0
    for number, raw in enumerate(file, 1):
        skip = len(_UTF8_BOM) if number == 1 and raw.startswith(_UTF8_BOM) else 0
        if raw[skip:].strip():
            yield number, start + skip, raw[skip:]
        start += len(raw)


def _object(raw: bytes) -> dict[str, Any]:
    """The JSON object in one line. Raises BadData that says what stands there instead."""
    if raw.startswith(_UTF16_BOMS):
        raise errors.BadData("text in UTF-16", expected="UTF-8")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise errors.BadData(f"byte {error.start + 1} of the line is 0x{byte:02x}", expected="valid UTF-8") from error
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise errors.BadData(f"{_excerpt(raw)}: {error}", expected="one whole JSON object a line") from error
    if not isinstance(value, dict):
        raise errors.BadData(f"a {type(value).__name__}: {_excerpt(raw)}", expected="one JSON object a line")
    return value


def _excerpt(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").strip()
    return text if len(text) <= 60 else text[:57] + "..."


def _unpacked(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise errors.BadData(f"{path} is no whole gzip file: {error}") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> errors.HuiluError:
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return errors.BadData(
            f"{path}: {error.strerror}",
            expected="a JSON Lines file",
            fix="a relative path starts at the job file's folder",
        )
    return errors.from_os(error, f"reading {path}")


def _stamp(file: IO[bytes]) -> tuple[int, int]:
    """Size and time of change: what tells whether a file is still the one that was checked."""
    if isinstance(file, io.BytesIO):
        return (0, 0)
    stat = os.fstat(file.fileno())
    return stat.st_size, stat.st_mtime_ns
