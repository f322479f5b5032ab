"""What config.json says becomes a spec, or a refusal that names what is not supported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from huilu.errors import BadWeights, Usage
from huilu.model.layout import pieces
from huilu.model.spec import RopeScaling, from_config, read_spec, to_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_the_spec_survives_a_round_trip(config: transformers.PreTrainedConfig) -> None:
    spec = from_config(config.to_dict())
    assert from_config(to_config(spec, "float32")) == spec


def test_transformers_4_and_5_spell_rope_differently_and_mean_the_same() -> None:
    old = from_config(LLAMA | {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE})
    new = from_config(LLAMA | {"rope_parameters": {"rope_theta": 500000.0, **LLAMA3_ROPE}})
    assert old == new
    assert new.rope_theta == 500000.0
    assert new.rope_scaling == RopeScaling(kind="llama3", factor=32.0)


def test_an_old_linear_scaling_is_read() -> None:
    spec = from_config(LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}})
    assert spec.rope_scaling == RopeScaling(kind="linear", factor=4.0)


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope"])
def test_other_rope_types_are_refused_by_name(kind: str) -> None:
    with pytest.raises(BadWeights, match=kind):
        from_config(LLAMA | {"rope_scaling": {"rope_type": kind, "factor": 4.0}})


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        BadWeights, match=r"GPT2LMHeadModel; expected one of LlamaForCausalLM, MistralForCausalLM, Qwen2"
    ):
        from_config({"architectures": ["GPT2LMHeadModel"]})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("mlp_bias", True),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"quant_method": "awq"}),
    ],
)
def test_settings_that_would_be_computed_wrongly_are_refused(key: str, value: Any) -> None:
    with pytest.raises(BadWeights, match=key):
        from_config(LLAMA | {key: value})


def test_a_missing_size_is_named() -> None:
    with pytest.raises(BadWeights, match="no hidden_size"):
        from_config({name: value for name, value in LLAMA.items() if name != "hidden_size"})


@pytest.mark.parametrize(
    "config_class",
    [transformers.LlamaConfig, transformers.MistralConfig, transformers.Qwen2Config, transformers.Qwen3Config],
)
def test_absent_keys_mean_what_they_mean_in_transformers(config_class: type[transformers.PreTrainedConfig]) -> None:
    full = config_class().to_dict()
    required = (*LLAMA, "model_type")
    sparse = {name: full[name] for name in required if name != "architectures"}
    assert from_config(sparse) == from_config(full)


def test_a_sliding_window_bounds_the_length_of_a_sequence() -> None:
    config = LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 64, "max_position_embeddings": 256}
    spec = from_config(config)
    assert spec.max_length == 64
    spec.check_length(64)
    with pytest.raises(Usage, match=r"65 tokens; expected at most 64, its sliding window"):
        spec.check_length(65)


def test_a_window_that_no_layer_uses_bounds_nothing() -> None:
    qwen = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2, "max_position_embeddings": 256}
    assert from_config(qwen | {"sliding_window": 64, "use_sliding_window": False}).max_length == 256
    assert from_config(qwen | {"sliding_window": 64, "use_sliding_window": True}).max_length == 64
    layers = {"layer_types": ["full_attention"] * 2}
    assert from_config(qwen | {"sliding_window": 64, "use_sliding_window": True} | layers).max_length == 256


def test_eos_ids_of_the_generation_config_are_added(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"eos_token_id": 5}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 9]}))
    assert read_spec(tmp_path).eos_ids == (5, 9)


def test_every_piece_has_a_name_and_a_place_of_its_own(config: transformers.PreTrainedConfig) -> None:
    spec = from_config(config.to_dict())
    parts = list(pieces(spec))
    assert len({piece.name for piece in parts}) == len(parts)
    assert len({(piece.parameter, piece.matrix, piece.start) for piece in parts}) == len(parts)


def test_the_light_modules_import_no_torch() -> None:
    script = "import sys, huilu.model.resolve, huilu.text.chat, huilu.text.stream; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
