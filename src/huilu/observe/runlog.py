"""A run's log files: `events.jsonl` (every event) and `metrics.jsonl` (one flat line a round), JSON Lines, append only.

Called by assembly, which gives the sinks to `Telemetry`; read back by the live view of a resumed run and by the
report. A line is in the kernel's hands when the sink returns, so `kill -9` tears none; a line torn by a full disk
or a power cut is cut off again. Never holds a secret's value: see `without`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from huilu.errors import BadData, from_os
from huilu.observe.events import Event, RoundEnded, decode
from huilu.telemetry import Sink

HIDDEN = "[secret]"
_BLOCK_BYTES = 1 << 16


class JsonLines:
    """An open JSON Lines file that is only appended to, by the one process that holds the run's lock. Thread-safe.

    Opening cuts off a torn last line. Raises DiskFull, NotWritable or Outside; a line that did not fit is taken
    back, so that the file stays whole and a later line can follow it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _cut_torn_line(self._fd)
        except OSError as error:
            raise from_os(error, f"open {path}") from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line. Numbers that are not finite become null, what JSON has no type for its text."""
        line = msgspec.json.encode(_encodable(record)) + b"\n"
        with self._lock:
            start = os.fstat(self._fd).st_size
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._fd, line[written:])
            except OSError as error:
                os.ftruncate(self._fd, start)
                raise from_os(error, f"write to {self._path}") from error

    def close(self) -> None:
        """Write through to the disk and close."""
        os.fsync(self._fd)
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def event_log(lines: JsonLines) -> Sink:
    """The sink of `events.jsonl`: every event as told."""
    return lines.append


def metrics_log(lines: JsonLines) -> Sink:
    """The sink of `metrics.jsonl`: one flat line for each `round` event, its phases as `seconds_PHASE`."""

    def sink(told: Mapping[str, Any]) -> None:
        event = decode(told)
        if isinstance(event, RoundEnded):
            lines.append(flat(event))

    return sink


def flat(ended: RoundEnded) -> dict[str, Any]:
    """A round as one flat mapping."""
    fields = msgspec.structs.asdict(ended)
    seconds = fields.pop("seconds")
    return {**fields, **{f"seconds_{phase}": s for phase, s in seconds.items()}}


def without(values: Iterable[str], sink: Sink) -> Sink:
    """The sink, given each event with these secret values replaced wherever they stand in a text."""
    secrets = sorted((value for value in values if value), key=len, reverse=True)

    def clean(value: Any) -> Any:
        match value:
            case str():
                for secret in secrets:
                    value = value.replace(secret, HIDDEN)
                return value
            case Mapping():
                return {clean(key): clean(item) for key, item in value.items()}
            case list() | tuple():
                return [clean(item) for item in value]
        return value

    return lambda told: sink({key: clean(value) for key, value in told.items()})


def read_events(path: Path) -> Iterator[Event]:
    """The typed events of a log, in order; none when there is no file.

    A torn last line is left out: the run may be writing it now. Raises BadData for any other line that is no event.
    """
    for number, line in enumerate(_whole_lines(path), 1):
        try:
            told = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise BadData(
                f"{path}, line {number}: {error}", expected="a JSON object a line", fix="remove the line"
            ) from error
        event = decode(told)
        if event is not None:
            yield event


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rounds of `metrics.jsonl` in order; of a round that a resumed run told again, the last line."""
    rounds = {}
    for line in _whole_lines(path):
        record = msgspec.json.decode(line, type=dict[str, Any])
        rounds[record["round"]] = record
    return [rounds[number] for number in sorted(rounds)]


def _whole_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise from_os(error, f"read {path}") from error


def _cut_torn_line(fd: int) -> None:
    """Truncate the file to the end of its last whole line."""
    end = size = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(fd, end)


def _encodable(value: Any) -> Any:
    """Plain values that JSON can hold: lone surrogates (no UTF-8) become their escapes, unknown types their text."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case Mapping():
            return {str(_encodable(key)): _encodable(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_encodable(item) for item in value]
        case None | bool() | int() | float():
            return value
    return str(value)
