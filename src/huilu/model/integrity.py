"""The integrity of a model folder, checked before anything is loaded; and what the digest of weights is. No torch.

Called by `hf` before loading and after saving, by `gguf` on its cache, and by checks that run without a model. It
reads headers and bytes, and never changes a file but the manifest and the index that it is asked to write.

Digests. A tensor's digest is SHA-256 over `"{dtype} {shape}\\n"` (safetensors' dtype name, sizes joined by `x`: for
example `F32 576x1536`) followed by its bytes as safetensors stores them (row-major, little-endian, the Hugging Face
layout). The digest of weights is SHA-256 over the lines `"{name} {digest}\\n"`, sorted by Hugging Face tensor name.
It depends on values, names, shapes and type alone, not on shards or metadata. The manifest of a folder
(`huilu.json`) lists these, and the SHA-256 of every other file.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from huilu.errors import BadWeights
from huilu.model.layout import pieces
from huilu.model.spec import ModelSpec

MANIFEST = "huilu.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 << 30
"""Weights are written in files of at most this size, as transformers does."""

_DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_COPY_AGAIN = "copy or download the file again"
_Item = TypeVar("_Item")


class Stored(msgspec.Struct, frozen=True):
    """One tensor in one file of a folder: bytes `start` to `stop` (exclusive) of the file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder held when it was written. `source` is the SHA-256 of the file it was converted from, if any."""

    digest: str
    tensors: dict[str, str]
    files: dict[str, str]
    source: str = ""
    schema_version: int = 1


def check(folder: Path, spec: ModelSpec) -> dict[str, Stored]:
    """Where each tensor of the model is, after checking names, files, sizes, shapes and types (not the bytes).

    Raises BadWeights on a missing, short, over-long or foreign file or tensor, naming what was seen and expected.
    """
    found = _stored(folder)
    wanted = {piece.name: piece.shape for piece in pieces(spec)}
    for name, shape in wanted.items():
        if name not in found:
            raise BadWeights(f"{folder} has no tensor {name}", expected=f"shape {list(shape)}", fix=_COPY_AGAIN)
        stored = found[name]
        if stored.shape != shape:
            raise BadWeights(
                f"{folder / stored.file}: {name} has shape {list(stored.shape)}",
                expected=f"{list(shape)} by config.json",
                fix="use the config.json that belongs to these weights",
            )
    for name in found.keys() - wanted.keys():
        if not _ignorable(name, spec):
            raise BadWeights(
                f"{folder / found[name].file}: foreign tensor {name}",
                expected="only the tensors that config.json describes",
                fix="use the config.json that belongs to these weights",
            )
    return {name: found[name] for name in wanted}


def verify(folder: Path, spec: ModelSpec) -> dict[str, Stored]:
    """`check`, and every digest of the manifest when the folder has one. Raises BadWeights."""
    found = check(folder, spec)
    manifest = read_manifest(folder)
    if manifest is None:
        return found
    for name, digest in manifest.files.items():
        _expect_digest(folder / name, file_digest(folder / name), digest)
    seen = tensor_digests(folder, found)
    for name, stored in found.items():
        _expect_digest(folder / stored.file, seen[name], manifest.tensors.get(name, "none"), name)
    return found


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, or None where there is none. Raises BadWeights when it cannot be read."""
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise BadWeights(f"{path}: {error}", expected="a manifest written by Huilu", fix=_COPY_AGAIN) from error


