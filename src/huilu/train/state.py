"""The learner's state in one file: written whole or not at all, and refused when it is damaged or another's.

Called by the learner. The file is a safetensors file (moments, masters, the probe: 8 bytes a parameter of a float32
model) whose metadata holds a msgpack header and the header's SHA-256; the header holds the digest of the tensors and
of the weights that the state belongs to. The weights themselves are saved beside it, by `model.hf`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from huilu.algo.packing import Sample
from huilu.errors import BadWeights, from_os
from huilu.model import integrity, weights

_KIND = "huilu.learner"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the state is of, and what is no tensor in it. Digests are hexadecimal, as `model.integrity` defines them."""

    weights_digest: str
    tensors_digest: str
    num_steps: int
    num_nonfinite: int
    random_state: bytes
    probe: list[Sample]
    schema_version: int = 1


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """The digest of named tensors."""
    return integrity.combine(weights.tensor_digests(tensors))


def write_state(path: Path, header: Header, tensors: Mapping[str, Tensor], half_way: Callable[[], None]) -> int:
    """Write the file under a temporary name, have the disk hold it, and rename it; its size in bytes.

    What was at `path` stays until then. `half_way` is called in the middle. Raises DiskFull, NotWritable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.tmp-", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_preamble(header, tensors))
                for index, tensor in enumerate(tensors.values()):
                    if index == len(tensors) // 2:
                        half_way()
                    file.write(_bytes_of(tensor))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return path.stat().st_size
    except OSError as error:
        raise from_os(error, f"writing {path}") from error


def read_state(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """The header and the tensors, checked against their digests. Raises BadWeights."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            header = _header(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError) as error:
        raise _bad(path, str(error)) from error
    if digest_of(tensors) != header.tensors_digest:
        raise _bad(path, "the tensors do not have their digest")
    return header, tensors


def _header(path: Path, metadata: Mapping[str, str]) -> Header:
    if metadata.get("format") != _KIND:
        raise _bad(path, "no learner's state")
    with contextlib.suppress(ValueError, msgspec.MsgspecError):
        encoded = base64.b64decode(metadata["header"], validate=True)
        if hashlib.sha256(encoded).hexdigest() == metadata.get("digest"):
            return msgspec.msgpack.decode(encoded, type=Header)
    raise _bad(path, "the header does not have its digest")


def _bad(path: Path, what: str) -> BadWeights:
    return BadWeights(f"{path}: {what}", fix="resume from an older saved state, or start again from weights")


def _preamble(header: Header, tensors: Mapping[str, Tensor]) -> bytes:
    """What stands before the tensors in a safetensors file: the length of a JSON header, and it, padded to 8 bytes."""
    encoded = msgspec.msgpack.encode(header)
    entries: dict[str, object] = {
        "__metadata__": {
            "format": _KIND,
            "header": base64.b64encode(encoded).decode(),
            "digest": hashlib.sha256(encoded).hexdigest(),
        }
    }
    start = 0
    for name, tensor in tensors.items():
        stop = start + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
