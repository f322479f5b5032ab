"""GGUF files, converted once into a Hugging Face folder in a cache. No torch in here, so that it is quick to start.

Called by `resolve`. Quantised weights become float32; names, shapes and the q/k order that llama.cpp permutes go back
to the Hugging Face layout. The source file is only read.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
from safetensors.numpy import save_file

from huilu.errors import BadWeights, Locked
from huilu.model import integrity
from huilu.model.folder import disk_errors, published, temporary_prefix
from huilu.model.gguf_tokenizer import special_ids, write_tokenizer
from huilu.model.layout import pieces
from huilu.model.spec import ModelSpec, RopeScaling, from_config, read_spec, to_config

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_FORMAT = 1  # of the converted folder; a change makes old caches unreachable
_ROPE_FACTORS = "rope_freqs.weight"
_LOCK_POLL_S = 0.1


def convert(path: Path, cache: Path, timeout_s: float = 600.0) -> Path:
    """The Hugging Face folder of a GGUF file in `cache`, converting it if it is not there or no longer whole.

    The folder's name holds the file's SHA-256. Several processes may call this at once: one converts, the others
    wait at most `timeout_s` for it (then Locked). Raises BadWeights for a damaged or unsupported file.
    """
    source = integrity.file_digest(path)
    folder = cache / f"{path.stem}-{source[:16]}-{_FORMAT}"
    if _whole(folder):
        return folder
    with disk_errors(f"using the cache {cache}"):
        cache.mkdir(parents=True, exist_ok=True)
        return _convert_alone(path, folder, source, timeout_s)


def _convert_alone(path: Path, folder: Path, source: str, timeout_s: float) -> Path:
    cache = folder.parent
    with _alone(cache / f"{folder.name}.lock", timeout_s):
        if _whole(folder):
            return folder
        # Nobody else is here: whatever has these names was damaged, or left by a converter that was killed.
        for leftover in cache.glob(f"{temporary_prefix(folder)}*"):
            shutil.rmtree(leftover)
        shutil.rmtree(folder, ignore_errors=True)
        with published(folder) as temporary:
            _convert(path, temporary, source)
    return folder


def _whole(folder: Path) -> bool:
    """Is there a converted folder, every byte as it was written?"""
    if not folder.exists():
        return False
    try:
        integrity.verify(folder, read_spec(folder))
    except BadWeights:
        return False
    return (folder / integrity.MANIFEST).exists()


@contextlib.contextmanager
def _alone(lock: Path, timeout_s: float) -> Iterator[None]:
    """Hold a file lock, which the system releases however the holder ends."""
    deadline = time.monotonic() + timeout_s
    with lock.open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Locked(
                        f"{lock} for {timeout_s:g} s",
                        expected="the process that converts this model to be done by then",
                        fix="wait for it, or end it",
                    ) from None
                time.sleep(_LOCK_POLL_S)
        yield


def _convert(path: Path, folder: Path, source: str) -> None:
    fields, tensors = _read(path)
    spec = _with_rope_factors(_spec(fields, tensors), tensors.get(_ROPE_FACTORS), path)
    names = _names(spec, fields["general.architecture"], tensors, path)
    sizes_bytes = {piece.name: 4 * int(np.prod(piece.shape)) for piece in pieces(spec)}
    shapes = {piece.name: piece.shape for piece in pieces(spec)}
    digests: dict[str, str] = {}
    files = integrity.shards(sizes_bytes)
    for file, members in files.items():
        shard = {name: _dequantise(tensors[names[name]], name, shapes[name], spec, path) for name in members}
        save_file(shard, folder / file, metadata={"format": "pt"})
        for name, values in shard.items():
            digests[name] = integrity.tensor_digest("F32", values.shape, values.data)
    integrity.write_index(folder, files, sum(sizes_bytes.values()))
    (folder / "config.json").write_text(json.dumps(to_config(spec, "float32"), indent=2) + "\n")
    ids = {"bos_token_id": spec.bos_id, "eos_token_id": list(spec.eos_ids), "pad_token_id": spec.pad_id}
    (folder / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n")
    write_tokenizer(fields, folder)
    integrity.write_manifest(folder, digests, source)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, gguf.ReaderTensor]]:
    """All metadata and tensors of a GGUF file, memory-mapped. The reader finds a short file by running over its end."""
    try:
        reader = gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, IndexError, KeyError, OverflowError, MemoryError, struct.error) as error:
        raise BadWeights(f"{path}: {error}", expected="a whole GGUF file", fix="copy or download it again") from error
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def _spec(fields: Mapping[str, Any], tensors: Mapping[str, gguf.ReaderTensor]) -> ModelSpec:
    """The spec that the metadata describes, by way of the config.json that transformers would have."""
    architecture = fields.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise BadWeights(
            f"a GGUF file of architecture {architecture!r}",
            expected=f"one of {', '.join(_ARCHITECTURES)}",
            fix="choose a model of the Llama family",
        )
    own = {name.removeprefix(f"{architecture}."): value for name, value in fields.items()}
    try:
        num_heads, hidden_size = own["attention.head_count"], own["embedding_length"]
        config: dict[str, Any] = {
            "architectures": [_ARCHITECTURES[architecture]],
            "vocab_size": int(tensors["token_embd.weight"].shape[1]),
            "num_hidden_layers": own["block_count"],
            "hidden_size": hidden_size,
            "num_attention_heads": num_heads,
            "num_key_value_heads": own.get("attention.head_count_kv", num_heads),
            "head_dim": own.get("attention.key_length", hidden_size // num_heads),
            "intermediate_size": own["feed_forward_length"],
            "rms_norm_eps": _decimal(own["attention.layer_norm_rms_epsilon"]),
            "max_position_embeddings": own["context_length"],
            "rope_theta": _decimal(own.get("rope.freq_base", 10000.0)),
            "rope_scaling": _scaling(own),
        }
    except KeyError as error:
        raise BadWeights(
            f"a GGUF file without {error}", fix="convert the model again with a newer llama.cpp"
        ) from error
    ids = special_ids(fields)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    config["bos_token_id"], config["pad_token_id"] = ids.get("bos"), ids.get("pad")
    config["eos_token_id"] = list(dict.fromkeys(ids[name] for name in ("eos", "eot") if name in ids))
    return from_config(config)


def _scaling(own: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = own.get("rope.scaling.type", "none")
    return None if kind == "none" else {"rope_type": kind, "factor": own.get("rope.scaling.factor")}


def _with_rope_factors(spec: ModelSpec, tensor: gguf.ReaderTensor | None, path: Path) -> ModelSpec:
    """llama.cpp stores Llama 3.1's scaling as a tensor of divisors; take it when they are the published ones."""
    if tensor is None:
        return spec
    divisors = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    scaling = RopeScaling(kind="llama3", factor=_decimal(divisors.max()))
    frequencies = spec.rope_theta ** -(np.arange(0, spec.head_size, 2) / spec.head_size)
    turns = scaling.original_max_positions * frequencies / (2 * np.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept_frac = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    if not np.allclose(1 / (kept_frac + (1 - kept_frac) / scaling.factor), divisors, rtol=1e-3):
        raise BadWeights(
            f"{path}: {_ROPE_FACTORS} holds unknown rope factors",
            expected="those of Llama 3.1",
            fix="use the Hugging Face folder of this model instead",
        )
    return msgspec.structs.replace(spec, rope_scaling=scaling)


def _names(spec: ModelSpec, architecture: str, tensors: Mapping[str, gguf.ReaderTensor], path: Path) -> dict[str, str]:
    """The GGUF name of every Hugging Face tensor; every one there and none left over, or BadWeights."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], spec.num_layers)
    names = {piece.name: table.get_name(piece.name, (".weight", ".bias")) or piece.name for piece in pieces(spec)}
    if missing := [name for name in names.values() if name not in tensors]:
        raise BadWeights(f"{path} has no tensor {missing[0]}", fix="copy or download the file again")
    if foreign := sorted(tensors.keys() - set(names.values()) - {_ROPE_FACTORS}):
        raise BadWeights(
            f"{path}: foreign tensor {foreign[0]}",
            expected=f"only those of a plain {architecture} decoder",
            fix="choose a model of the Llama family without experts",
        )
    return names


def _dequantise(
    tensor: gguf.ReaderTensor, name: str, shape: tuple[int, ...], spec: ModelSpec, path: Path
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """One tensor in float32 and the Hugging Face layout."""
    try:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    except NotImplementedError as error:
        raise BadWeights(
            f"{path}: {name} has type {tensor.tensor_type.name}",
            expected="a type that the gguf package can dequantise",
            fix="use a file of another quantisation, Q8_0 say",
        ) from error
    if values.shape != shape:
        raise BadWeights(
            f"{path}: {name} has shape {list(values.shape)}",
            expected=f"{list(shape)} by its metadata",
            fix="convert the model again with a newer llama.cpp",
        )
    if spec.family == "llama" and ".self_attn.q_proj." in name:
        values = _unpermute(values, spec.num_heads)
    elif spec.family == "llama" and ".self_attn.k_proj." in name:
        values = _unpermute(values, spec.num_kv_heads)
    return np.ascontiguousarray(values)


def _unpermute(values: np.ndarray[Any, np.dtype[np.float32]], num_heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Undo llama.cpp's interleaving of the two halves of each head (`permute` of its convert_hf_to_gguf.py)."""
    per_head = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return per_head.swapaxes(1, 2).reshape(values.shape)


def _decimal(value: float) -> float:
    """The shortest decimal of a float32, so that 1e-5 does not become 9.999999747378752e-06."""
    return float(str(np.float32(value)))
