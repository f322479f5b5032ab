"""The library's functions equal their twins in torch, for every size and on every row."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from huilu.model import kernels

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24)


@pytest.fixture(autouse=True)
def library() -> Iterator[None]:
    if kernels.target() == "torch" and shutil.which("cc") is None:
        pytest.skip("no C compiler")
    with torch.inference_mode():
        yield


def normal(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_it_is_built_where_there_is_a_compiler() -> None:
    assert kernels.usable(torch.zeros(1)), "the library is not built: run make test again"


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("sizes", [(576, 960), (64, 48), (40, 17), (1, 5), (33, 1600)])
def test_products_and_their_residual(rows: int, sizes: tuple[int, int]) -> None:
    x, weight, residual = normal(rows, sizes[0]), normal(*sizes, seed=4), normal(rows, sizes[1], seed=5)
    close(kernels.linear(x, weight), x.double() @ weight.double())
    close(kernels.linear(x, weight, residual), residual.double() + x.double() @ weight.double())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("sizes", [(64, 1536), (33, 50), (16, 780)])
def test_gate_and_up(rows: int, sizes: tuple[int, int]) -> None:
    x, weight = normal(rows, sizes[0]), normal(2, *sizes, seed=4)
    gate, up = x.double() @ weight[0].double(), x.double() @ weight[1].double()
    close(kernels.swiglu(x, weight), functional.silu(gate) * up)


def test_gates_far_from_zero() -> None:
    x = torch.tensor([[-1e4], [-100.0], [-87.5], [87.5], [1e4]])
    weight = torch.ones(2, 1, 16)
    close(kernels.swiglu(x, weight), functional.silu(x.double()) * x.double().expand(5, 16))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("sizes", [(100, 576), (7, 32)])
def test_logits_of_a_tied_embedding(rows: int, sizes: tuple[int, int]) -> None:
    x, weight = normal(rows, sizes[1]), normal(*sizes, seed=4)
    close(kernels.head(x, weight), x.double() @ weight.double().t())


@pytest.mark.parametrize("rows", [1, 9, 300])
def test_norms(rows: int) -> None:
    x, weight = normal(rows, 576), normal(576, seed=4)
    close(kernels.rms_norm(x, weight, 1e-5), functional.rms_norm(x.double(), (576,), weight.double(), 1e-5))


def test_rotation_of_some_of_the_heads() -> None:
    heads, cos, sin = normal(9, 15, 64), normal(9, 1, 64, seed=4), normal(9, 1, 64, seed=5)
    x = heads[:, :12]
    close(kernels.rotate(x, cos, sin), x.double() * cos + x.double().roll(32, -1) * sin)


def test_a_row_does_not_depend_on_the_others() -> None:
    x, weight = normal(24, 576), normal(576, 960, seed=4)
    gate_up, embedding = normal(2, 576, 96, seed=5), normal(70, 576, seed=6)
    for count in ROWS:
        torch.testing.assert_close(kernels.linear(x[:count], weight), kernels.linear(x, weight)[:count], atol=0, rtol=0)
        part, whole = kernels.swiglu(x[:count], gate_up), kernels.swiglu(x, gate_up)[:count]
        torch.testing.assert_close(part, whole, atol=0, rtol=0)
        part, whole = kernels.head(x[:count], embedding), kernels.head(x, embedding)[:count]
        torch.testing.assert_close(part, whole, atol=0, rtol=0)


def test_numbers_that_are_not_finite_are_passed_on() -> None:
    x = torch.tensor([[float("nan")] * 16, [1.0] * 16])
    assert kernels.swiglu(x, torch.ones(2, 16, 32))[0].isnan().all()
    assert kernels.linear(x, torch.ones(16, 32))[0].isnan().all()
    assert not kernels.linear(x, torch.ones(16, 32))[1].isnan().any()


def test_with_gradients_or_other_types_it_is_torch() -> None:
    assert not kernels.usable(torch.zeros(1, dtype=torch.bfloat16))
    with torch.inference_mode(False):
        assert not kernels.usable(torch.zeros(1))


def close(found: Tensor, expected: Tensor) -> None:
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found.double() / scale, expected.double() / scale, atol=3e-6, rtol=0)
