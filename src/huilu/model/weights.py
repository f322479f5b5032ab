"""The weights of a decoder in memory, by their Hugging Face names, and the digest that names a policy version.

Called by `hf` (loading and saving) and by `train` and `assembly` (the digest of a version). It changes nothing. What
a digest is, `integrity` defines: the same from memory, from a saved folder, and after loading that again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from huilu.model import integrity
from huilu.model.decoder import Decoder
from huilu.model.layout import pieces

_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def tensors(decoder: Decoder) -> dict[str, Tensor]:
    """Every weight by its Hugging Face name and in its layout: views, detached, of the decoder's own memory."""
    parameters = dict(decoder.named_parameters())
    views = {}
    for piece in pieces(decoder.spec):
        whole = parameters[piece.parameter].detach()
        part = (whole if piece.matrix is None else whole[piece.matrix])[..., piece.start : piece.stop]
        views[piece.name] = part.t() if piece.transposed else part
    return views


def tensor_digests(by_name: Mapping[str, Tensor]) -> dict[str, str]:
    """The digest of every tensor, in parallel threads."""
    return integrity.digest_all(by_name, lambda name: _digest(by_name[name]))


def digest(decoder: Decoder) -> str:
    """The digest of the decoder's weights as they are now, in the type they have; hexadecimal."""
    return integrity.combine(tensor_digests(tensors(decoder)))


def _digest(tensor: Tensor) -> str:
    data = tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return integrity.tensor_digest(_DTYPE_NAMES[tensor.dtype], tensor.shape, data.data)
