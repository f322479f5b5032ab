"""The products that a ceiling multiplies are those of the decoder itself."""

from __future__ import annotations

from huilu.model.ceilings import measure, products
from huilu.model.decoder import Decoder
from huilu.model.spec import ModelSpec


def spec() -> ModelSpec:
    return ModelSpec(
        family="llama",
        vocab_size=60,
        num_layers=2,
        hidden_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_size=8,
        intermediate_size=48,
        rope_theta=1e4,
        norm_eps=1e-5,
        max_positions=128,
        tie_embeddings=True,
    )


def test_every_matrix_of_the_decoder_is_multiplied_once_a_token() -> None:
    matrices = sum(weight.numel() for weight in Decoder(spec()).parameters() if weight.ndim >= 2)
    assert sum(rows * columns for rows, columns in products(spec())) == matrices


def test_every_asked_number_of_sequences_is_measured() -> None:
    found = measure(spec(), (1, 8))
    assert set(found.decode_tokens_per_s) == {1, 8}
    assert found.copy_bytes_per_s > 0
    assert found.matmul_flops_per_s > 0
