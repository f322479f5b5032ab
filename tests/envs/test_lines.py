"""JSON Lines files: good ones in every dress, and bad ones named by file and line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from huilu import errors
from huilu.envs.lines import Lines


def identity(fields: dict[str, Any]) -> dict[str, Any]:
    return fields


def written(folder: Path, content: bytes, name: str = "rows.jsonl") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(
    "content",
    [
        b'{"n": 0}\n{"n": 1}\n{"n": 2}\n',
        b'{"n": 0}\n{"n": 1}\n{"n": 2}',
        b'{"n": 0}\r\n{"n": 1}\r\n{"n": 2}\r\n',
        b'\xef\xbb\xbf{"n": 0}\n{"n": 1}\n{"n": 2}\n',
        b'\n\n{"n": 0}\n   \n{"n": 1}\r\n\r\n{"n": 2}\n\n',
    ],
    ids=["plain", "no newline at the end", "CRLF", "byte order mark", "blank lines"],
)
def test_rows_are_read_by_index(tmp_path: Path, content: bytes) -> None:
    rows = Lines(written(tmp_path, content), identity)
    assert len(rows) == 3
    assert [rows[i]["n"] for i in (2, 0, 1)] == [2, 0, 1]


def test_a_compressed_file_is_read_like_a_plain_one(tmp_path: Path) -> None:
    rows = Lines(written(tmp_path, gzip.compress(b'{"n": 0}\n{"n": 1}\n'), "rows.jsonl.gz"), identity)
    assert [rows[0], rows[1]] == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"n": 1', r'\{"n": 1: .*truncated; expected one whole JSON object a line'),
        (b'[{"n": 1}]', "a list: .*expected one JSON object a line"),
        (b'{"n": "\xff"}', "byte 8 of the line is 0xff; expected valid UTF-8"),
        (b'{"n": NaN}', ".*malformed"),
        (b"hello", ".*malformed"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: bytes, said: str) -> None:
    path = written(tmp_path, b'{"n": 0}\n\n' + line + b'\n{"n": 3}\n')
    with pytest.raises(errors.BadData, match=rf"rows\.jsonl:3: {said}"):
        Lines(path, identity)


def test_what_the_reader_refuses_is_named_by_file_and_number(tmp_path: Path) -> None:
    def refuse(fields: dict[str, Any]) -> None:
        if fields["n"] == 1:
            raise errors.BadData("n is 1", expected="another", fix="change it")

    with pytest.raises(errors.BadData, match=r"rows\.jsonl:2: n is 1; expected another\n  next: change it"):
        Lines(written(tmp_path, b'{"n": 0}\n{"n": 1}\n'), refuse)


def test_utf16_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.BadData, match=r"rows\.jsonl:1: text in UTF-16; expected UTF-8"):
        Lines(written(tmp_path, '{"n": 0}\n'.encode("utf-16")), identity)


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_a_file_without_rows_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(errors.BadData, match="has no rows"):
        Lines(written(tmp_path, content), identity)


def test_a_missing_file_says_where_relative_paths_start(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.jsonl", tmp_path / "gone.jsonl.gz", tmp_path):
        with pytest.raises(errors.BadData, match="starts at the job file's folder"):
            Lines(path, identity)


@pytest.mark.parametrize("keep", [4, 20])
def test_a_broken_compressed_file_is_named(tmp_path: Path, keep: int) -> None:
    content = gzip.compress(b'{"n": 0}\n' * 100)[:keep]
    with pytest.raises(errors.BadData, match="no whole gzip file"):
        Lines(written(tmp_path, content, "rows.jsonl.gz"), identity)


def test_a_file_that_changes_under_a_run_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"n": 0}\n{"n": 1}\n')
    rows = Lines(path, identity)
    path.write_bytes(b'{"n": 5}\n{"n": 6}\n')
    os.utime(path, ns=(1, 1))
    with pytest.raises(errors.BadData, match="changed while the run used it"):
        rows[1]


def test_rows_are_not_kept_in_memory(tmp_path: Path) -> None:
    parsed = []
    rows = Lines(written(tmp_path, b'{"n": 0}\n' * 3), lambda fields: parsed.append(1))
    assert len(parsed) == 3
    rows[0], rows[0]
    assert len(parsed) == 5
