"""What a decoder is made of: `ModelSpec`, read from and written to a Hugging Face config.json. No torch in here.

Called by `decoder`, `hf`, `gguf`, `weights` and by rooms that need a model's sizes. A setting that this decoder
would compute wrongly (an activation, a rope type, a bias it has no room for) is refused by name, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from huilu.errors import BadWeights, Usage

Family = Literal["llama", "mistral", "qwen2", "qwen3"]


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched beyond the trained length; fields are those of transformers.

    `linear` divides every frequency by `factor`; `llama3` (Llama 3.1) divides the slow ones and blends between
    `low_freq_factor` and `high_freq_factor`, measured in turns over `original_max_positions`.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and switches of one decoder. Sizes are counts of elements; `max_positions` counts tokens.

    `sliding_window` is the number of tokens, itself included, that a token may see in a windowed layer, or None.
    Attention here is always full, which is the same thing up to that length: see `max_length`.
    """

    family: Family
    vocab_size: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    rope_theta: float
    norm_eps: float
    max_positions: int
    tie_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None

    @property
    def max_length(self) -> int:
        """The longest sequence that full attention computes as the model was trained."""
        return min(self.max_positions, self.sliding_window or self.max_positions)

    def check_length(self, num_tokens: int) -> None:
        """Raise Usage when a sequence of `num_tokens` is longer than `max_length`."""
        if num_tokens > self.max_length:
            why = "its sliding window" if self.sliding_window == self.max_length else "its trained positions"
            raise Usage(
                f"a sequence of {num_tokens} tokens",
                expected=f"at most {self.max_length}, {why}",
                fix="shorten the prompt or max_new_tokens, or choose a model with a longer context",
            )


class _Known(NamedTuple):
    """One supported architecture and what its transformers config class takes for a key that is absent."""

    family: Family
    architecture: str
    defaults: Mapping[str, Any]


