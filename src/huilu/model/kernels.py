"""The decoder's steps where torch is slow at them: few rows, float32, on a CPU, without gradients.

Called by `decoder` and by the engine's attention. Each function is torch's, and the library's (`kernels.c`, built when
the package is installed, where there is a C compiler) when that applies: twins, held against each other by tests. On a
GPU, in training, for many rows or without the library everything is torch. It must not know about caches' bookkeeping
or about models.

Shapes: T rows; I and O a matrix's two sides; F inner; R heads; H query heads, K key/value heads; d head size;
S slots; B decode rows of N blocks each.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MOST_ROWS = 24
"""Up to here the library's products are faster than torch's: measured 1.9 times at 8 rows, as fast at 24."""
_MOST_BLOCK = 256  # tokens of a block that the library's attention has room for
_LANES = 16  # numbers it takes at a time
_VERSION = 1


def _load() -> ctypes.CDLL | None:
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        library = ctypes.CDLL(str(path))
        if library.huilu_kernels_version() == _VERSION:
            return _declared(library)
    return None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    library.huilu_kernels_target.restype = ctypes.c_char_p
    for name, arguments in {
        "linear": (pointer, size, size, pointer, size, pointer, pointer),
        "swiglu": (pointer, size, size, pointer, size, pointer),
        "head": (pointer, size, size, pointer, size, pointer),
        "norm": (pointer, size, size, pointer, ctypes.c_float, pointer),
        "rotate": (pointer, size, size, size, size, pointer, pointer, pointer),
        "attend": (pointer, size, size, size, size, pointer, pointer, pointer, size, pointer, size, pointer),
    }.items():
        function = library[f"huilu_{name}"]
        function.argtypes, function.restype = arguments, None
        setattr(library, name, function)
    return library


_library = _load()
_call: Any = _library


def target() -> str:
    """What runs: the library's instruction set, or `torch`."""
    return "torch" if _library is None else _library.huilu_kernels_target().decode()


def usable(x: Tensor) -> bool:
    """Whether the library applies to tensors like this one, now."""
    return (
        _library is not None
        and torch.is_inference_mode_enabled()
        and x.dtype == torch.float32
        and x.device.type == "cpu"
    )


def can_attend(k_SKd: Tensor, block_size: int) -> bool:
    """Whether `attend` applies to such a cache, now."""
    return usable(k_SKd) and k_SKd.shape[2] % _LANES == 0 and block_size <= _MOST_BLOCK


def linear(x_TI: Tensor, weight_IO: Tensor, residual_TO: Tensor | None = None) -> Tensor:
    """x @ weight, plus the residual."""
    if not (_few(x_TI) and weight_IO.is_contiguous()):
        return x_TI @ weight_IO if residual_TO is None else torch.addmm(residual_TO, x_TI, weight_IO)
    x_TI = x_TI.contiguous()
    residual_TO = None if residual_TO is None else residual_TO.contiguous()
    out_TO = x_TI.new_empty(len(x_TI), weight_IO.shape[1])
    _call.linear(
        x_TI.data_ptr(),
        *x_TI.shape,
        weight_IO.data_ptr(),
        weight_IO.shape[1],
        None if residual_TO is None else residual_TO.data_ptr(),
        out_TO.data_ptr(),
    )
    return out_TO


def swiglu(x_TI: Tensor, weight_2IF: Tensor) -> Tensor:
    """silu(x @ weight[0]) * (x @ weight[1]) (2002.05202)."""
    if not (_few(x_TI) and weight_2IF.is_contiguous()):
        gate_TF, up_TF = torch.bmm(x_TI.expand(2, -1, -1), weight_2IF).unbind(0)
        return functional.silu(gate_TF) * up_TF
    x_TI = x_TI.contiguous()
    out_TF = x_TI.new_empty(len(x_TI), weight_2IF.shape[2])
    _call.swiglu(x_TI.data_ptr(), *x_TI.shape, weight_2IF.data_ptr(), weight_2IF.shape[2], out_TF.data_ptr())
    return out_TF


def head(x_TI: Tensor, weight_OI: Tensor) -> Tensor:
    """x @ weight transposed: the logits of a tied embedding."""
    if not (_few(x_TI) and weight_OI.is_contiguous() and x_TI.shape[1] % _LANES == 0):
        return x_TI @ weight_OI.t()
    x_TI = x_TI.contiguous()
    out_TO = x_TI.new_empty(len(x_TI), len(weight_OI))
    _call.head(x_TI.data_ptr(), *x_TI.shape, weight_OI.data_ptr(), len(weight_OI), out_TO.data_ptr())
    return out_TO


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (1910.07467), computed in float32."""
    size = x.shape[-1]
    if weight is None or not (usable(x) and x.is_contiguous()):
        return functional.rms_norm(x, (size,), weight, eps)
    out = torch.empty_like(x)
    _call.norm(x.data_ptr(), x.numel() // size, size, weight.data_ptr(), eps, out.data_ptr())
    return out


def rotate(x_TRd: Tensor, cos_T1d: Tensor, signed_sin_T1d: Tensor) -> Tensor:
    """Rotary embedding (2104.09864) in the half-split layout of transformers, computed in float32.

    `x * cos + (-x2, x1) * sin` is written with the sign in the sine, so that swapping halves is a plain roll.
    """
    num_rows, num_heads, size = x_TRd.shape
    if usable(x_TRd) and x_TRd.stride()[1:] == (size, 1):
        out_TRd = x_TRd.new_empty(x_TRd.shape)
        tables = cos_T1d.data_ptr(), signed_sin_T1d.data_ptr()
        _call.rotate(x_TRd.data_ptr(), num_rows, x_TRd.stride(0), num_heads, size, *tables, out_TRd.data_ptr())
        return out_TRd
    x32 = x_TRd.float()
    swapped = x32.roll(size // 2, -1)
    return torch.addcmul(x32 * cos_T1d, swapped, signed_sin_T1d).to(x_TRd.dtype)


def attend(
    q_BHd: Tensor, k_SKd: Tensor, v_SKd: Tensor, blocks_BN: Tensor, lengths_B: Tensor, block_size: int
) -> Tensor:
    """Attention of one query a row over the first `lengths_B` tokens of its blocks, [B, H, d], scaled by 1/sqrt(d).

    The library's alone: ask `can_attend` first. The engine's attention by gathered pages is its twin.
    """
    q_BHd = q_BHd.contiguous()
    num_rows, num_heads, size = q_BHd.shape
    num_kv_heads = k_SKd.shape[1]
    out_BHd = torch.empty_like(q_BHd)
    _call.attend(
        q_BHd.data_ptr(),
        num_rows,
        num_kv_heads,
        num_heads // num_kv_heads,
        size,
        k_SKd.data_ptr(),
        v_SKd.data_ptr(),
        blocks_BN.data_ptr(),
        blocks_BN.shape[1],
        lengths_B.data_ptr(),
        block_size,
        out_BHd.data_ptr(),
    )
    return out_BHd


def _few(x_TI: Tensor) -> bool:
    return len(x_TI) <= MOST_ROWS and usable(x_TI)
