"""Which Hugging Face tensor is which part of which decoder parameter: the one table of names, shapes and fusions.

Called by `hf` (both ways), `weights` (what a folder must hold) and `gguf` (what to convert). No torch in here.
Hugging Face stores a linear weight [out, in]; the decoder stores [in, out], fuses q, k and v along `out`, its last
dimension, and stacks gate and up as [2, in, out]: two products of half the width run faster than one, and both results
are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from huilu.model.spec import ModelSpec


class Piece(NamedTuple):
    """HF tensor `name` of `shape` is `parameter[..., start:stop]` of the decoder, transposed if `transposed`.

    Of a stacked parameter it is that of `parameter[matrix]`.
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    start: int
    stop: int
    transposed: bool
    matrix: int | None = None


def pieces(spec: ModelSpec) -> Iterator[Piece]:
    """Every tensor of a model with this spec, each exactly once, covering every decoder parameter exactly once."""
    vocab, hidden = spec.vocab_size, spec.hidden_size
    yield Piece("model.embed_tokens.weight", (vocab, hidden), "embedding", 0, hidden, False)
    for index in range(spec.num_layers):
        yield from _layer_pieces(spec, f"model.layers.{index}.", f"layers.{index}.")
    yield Piece("model.norm.weight", (hidden,), "final_norm", 0, hidden, False)
    if not spec.tie_embeddings:
        yield Piece("lm_head.weight", (vocab, hidden), "head", 0, vocab, True)


def _layer_pieces(spec: ModelSpec, theirs: str, ours: str) -> Iterator[Piece]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    num_q, num_kv = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
    attention, mlp = f"{theirs}self_attn.", f"{theirs}mlp."
    yield _norm(f"{theirs}input_layernorm", f"{ours}attn_norm", hidden)
    start = 0
    for part, size in (("q", num_q), ("k", num_kv), ("v", num_kv)):
        yield _linear(f"{attention}{part}_proj", f"{ours}qkv", hidden, size, start)
        if spec.qkv_bias:
            yield _bias(f"{attention}{part}_proj", f"{ours}qkv_bias", size, start)
        start += size
    if spec.qk_norm:
        yield _norm(f"{attention}q_norm", f"{ours}q_norm", spec.head_size)
        yield _norm(f"{attention}k_norm", f"{ours}k_norm", spec.head_size)
    yield _linear(f"{attention}o_proj", f"{ours}o", num_q, hidden)
    if spec.o_bias:
        yield _bias(f"{attention}o_proj", f"{ours}o_bias", hidden)
    yield _norm(f"{theirs}post_attention_layernorm", f"{ours}mlp_norm", hidden)
    for matrix, part in enumerate(("gate", "up")):
        yield _linear(f"{mlp}{part}_proj", f"{ours}gate_up", hidden, inner, matrix=matrix)
    yield _linear(f"{mlp}down_proj", f"{ours}down", inner, hidden)


def _linear(name: str, parameter: str, size_in: int, size_out: int, start: int = 0, matrix: int | None = None) -> Piece:
    return Piece(f"{name}.weight", (size_out, size_in), parameter, start, start + size_out, True, matrix)


def _bias(name: str, parameter: str, size: int, start: int = 0) -> Piece:
    return Piece(f"{name}.bias", (size,), parameter, start, start + size, False)


def _norm(name: str, parameter: str, size: int) -> Piece:
    return Piece(f"{name}.weight", (size,), parameter, 0, size, False)