_KNOWN: dict[str, _Known] = {
    known.family: known
    for known in (
        _Known(
            "llama",
            "LlamaForCausalLM",
            {"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2},
        ),
        _Known(
            "mistral",
            "MistralForCausalLM",
            {
                "max_position_embeddings": 131072,
                "num_key_value_heads": 8,
                "sliding_window": 4096,
                "bos_token_id": 1,
                "eos_token_id": 2,
            },
        ),
        _Known("qwen2", "Qwen2ForCausalLM", {"max_position_embeddings": 32768, "num_key_value_heads": 32}),
        _Known(
            "qwen3",
            "Qwen3ForCausalLM",
            {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
        ),
    )
}
ARCHITECTURES = tuple(known.architecture for known in _KNOWN.values())
"""The names that config.json may give."""

_DEFAULT_THETA = 10000.0
_DEFAULT_EPS = 1e-6


def read_spec(folder: Path) -> ModelSpec:
    """The spec of a Hugging Face folder: config.json, with any further EOS ids of generation_config.json.

    Raises BadWeights when config.json is missing, unreadable or describes a model this decoder cannot be.
    """
    spec = from_config(_read_json(folder / "config.json"))
    generation = folder / "generation_config.json"
    if not generation.exists():
        return spec
    more = _ids(_read_json(generation).get("eos_token_id"))
    return msgspec.structs.replace(spec, eos_ids=tuple(dict.fromkeys((*spec.eos_ids, *more))))


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    """The spec that a config.json (of transformers 4 or 5) describes. Raises BadWeights for what is not supported."""
    known = _architecture(config)
    values = {**known.defaults, **config}
    _refuse_unsupported(config)
    num_heads = int(_required(values, "num_attention_heads"))
    hidden_size = int(_required(values, "hidden_size"))
    attention_bias = bool(values.get("attention_bias", False))
    theta, scaling = _rope(values)
    return ModelSpec(
        family=known.family,
        vocab_size=int(_required(values, "vocab_size")),
        num_layers=int(_required(values, "num_hidden_layers")),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=int(values.get("num_key_value_heads") or num_heads),
        head_size=int(values.get("head_dim") or hidden_size // num_heads),
        intermediate_size=int(_required(values, "intermediate_size")),
        rope_theta=theta,
        norm_eps=float(values.get("rms_norm_eps", _DEFAULT_EPS)),
        max_positions=int(values["max_position_embeddings"]),
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        qkv_bias=known.family == "qwen2" or attention_bias,
        o_bias=known.family in ("llama", "qwen3") and attention_bias,
        qk_norm=known.family == "qwen3",
        rope_scaling=scaling,
        sliding_window=_sliding_window(known.family, values),
        bos_id=values.get("bos_token_id"),
        eos_ids=_ids(values.get("eos_token_id")),
        pad_id=values.get("pad_token_id"),
    )


def to_config(spec: ModelSpec, dtype: str) -> dict[str, Any]:
    """A config.json that transformers 4 and 5 read as the same model. `dtype` is `float32`, `bfloat16` or `float16`."""
    rope: dict[str, Any] = {"rope_type": "default"}
    if spec.rope_scaling is not None:
        rope = {"rope_type": spec.rope_scaling.kind, "factor": spec.rope_scaling.factor}
        if spec.rope_scaling.kind == "llama3":
            rope["low_freq_factor"] = spec.rope_scaling.low_freq_factor
            rope["high_freq_factor"] = spec.rope_scaling.high_freq_factor
            rope["original_max_position_embeddings"] = spec.rope_scaling.original_max_positions
    config: dict[str, Any] = {
        "architectures": [_KNOWN[spec.family].architecture],
        "model_type": spec.family,
        "vocab_size": spec.vocab_size,
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_size,
        "intermediate_size": spec.intermediate_size,
        "hidden_act": "silu",
        "rms_norm_eps": spec.norm_eps,
        "max_position_embeddings": spec.max_positions,
        "tie_word_embeddings": spec.tie_embeddings,
        "rope_theta": spec.rope_theta,
        "rope_scaling": rope if spec.rope_scaling else None,
        "rope_parameters": {"rope_theta": spec.rope_theta, **rope},
        "bos_token_id": spec.bos_id,
        "eos_token_id": list(spec.eos_ids) if len(spec.eos_ids) > 1 else next(iter(spec.eos_ids), None),
        "pad_token_id": spec.pad_id,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    if spec.family in ("llama", "qwen3"):
        config["attention_bias"] = spec.o_bias
    if spec.family == "mistral":
        config["sliding_window"] = spec.sliding_window
    if spec.family in ("qwen2", "qwen3"):
        config["use_sliding_window"] = spec.sliding_window is not None
        config["sliding_window"] = spec.sliding_window
        # Every layer is windowed: the narrowest reading of a spec that keeps one window for the whole model.
        config["max_window_layers"] = 0
    return config


def _architecture(config: Mapping[str, Any]) -> _Known:
    named = list(config.get("architectures") or [])
    for known in _KNOWN.values():
        if known.architecture in named or (not named and config.get("model_type") == known.family):
            return known
    raise BadWeights(
        f"config.json: architecture {', '.join(map(str, named)) or config.get('model_type')}",
        expected=f"one of {', '.join(ARCHITECTURES)}",
        fix="choose a model of the Llama family",
    )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    supported: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu",),
        "mlp_bias": (False,),
        "partial_rotary_factor": (1, 1.0),
        "quantization_config": (),
    }
    for key, values in supported.items():
        seen = config.get(key)
        if seen is not None and seen not in values:
            raise BadWeights(
                f"config.json: {key} = {json.dumps(seen)[:80]}",
                expected=f"{key} = {json.dumps(values[0])}" if values else f"no {key}: unquantised weights",
                fix="choose a model without it, or dequantise it first",
            )


def _rope(values: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Transformers 5 writes `rope_parameters`; 4 wrote `rope_theta` and `rope_scaling` (or `type`)."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or values.get("rope_theta") or _DEFAULT_THETA)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(kind="linear", factor=float(_required(rope, "factor")))
    if kind == "llama3":
        return theta, RopeScaling(
            kind="llama3",
            factor=float(_required(rope, "factor")),
            low_freq_factor=float(_required(rope, "low_freq_factor")),
            high_freq_factor=float(_required(rope, "high_freq_factor")),
            original_max_positions=int(_required(rope, "original_max_position_embeddings")),
        )
    raise BadWeights(
        f"config.json: rope type {kind!r}",
        expected="default, linear or llama3",
        fix="choose a model with one of these, or remove the scaling if its shorter context is enough",
    )


def _sliding_window(family: Family, values: Mapping[str, Any]) -> int | None:
    """The window, unless every layer is said to attend in full."""
    if family == "llama" or (family in ("qwen2", "qwen3") and not values.get("use_sliding_window", False)):
        return None
    layer_types = values.get("layer_types")
    if layer_types and "sliding_attention" not in layer_types:
        return None
    window = values.get("sliding_window")
    return None if window is None else int(window)


def _required(values: Mapping[str, Any], key: str) -> Any:
    if values.get(key) is None:
        raise BadWeights(f"config.json has no {key}", fix="download the model again")
    return values[key]


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BadWeights(f"{path} is missing", fix="point `model.path` at a complete model folder") from error
    except (OSError, ValueError) as error:
        raise BadWeights(f"{path}: {error}", expected="a JSON object", fix="download the model again") from error
    if not isinstance(content, dict):
        raise BadWeights(f"{path} holds a {type(content).__name__}", expected="a JSON object", fix="download it again")
    return content
