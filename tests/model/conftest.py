"""Tiny random models of each family, made and saved by transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from huilu.model.decoder import Decoder, causal_attend

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
auto: Any = transformers.AutoModelForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "llama-tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-biased": lambda: transformers.LlamaConfig(**SIZES, attention_bias=True),
    "llama-one-kv-head": lambda: transformers.LlamaConfig(**SIZES | {"num_key_value_heads": 1}),
    "llama-every-kv-head": lambda: transformers.LlamaConfig(**SIZES | {"num_key_value_heads": 4}),
    "llama-rope-llama3": lambda: transformers.LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "llama-rope-linear": lambda: transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
    ),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=None),
    "mistral-head-size": lambda: transformers.MistralConfig(**SIZES, head_dim=16, sliding_window=128),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen2-tied": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16),
    "qwen3-tied-biased": lambda: transformers.Qwen3Config(
        **SIZES, head_dim=8, tie_word_embeddings=True, attention_bias=True
    ),
}


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> transformers.PreTrainedConfig:
    """The transformers configuration of each family and variant in turn."""
    return CONFIGS[request.param]()


@pytest.fixture
def reference() -> Callable[[transformers.PreTrainedConfig], Any]:
    """A transformers model with weights large enough for its logits to tell tokens apart."""

    def build(config: transformers.PreTrainedConfig) -> Any:
        torch.manual_seed(0)
        model = auto.from_config(config, attn_implementation="eager").eval()
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.25)
        return model

    return build


@pytest.fixture
def llama_dir(tmp_path: Path, reference: Callable[[transformers.PreTrainedConfig], Any]) -> Path:
    """A whole tiny Llama folder in one file."""
    reference(CONFIGS["llama"]()).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def sharded_dir(tmp_path: Path, reference: Callable[[transformers.PreTrainedConfig], Any]) -> Path:
    """The same model in several files with an index."""
    reference(CONFIGS["llama"]()).save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
    return tmp_path / "sharded"


LENGTHS = (7, 23, 1, 12)


@pytest.fixture
def sequences() -> list[Tensor]:
    """A few sequences of different lengths."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, SIZES["vocab_size"], (length,), generator=generator) for length in LENGTHS]


@pytest.fixture
def packed_logits() -> Callable[[Decoder, list[Tensor]], Tensor]:
    """Our logits [T, V] of sequences packed one after the other."""

    def compute(decoder: Decoder, sequences: list[Tensor]) -> Tensor:
        lengths = [len(sequence) for sequence in sequences]
        positions_T = torch.cat([torch.arange(length) for length in lengths])
        return decoder.logits(decoder.hidden(torch.cat(sequences), positions_T, causal_attend(lengths)))

    return compute


@pytest.fixture
def their_logits() -> Callable[[Any, list[Tensor]], Tensor]:
    """The logits [T, V] of transformers, each sequence by itself, one after the other."""

    def compute(model: Any, sequences: list[Tensor]) -> Tensor:
        return torch.cat([model(sequence[None]).logits[0] for sequence in sequences])

    return compute
