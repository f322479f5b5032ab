"""Damaged, short, missing and foreign files are each done for real, and each is one named error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from huilu.errors import BadWeights
from huilu.model import hf, integrity


def _edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def _edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    change(tensors)
    safetensors.torch.save_file(tensors, file)


def _flip_byte(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def _message(folder: Path) -> str:
    with pytest.raises(BadWeights) as caught:
        hf.load_decoder(folder)
    assert caught.value.fix, "every such error says what to do next"
    return str(caught.value)


def test_a_truncated_file_is_short_by_its_header(llama_dir: Path) -> None:
    file = llama_dir / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as handle:
        handle.truncate(size - 100)
    message = _message(llama_dir)
    assert str(file) in message
    assert f"{size - 100} bytes" in message
    assert f"expected {size} by its header: it is short" in message


def test_a_file_with_trailing_bytes_is_too_long(llama_dir: Path) -> None:
    with (llama_dir / "model.safetensors").open("ab") as handle:
        handle.write(b"tail")
    assert "too long" in _message(llama_dir)


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 64, b"\x02\x00\x00\x00\x00\x00\x00\x00[]"])
def test_a_file_that_is_no_safetensors_is_refused(llama_dir: Path, content: bytes) -> None:
    (llama_dir / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in _message(llama_dir)


def test_a_header_cut_in_the_middle_is_refused(llama_dir: Path) -> None:
    with (llama_dir / "model.safetensors").open("r+b") as handle:
        handle.truncate(200)
    assert "claims a header" in _message(llama_dir)


def test_a_header_with_overlapping_tensors_is_refused(llama_dir: Path) -> None:
    file = llama_dir / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["model.norm.weight"]["data_offsets"] = [0, 128]
    encoded = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content[8 + length :])
    assert "is at bytes" in _message(llama_dir)


def test_a_missing_file_is_named(llama_dir: Path) -> None:
    (llama_dir / "model.safetensors").unlink()
    (llama_dir / "pytorch_model.bin").touch()
    message = _message(llama_dir)
    assert "model.safetensors is missing" in message
    assert "convert pytorch_model.bin" in message


def test_a_missing_shard_is_named(sharded_dir: Path) -> None:
    shard = sorted(sharded_dir.glob("*.safetensors"))[1]
    shard.unlink()
    assert f"{shard.name} is missing" in _message(sharded_dir)


def test_a_shard_that_no_index_lists_is_foreign(sharded_dir: Path) -> None:
    shutil.copyfile(sorted(sharded_dir.glob("*.safetensors"))[0], sharded_dir / "model-00099-of-00099.safetensors")
    assert "model-00099-of-00099.safetensors belongs to no index" in _message(sharded_dir)


def test_an_index_that_disagrees_with_a_shard_is_refused(sharded_dir: Path) -> None:
    index = json.loads((sharded_dir / integrity.INDEX).read_text())
    first, *_, last = sorted(set(index["weight_map"].values()))
    index["weight_map"] = {name: last if file == first else file for name, file in index["weight_map"].items()}
    (sharded_dir / integrity.INDEX).write_text(json.dumps(index))
    assert first in _message(sharded_dir)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}', "{}"])
def test_a_broken_index_is_refused(sharded_dir: Path, content: str) -> None:
    (sharded_dir / integrity.INDEX).write_text(content)
    assert integrity.INDEX in _message(sharded_dir)


def test_a_missing_tensor_is_named(llama_dir: Path) -> None:
    _edit_tensors(llama_dir, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert "has no tensor model.layers.1.mlp.up_proj.weight; expected shape [56, 32]" in _message(llama_dir)


def test_a_foreign_tensor_is_named(llama_dir: Path) -> None:
    _edit_tensors(llama_dir, lambda tensors: tensors.update({"model.vision.weight": torch.zeros(3)}))
    assert "foreign tensor model.vision.weight" in _message(llama_dir)


def test_a_tensor_of_another_shape_is_named(llama_dir: Path) -> None:
    _edit_config(llama_dir, intermediate_size=57)
    message = _message(llama_dir)
    assert "gate_proj.weight has shape [56, 32]" in message
    assert "expected [57, 32] by config.json" in message


def test_absurd_sizes_are_refused_before_any_memory_is_taken(llama_dir: Path) -> None:
    _edit_config(llama_dir, vocab_size=10**13)
    assert "model.embed_tokens.weight has shape" in _message(llama_dir)


def test_a_tensor_of_an_unknown_type_is_named(llama_dir: Path) -> None:
    _edit_tensors(
        llama_dir, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].to(torch.int8)})
    )
    assert "lm_head.weight has type I8" in _message(llama_dir)


def test_an_untied_model_without_its_head_is_refused(llama_dir: Path) -> None:
    _edit_tensors(llama_dir, lambda tensors: tensors.pop("lm_head.weight"))
    assert "has no tensor lm_head.weight" in _message(llama_dir)


def test_buffers_of_old_checkpoints_and_a_tied_head_are_ignored(llama_dir: Path) -> None:
    _edit_config(llama_dir, tie_word_embeddings=True)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    _edit_tensors(llama_dir, lambda tensors: tensors.update(extra))
    assert hf.load_decoder(llama_dir).head is None


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_broken_config_is_refused(llama_dir: Path, content: str) -> None:
    (llama_dir / "config.json").write_text(content)
    assert "config.json" in _message(llama_dir)


def test_a_flipped_bit_in_the_weights_is_found_by_the_manifest(llama_dir: Path, tmp_path: Path) -> None:
    hf.export(hf.load_decoder(llama_dir), tmp_path / "out")
    _flip_byte(tmp_path / "out" / "model.safetensors", -5)
    message = _message(tmp_path / "out")
    assert "model.safetensors: " in message
    assert "the bytes were changed" in message


def test_a_changed_or_missing_companion_is_found_by_the_manifest(
    llama_dir: Path, smollm_dir: Path, tmp_path: Path
) -> None:
    hf.export(hf.load_decoder(llama_dir), tmp_path / "out", source=smollm_dir)
    _flip_byte(tmp_path / "out" / "tokenizer.json", 1000)
    assert "tokenizer.json: its content has SHA-256" in _message(tmp_path / "out")
    (tmp_path / "out" / "tokenizer.json").unlink()
    assert "tokenizer.json: No such file" in _message(tmp_path / "out")


def test_weights_exchanged_for_those_of_another_model_are_found_by_the_manifest(
    llama_dir: Path, tmp_path: Path
) -> None:
    hf.export(hf.load_decoder(llama_dir), tmp_path / "out")
    _edit_tensors(tmp_path / "out", lambda tensors: tensors["model.norm.weight"].add_(1))
    assert "model.norm.weight has SHA-256" in _message(tmp_path / "out")


def test_a_broken_manifest_is_refused(llama_dir: Path) -> None:
    (llama_dir / integrity.MANIFEST).write_text("{}")
    assert integrity.MANIFEST in _message(llama_dir)
