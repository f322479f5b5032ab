"""Hugging Face folders: what we write, transformers and we ourselves read back unchanged; the digest is defined."""

from __future__ import annotations

import errno
import hashlib
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
import transformers
from torch import Tensor

from huilu.errors import BadWeights, DiskFull, Outside, Refused
from huilu.model import hf, integrity, weights
from huilu.model.decoder import Decoder
from huilu.model.folder import disk_errors, published
from huilu.model.spec import read_spec

Build = Callable[[transformers.PreTrainedConfig], Any]
Logits = Callable[[Any, list[Tensor]], Tensor]


def _digest_of_files(folder: Path) -> str:
    found = integrity.check(folder, read_spec(folder))
    return integrity.combine(integrity.tensor_digests(folder, found))


def test_an_exported_folder_loads_in_transformers_with_the_same_weights(
    config: transformers.PreTrainedConfig,
    reference: Build,
    sequences: list[Tensor],
    their_logits: Logits,
    tmp_path: Path,
) -> None:
    model = reference(config)
    model.save_pretrained(tmp_path / "theirs")
    hf.export(hf.load_decoder(tmp_path / "theirs"), tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, attn_implementation="eager"
    )
    assert type(again) is type(model)
    theirs, ours = model.state_dict(), again.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    with torch.no_grad():
        assert torch.equal(their_logits(model, sequences), their_logits(again, sequences))
    kept = ("rope_parameters", "tie_word_embeddings", "num_key_value_heads", "eos_token_id", "sliding_window")
    for name in kept:
        assert getattr(again.config, name, None) == getattr(model.config, name, None), name


def test_a_sharded_folder_holds_the_same_weights_as_a_single_file(llama_dir: Path, sharded_dir: Path) -> None:
    assert len(list(sharded_dir.glob("*.safetensors"))) > 2
    single, sharded = hf.load_decoder(llama_dir), hf.load_decoder(sharded_dir)
    assert weights.digest(single) == weights.digest(sharded)


def test_a_sharded_export_loads_in_transformers(llama_dir: Path, tmp_path: Path) -> None:
    hf.export(hf.load_decoder(llama_dir), tmp_path / "out", shard_bytes=20_000)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    assert not (tmp_path / "out" / integrity.SINGLE).exists()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(llama_dir).state_dict()
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_digest_is_the_same_in_memory_in_the_file_and_loaded_again(
    llama_dir: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    decoder = hf.load_decoder(llama_dir, dtype)
    hf.export(decoder, tmp_path / "out")
    manifest = integrity.read_manifest(tmp_path / "out")
    assert manifest is not None
    again = hf.load_decoder(tmp_path / "out", dtype)
    assert weights.digest(decoder) == manifest.digest == _digest_of_files(tmp_path / "out") == weights.digest(again)


def test_the_digest_is_the_documented_one(llama_dir: Path) -> None:
    stored = safetensors.torch.load_file(llama_dir / "model.safetensors")
    lines = []
    for name in sorted(stored):
        values = stored[name].numpy()
        head = f"F32 {'x'.join(map(str, values.shape))}\n".encode()
        lines.append(f"{name} {hashlib.sha256(head + np.ascontiguousarray(values).tobytes()).hexdigest()}\n")
    assert weights.digest(hf.load_decoder(llama_dir)) == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_changing_one_weight_changes_the_digest(llama_dir: Path) -> None:
    decoder = hf.load_decoder(llama_dir)
    before = weights.digest(decoder)
    with torch.no_grad():
        decoder.embedding[7, 3] += 1e-6
    assert weights.digest(decoder) != before


def test_companion_files_travel_with_an_export(smollm_dir: Path, llama_dir: Path, tmp_path: Path) -> None:
    hf.export(hf.load_decoder(llama_dir), tmp_path / "out", source=smollm_dir)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (smollm_dir / name).read_bytes()


def test_exporting_the_same_weights_again_changes_nothing(llama_dir: Path, tmp_path: Path) -> None:
    decoder = hf.load_decoder(llama_dir)
    size_bytes = hf.export(decoder, tmp_path / "out")
    written = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    assert hf.export(decoder, tmp_path / "out") == size_bytes
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == written


def test_exporting_over_other_weights_is_refused(llama_dir: Path, tmp_path: Path) -> None:
    decoder = hf.load_decoder(llama_dir)
    hf.export(decoder, tmp_path / "out")
    with torch.no_grad():
        decoder.final_norm[0] += 1
    with pytest.raises(Refused, match="already holds other weights"):
        hf.export(decoder, tmp_path / "out")
    with pytest.raises(Refused, match="not a model of ours"):
        hf.export(decoder, llama_dir)


def test_weights_load_in_place(llama_dir: Path, tmp_path: Path) -> None:
    decoder = hf.load_decoder(llama_dir)
    digest = weights.digest(decoder)
    num_bytes = hf.export(decoder, tmp_path / "out")
    assert num_bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    address = decoder.embedding.data_ptr()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.zero_()
    hf.load_weights(decoder, tmp_path / "out")
    assert weights.digest(decoder) == digest
    assert decoder.embedding.data_ptr() == address


def test_weights_of_another_model_do_not_load_in_place(llama_dir: Path) -> None:
    other = Decoder(msgspec.structs.replace(read_spec(llama_dir), num_layers=2))
    with pytest.raises(BadWeights, match=r"foreign tensor model\.layers\.2"):
        hf.load_weights(other, llama_dir)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def write_and_fail() -> None:
        with published(tmp_path / "out") as temporary:
            (temporary / "half").write_bytes(b"x")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskFull):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_inside_safetensors_is_called_full() -> None:
    with pytest.raises(DiskFull, match="writing x"), disk_errors("writing x"):
        raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def test_an_export_that_cannot_be_written_leaves_nothing_behind(llama_dir: Path, tmp_path: Path) -> None:
    decoder = hf.load_decoder(llama_dir)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(Outside, match="File too large"):
            hf.export(decoder, tmp_path / "exports" / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "exports").iterdir()) == []


def test_a_published_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    with published(tmp_path / "out") as temporary:
        (temporary / "file").write_text(json.dumps(1))
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "file").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
