"""Files into a work folder and out of it, inside a jail, as one msgpack map: path -> [mode, content or target].

Called by `keeper`. Nothing is followed: a link is kept as a link, and made last. Standard library only.
"""

from __future__ import annotations

import os
import stat
import struct

Tree = dict[str, tuple[int, bytes]]


class TooMuch(Exception):
    """More than may be kept."""


def put(folder: str, tree: Tree) -> None:
    """Make these files; folders that they lie in come by themselves."""
    made = {""}
    links = []
    for path in sorted(tree):
        mode, content = tree[path]
        if stat.S_ISLNK(mode):
            links.append((path, content))
            continue
        parent = path if stat.S_ISDIR(mode) else os.path.dirname(path)
        if parent not in made:
            os.makedirs(os.path.join(folder, parent), exist_ok=True)
            made.add(parent)
        if not stat.S_ISDIR(mode):
            _write(os.path.join(folder, path), stat.S_IMODE(mode), content)
    for path, target in links:
        os.makedirs(os.path.join(folder, os.path.dirname(path)), exist_ok=True)
        os.symlink(target, os.path.join(folder, path).encode())


def _write(path: str, mode: int, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def take(folder: str, wanted: tuple[str, ...], most_bytes: int) -> bytes:
    """What lies at these paths, "." being all, packed. Raises TooMuch beyond the limit.

    What has no UTF-8 name, is no file, folder or link, or cannot be reached by its path is left out.
    """
    packed: list[bytes] = []
    count, left = 0, most_bytes
    waiting = ["" if path == "." else path for path in wanted]
    while waiting:
        path = waiting.pop()
        try:
            entry = _read(os.path.join(folder, path), left)
            name = path.encode()
        except (OSError, UnicodeEncodeError):
            continue
        if entry is None:
            continue
        mode, content, names = entry
        left -= len(content)
        waiting += [f"{path}/{name}" if path else name for name in names]
        if path:
            count += 1
            packed.append(_head(0xD9, 0xDB, name) + b"\x92\xce" + struct.pack(">I", mode) + _head(0xC4, 0xC6, content))
    return b"\xdf" + struct.pack(">I", count) + b"".join(packed)


def _read(path: str, most_bytes: int) -> tuple[int, bytes, list[str]] | None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return mode, os.readlink(path.encode()), []
    if stat.S_ISDIR(mode):
        return mode, b"", os.listdir(path)
    if not stat.S_ISREG(mode):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size > most_bytes:
            raise TooMuch
        parts = []
        while part := os.read(descriptor, 1 << 20):
            parts.append(part)
        return mode, b"".join(parts), []
    finally:
        os.close(descriptor)


def _head(short: int, long: int, data: bytes) -> bytes:
    """Text or bytes with msgpack's header."""
    if len(data) < 256:
        return bytes((short, len(data))) + data
    return bytes((long,)) + struct.pack(">I", len(data)) + data
