"""Hugging Face folders in and out: `load_decoder` from one, `export` as one that transformers loads.

Called by `assembly` (loading and saving) and `train`. It moves weights between layouts and never changes a value but
by the type that it was asked for. Names, shapes and fusions come from `layout`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from huilu.errors import Refused
from huilu.model import integrity
from huilu.model.decoder import Decoder
from huilu.model.folder import published
from huilu.model.spec import read_spec, to_config
from huilu.model.weights import digest, tensor_digests, tensors

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)
"""The files that travel with weights unchanged, where they are present."""


def load_decoder(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    verify: bool = True,
) -> Decoder:
    """The decoder of a Hugging Face folder, its weights cast to `dtype` on `device`.

    The files are checked first, digests too where the folder has a manifest, unless `verify` is False. Weights are
    read through a memory map: no second copy is made. Raises BadWeights.
    """
    spec = read_spec(folder)
    integrity.check(folder, spec)  # before a config.json with wrong sizes makes the decoder take their memory
    decoder = Decoder(spec, dtype, device)
    load_weights(decoder, folder, verify=verify)
    return decoder


def load_weights(decoder: Decoder, folder: Path, *, verify: bool = True) -> None:
    """Overwrite a decoder's weights in place with a folder's, after the checks of `load_decoder`. Raises BadWeights."""
    check = integrity.verify if verify else integrity.check
    found = check(folder, decoder.spec)
    with contextlib.ExitStack() as stack, torch.no_grad():
        opened: dict[str, Any] = {}
        for name, target in tensors(decoder).items():
            file = found[name].file
            if file not in opened:
                opened[file] = stack.enter_context(safe_open(folder / file, framework="pt", device="cpu"))
            target.copy_(opened[file].get_tensor(name))


def export(
    decoder: Decoder, folder: Path, source: Path | None = None, *, shard_bytes: int = integrity.SHARD_BYTES
) -> int:
    """Write a Hugging Face folder, whole or not at all, with the companion files of `source`; its size in bytes.

    A folder that already holds these very weights is left as it is. Raises Refused when it holds anything else,
    DiskFull or NotWritable.
    """
    if folder.exists() and any(folder.iterdir()):
        _check_same(decoder, folder)
    else:
        with published(folder) as temporary:
            _write(decoder, temporary, source, shard_bytes)
    return sum(path.stat().st_size for path in folder.iterdir())


def _write(decoder: Decoder, folder: Path, source: Path | None, shard_bytes: int) -> None:
    by_name = tensors(decoder)
    sizes_bytes = {name: tensor.numel() * tensor.element_size() for name, tensor in by_name.items()}
    files = integrity.shards(sizes_bytes, shard_bytes)
    digests: dict[str, str] = {}
    for file, names in files.items():
        # One shard at a time is laid out anew, which bounds the extra memory.
        shard = {name: by_name[name].cpu().contiguous() for name in names}
        save_file(shard, folder / file, metadata={"format": "pt"})
        digests |= tensor_digests(shard)
    integrity.write_index(folder, files, sum(sizes_bytes.values()))
    dtype = str(decoder.embedding.dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(to_config(decoder.spec, dtype), indent=2) + "\n")
    for name in COMPANIONS:
        if source is not None and (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    integrity.write_manifest(folder, digests)


def _check_same(decoder: Decoder, folder: Path) -> None:
    manifest = integrity.read_manifest(folder)
    ours = digest(decoder)
    if manifest is None or manifest.digest != ours:
        raise Refused(
            f"{folder} already holds {'other weights' if manifest else 'files that are not a model of ours'}",
            expected=f"nothing there, or weights with the digest {ours[:16]}…",
            fix="choose another folder",
        )
    integrity.verify(folder, read_spec(folder))