def write_manifest(folder: Path, tensors: Mapping[str, str], source: str = "") -> None:
    """Record the digests of a finished folder; `tensors` has those of its weights."""
    files = {
        path.name: file_digest(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix != ".safetensors" and path.name != MANIFEST
    }
    manifest = Manifest(digest=combine(tensors), tensors=dict(sorted(tensors.items())), files=files, source=source)
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def combine(tensors: Mapping[str, str]) -> str:
    """The digest of weights from the digests of their tensors; see the module's docstring."""
    return hashlib.sha256("".join(f"{name} {tensors[name]}\n" for name in sorted(tensors)).encode()).hexdigest()


def tensor_digest(dtype: str, shape: Iterable[int], data: bytes | memoryview) -> str:
    """The digest of one tensor; see the module's docstring."""
    digest = hashlib.sha256(f"{dtype} {'x'.join(map(str, shape))}\n".encode())
    digest.update(data)
    return digest.hexdigest()


def tensor_digests(folder: Path, found: Mapping[str, Stored]) -> dict[str, str]:
    """The digest of every stored tensor, read from the files in parallel threads."""
    digests: dict[str, str] = {}
    for file in sorted({stored.file for stored in found.values()}):
        digests |= _digests_in(folder / file, {name: stored for name, stored in found.items() if stored.file == file})
    return digests


def _digests_in(path: Path, found: Mapping[str, Stored]) -> dict[str, str]:
    with (
        path.open("rb") as handle,
        mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):

        def digest(name: str) -> str:
            stored = found[name]
            return tensor_digest(stored.dtype, stored.shape, content[stored.start : stored.stop])

        return digest_all(found, digest)


def digest_all(names: Iterable[_Item], digest: Callable[[_Item], str]) -> dict[_Item, str]:
    """`digest(name)` of every name, in as many threads as there are cores (hashlib lets them run)."""
    names = list(names)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return dict(zip(names, pool.map(digest, names), strict=True))


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes. Raises BadWeights when it cannot be read."""
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise BadWeights(f"{path}: {error.strerror}", expected="a readable file", fix=_COPY_AGAIN) from error


def shards(sizes_bytes: Mapping[str, int], limit_bytes: int = SHARD_BYTES) -> dict[str, list[str]]:
    """Which tensors go into which file, in order, no file over the limit unless one tensor is."""
    groups: list[list[str]] = [[]]
    room = limit_bytes
    for name, size in sizes_bytes.items():
        if groups[-1] and size > room:
            groups.append([])
            room = limit_bytes
        groups[-1].append(name)
        room -= size
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": names for i, names in enumerate(groups, start=1)}


def write_index(folder: Path, files: Mapping[str, Iterable[str]], total_bytes: int) -> None:
    """The index of a sharded model; none is needed for a single file."""
    if SINGLE not in files:
        weight_map = {name: file for file, names in files.items() for name in names}
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=1))


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors that a safetensors file says it holds, after checking the file's size against it. BadWeights."""
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise BadWeights(
                    f"{path} has {size} bytes and claims a header of {length}",
                    expected="a whole safetensors file",
                    fix=_COPY_AGAIN,
                )
            header = json.loads(handle.read(length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        found = {
            name: Stored(
                file=path.name,
                dtype=str(entry["dtype"]),
                shape=tuple(entry["shape"]),
                start=8 + length + entry["data_offsets"][0],
                stop=8 + length + entry["data_offsets"][1],
            )
            for name, entry in entries.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadWeights(f"{path}: {error}", expected="a safetensors header", fix=_COPY_AGAIN) from error
    _check_extent(path, found, 8 + length, size)
    return found


def _check_extent(path: Path, found: Mapping[str, Stored], start: int, size: int) -> None:
    """Tensors must follow one another from the header to the end of the file, each as long as its shape says."""
    for name, stored in sorted(found.items(), key=lambda item: (item[1].start, item[1].stop)):
        if stored.dtype not in _DTYPE_BYTES:
            raise BadWeights(
                f"{path}: {name} has type {stored.dtype}",
                expected=f"one of {', '.join(_DTYPE_BYTES)}",
                fix="convert the weights to one of these",
            )
        expected = start + math.prod(stored.shape) * _DTYPE_BYTES[stored.dtype]
        if (stored.start, stored.stop) != (start, expected):
            raise BadWeights(
                f"{path}: {name} is at bytes {stored.start} to {stored.stop}",
                expected=f"{start} to {expected}",
                fix=_COPY_AGAIN,
            )
        start = expected
    if size != start:
        raise BadWeights(
            f"{path} has {size} bytes",
            expected=f"{start} by its header: it is {'short' if size < start else 'too long'}",
            fix=_COPY_AGAIN,
        )


def _stored(folder: Path) -> dict[str, Stored]:
    """Every tensor in the folder's safetensors files, index and files agreeing."""
    present = {path.name for path in folder.glob("model*.safetensors")}
    indexed = _read_index(folder)
    expected = {SINGLE} if indexed is None else set(indexed.values())
    if missing := sorted(expected - present):
        others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for path in folder.glob(pattern))
        raise BadWeights(
            f"{folder / missing[0]} is missing",
            expected=f"{len(expected)} safetensors file(s)",
            fix=f"convert {others[0]} to safetensors first" if others else _COPY_AGAIN,
        )
    if extra := sorted(present - expected):
        raise BadWeights(
            f"{folder / extra[0]} belongs to no index",
            expected=f"only {', '.join(sorted(expected))}",
            fix="remove the file, or use the index that belongs to it",
        )
    found: dict[str, Stored] = {}
    for file in sorted(expected):
        header = read_header(folder / file)
        if indexed is not None:
            listed = {name for name, owner in indexed.items() if owner == file}
            if odd := sorted(listed ^ header.keys()):
                where = "in the index only" if odd[0] in listed else "in the file only"
                raise BadWeights(
                    f"{folder / file}: {odd[0]} is {where}", expected=f"what {INDEX} lists", fix=_COPY_AGAIN
                )
        found.update(header)
    return found


def _read_index(folder: Path) -> dict[str, str] | None:
    path = folder / INDEX
    if not path.exists():
        return None
    try:
        weight_map = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])["weight_map"]
        return msgspec.json.decode(weight_map, type=dict[str, str])
    except (OSError, KeyError, msgspec.DecodeError) as error:
        raise BadWeights(f"{path}: {error}", expected="an index with a weight_map", fix=_COPY_AGAIN) from error


def _ignorable(name: str, spec: ModelSpec) -> bool:
    """Old checkpoints hold buffers that are computed, and a tied head twice."""
    return name.endswith("rotary_emb.inv_freq") or (spec.tie_embeddings and name == "lm_head.weight")


def _expect_digest(path: Path, seen: str, expected: str, tensor: str = "") -> None:
    if seen != expected:
        raise BadWeights(
            f"{path}: {tensor or 'its content'} has SHA-256 {seen[:16]}…",
            expected=f"{expected[:16]}… by {MANIFEST}: the bytes were changed",
            fix=_COPY_AGAIN,
        )
