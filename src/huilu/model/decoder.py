"""The one decoder of the Llama family, used by the engine and by the learner on the same weights.

Works on flat, packed tokens; the caller supplies attention (`Attend`): the learner over packed sequences, the
engine over its paged cache. Linear weights are fused and stored [in, out], so that a layer is `x @ W`. Rotation
and norms are computed in float32 whatever the weights' type. It must not know about caches, batches, sampling or
losses.

Shapes: T tokens of all sequences; N tokens whose logits are wanted; D hidden; V vocabulary; F inner (MLP);
H query heads; K key/value heads; d head size; R = H + K, the heads that are rotated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from huilu.model.kernels import head, linear, rms_norm, rotate, swiglu
from huilu.model.spec import ModelSpec

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`attend(layer, q_THd, k_TKd, v_TKd) -> out_THd`: causal attention scaled by 1/sqrt(d); q and k come rotated."""


class Layer(nn.Module):
    """The weights of one block: q, k and v in one matrix; gate and up stacked, so that both come out contiguous."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        num_q, num_kv = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size

        def zeros(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(shape, dtype=dtype, device=device))

        def ones(size: int) -> nn.Parameter:
            return nn.Parameter(torch.ones(size, dtype=dtype, device=device))

        self.attn_norm = ones(spec.hidden_size)
        self.qkv = zeros(spec.hidden_size, num_q + 2 * num_kv)
        self.qkv_bias = zeros(num_q + 2 * num_kv) if spec.qkv_bias else None
        self.q_norm = ones(spec.head_size) if spec.qk_norm else None
        self.k_norm = ones(spec.head_size) if spec.qk_norm else None
        self.o = zeros(num_q, spec.hidden_size)
        self.o_bias = zeros(spec.hidden_size) if spec.o_bias else None
        self.mlp_norm = ones(spec.hidden_size)
        self.gate_up = zeros(2, spec.hidden_size, spec.intermediate_size)
        self.down = zeros(spec.intermediate_size, spec.hidden_size)


class Decoder(nn.Module):
    """Embedding, `spec.num_layers` blocks, final norm, output head (the embedding itself when tied).

    Fresh weights are zero (norms one): load them with `hf.load` or draw them with `initialise`.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Parameter(torch.zeros(spec.vocab_size, spec.hidden_size, dtype=dtype, device=device))
        self.layers = nn.ModuleList(Layer(spec, dtype, device) for _ in range(spec.num_layers))
        self.final_norm = nn.Parameter(torch.ones(spec.hidden_size, dtype=dtype, device=device))
        self.head = (
            None
            if spec.tie_embeddings
            else nn.Parameter(torch.zeros(spec.hidden_size, spec.vocab_size, dtype=dtype, device=device))
        )
        self.frequencies = inverse_frequencies(spec)

    def hidden(self, ids_T: Tensor, positions_T: Tensor, attend: Attend, *, recompute: bool = False) -> Tensor:
        """The hidden states [T, D] after the final norm.

        `positions_T` counts from 0 within each sequence. `recompute` keeps no activations inside a block for
        the backward pass but computes them again (then `attend` runs twice a layer, so it must be pure).
        """
        rotation = self._rotation(positions_T)
        x_TD = functional.embedding(ids_T, self.embedding)
        for index, layer in enumerate(cast("Iterable[Layer]", self.layers)):
            if recompute:
                x_TD = checkpoint(self._block, index, layer, x_TD, rotation, attend, use_reentrant=False)
            else:
                x_TD = self._block(index, layer, x_TD, rotation, attend)
        return rms_norm(x_TD, self.final_norm, self.spec.norm_eps)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """The logits [N, V] of chosen hidden states, in the weights' type."""
        return head(hidden_ND, self.embedding) if self.head is None else linear(hidden_ND, self.head)

    def _block(self, index: int, layer: Layer, x_TD: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        spec = self.spec
        num_rotated = spec.num_heads + spec.num_kv_heads
        h_TD = rms_norm(x_TD, layer.attn_norm, spec.norm_eps)
        qkv_T = linear(h_TD, layer.qkv)
        if layer.qkv_bias is not None:
            qkv_T = qkv_T + layer.qkv_bias
        heads = qkv_T.view(-1, num_rotated + spec.num_kv_heads, spec.head_size)
        qk_TRd, v_TKd = heads[:, :num_rotated], heads[:, num_rotated:]
        if layer.q_norm is not None and layer.k_norm is not None:
            weight_Rd = torch.cat((layer.q_norm.expand(spec.num_heads, -1), layer.k_norm.expand(spec.num_kv_heads, -1)))
            qk_TRd = rms_norm(qk_TRd, None, spec.norm_eps) * weight_Rd
        qk_TRd = rotate(qk_TRd, *rotation)
        out_THd = attend(index, qk_TRd[:, : spec.num_heads], qk_TRd[:, spec.num_heads :], v_TKd)
        out_T = out_THd.reshape(-1, spec.num_heads * spec.head_size)
        x_TD = linear(out_T, layer.o, x_TD if layer.o_bias is None else x_TD + layer.o_bias)
        h_TD = rms_norm(x_TD, layer.mlp_norm, spec.norm_eps)
        return linear(swiglu(h_TD, layer.gate_up), layer.down, x_TD)

    def _rotation(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin, both [T, 1, d] in float32; see `rotate`."""
        angles_Td = positions_T[:, None].float() * self.frequencies.to(positions_T.device)
        cos, sin = angles_Td.cos(), angles_Td.sin()
        return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]


def inverse_frequencies(spec: ModelSpec) -> Tensor:
    """The d/2 rotary frequencies in float32, after scaling (`llama3` as in transformers' and Meta's code)."""
    exponents = torch.arange(0, spec.head_size, 2, dtype=torch.int64).float() / spec.head_size
    frequencies = 1.0 / (spec.rope_theta**exponents)
    scaling = spec.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    kept_frac = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept_frac = kept_frac.clamp(0.0, 1.0)
    return frequencies * (kept_frac + (1 - kept_frac) / scaling.factor)


def initialise(decoder: Decoder, seed: int, std: float = 0.02) -> None:
    """Draw every matrix and bias from N(0, std^2) and norms near 1, the same for a seed on every machine."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * std
            parameter.copy_(1 + values if name.endswith("norm") else values)


def causal_attend(lengths: Sequence[int], device: torch.device | str = "cpu") -> Attend:
    """Exact causal attention over sequences of these lengths, packed one after the other on `device`; the reference.

    Sequences are padded on the right to one batch, where causality alone hides the padding.
    """
    num_sequences, longest, num_tokens = len(lengths), max(lengths), sum(lengths)
    rows = torch.arange(num_sequences).repeat_interleave(torch.tensor(lengths))
    slots = torch.cat([torch.arange(length) for length in lengths]) + rows * longest
    slots = slots.to(device)
    packed = num_sequences * longest == num_tokens

    def batched(x_Thd: Tensor) -> Tensor:
        if not packed:
            padded = x_Thd.new_zeros(num_sequences * longest, *x_Thd.shape[1:])
            x_Thd = padded.index_copy(0, slots, x_Thd)
        return x_Thd.view(num_sequences, longest, *x_Thd.shape[1:]).transpose(1, 2)

    def attend(layer: int, q_THd: Tensor, k_TKd: Tensor, v_TKd: Tensor) -> Tensor:
        q, k, v = batched(q_THd), batched(k_TKd), batched(v_TKd)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out_THd = out.transpose(1, 2).reshape(num_sequences * longest, *q_THd.shape[1:])
        return out_THd if packed else out_THd[slots]

    return attend
