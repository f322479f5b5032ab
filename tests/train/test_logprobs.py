"""Chunked log-probabilities against torch's own, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from huilu.train.logprobs import CHUNK_TOKENS, token_logprobs

N, D, V = CHUNK_TOKENS + 37, 8, 50


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, D, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, V, (N,), generator=generator)


def plain(hidden: Tensor, weight: Tensor, target: Tensor, temperature: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = hidden.float() @ weight.float().t()
    logp = torch.log_softmax(logits if temperature is None else logits / temperature[:, None], -1)
    return logp[torch.arange(N), target], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("tempered", [False, True])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.7])
def test_values_and_gradients_equal_log_softmax(tempered: bool, entropy_weight: float) -> None:
    hidden, weight, target = inputs()
    temperature = torch.linspace(0.5, 1.5, N) if tempered else None
    slope = torch.linspace(-1, 1, N)
    found = token_logprobs(hidden, weight.t(), target, temperature)
    expected = plain(hidden, weight, target, temperature)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    grads = [
        torch.autograd.grad((slope * logp).sum() + entropy_weight * entropy.sum(), (hidden, weight))
        for logp, entropy in (found, expected)
    ]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_tied_head_gets_its_gradient_in_the_layout_of_the_embedding() -> None:
    hidden, weight, target = inputs()
    (grad,) = torch.autograd.grad(token_logprobs(hidden, weight.t(), target)[0].sum(), weight)
    assert grad.is_contiguous()


def test_narrow_weights_give_float32_log_probabilities() -> None:
    hidden, weight, target = inputs(torch.bfloat16)
    logp, entropy = token_logprobs(hidden, weight.t(), target)
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp, plain(hidden, weight, target, None)[0], atol=0.1, rtol=0.05)
    (grad,) = torch.autograd.grad(logp.sum(), hidden)
    assert grad.dtype == torch.bfloat16
