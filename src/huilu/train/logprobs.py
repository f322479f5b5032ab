"""Log-probabilities and entropies of chosen tokens, without ever holding the logits of all of them.

Called by the learner. The logits of a chunk of tokens are computed, used and dropped; the backward pass computes them
again (one more product with the head) and accumulates straight into one gradient buffer.

Shapes: N tokens; D hidden; V vocabulary; n tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_TOKENS = 256
"""Tokens whose logits exist at once: 50 MB of float32 with a vocabulary of 49,152."""


def token_logprobs(
    hidden_ND: Tensor, head_DV: Tensor, target_N: Tensor, temperature_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """log p(target) and the entropy of p in nats, both [N] in float32, where p = softmax(hidden @ head / temperature).

    Differentiable in `hidden_ND` and `head_DV`. Temperature None is 1.
    """
    logp_N, entropy_N = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head_DV, target_N, temperature_N
    )
    return logp_N, entropy_N


class _TokenLogprobs(torch.autograd.Function):
    """With p the softmax of the logits z = h W / t, lse their log-sum-exp and H the entropy:

    d logp / dz = onehot(target) - p;  d H / dz = -p (z - lse + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, head_DV: Tensor, target_N: Tensor, temperature_N: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        logp_N = torch.empty(len(target_N), dtype=torch.float32, device=hidden_ND.device)
        lse_N, entropy_N = torch.empty_like(logp_N), torch.empty_like(logp_N)
        for part in _chunks(len(target_N)):
            z_nV = _logits(hidden_ND, head_DV, temperature_N, part)
            lse_n = z_nV.logsumexp(-1)
            lse_N[part] = lse_n
            logp_N[part] = z_nV.gather(1, target_N[part, None])[:, 0] - lse_n
            z_nV -= lse_n[:, None]
            entropy_N[part] = -torch.linalg.vecdot(z_nV.exp(), z_nV)
        ctx.save_for_backward(hidden_ND, head_DV, target_N, temperature_N, lse_N, entropy_N)
        return logp_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlogp_N: Tensor, dentropy_N: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden_ND, head_DV, target_N, temperature_N, lse_N, entropy_N = ctx.saved_tensors
        dhidden_ND = torch.empty_like(hidden_ND)
        # zeros_like keeps the layout: where the head is the embedding transposed, so is its gradient.
        dhead_DV = torch.zeros_like(head_DV)
        has_entropy = bool(dentropy_N.any())
        for part in _chunks(len(target_N)):
            z_nV = _logits(hidden_ND, head_DV, temperature_N, part)
            z_nV -= lse_N[part, None]
            if has_entropy:
                slope_nV = -(z_nV + entropy_N[part, None]) * dentropy_N[part, None] - dlogp_N[part, None]
                dz_nV = z_nV.exp_().mul_(slope_nV)
            else:
                dz_nV = z_nV.exp_().mul_(-dlogp_N[part, None])
            dz_nV.scatter_add_(1, target_N[part, None], dlogp_N[part, None])
            if temperature_N is not None:
                dz_nV /= temperature_N[part, None]
            dz_nV = dz_nV.to(hidden_ND.dtype)
            dhidden_ND[part] = dz_nV @ head_DV.t()
            dhead_DV.t().addmm_(dz_nV.t(), hidden_ND[part])
        return dhidden_ND, dhead_DV, None, None


def _chunks(num_tokens: int) -> Iterator[slice]:
    for start in range(0, num_tokens, CHUNK_TOKENS):
        yield slice(start, min(start + CHUNK_TOKENS, num_tokens))


def _logits(hidden_ND: Tensor, head_DV: Tensor, temperature_N: Tensor | None, part: slice) -> Tensor:
    z_nV = (hidden_ND[part] @ head_DV).float()
    return z_nV if temperature_N is None else z_nV.div_(temperature_N[part, None])
