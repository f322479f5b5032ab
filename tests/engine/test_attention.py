"""Attention over pages equals plain attention over the same keys and values."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from huilu.engine import attention
from huilu.engine.attention import DecodeRow, KvCache, PagedAttention, PrefillRow, attend_by_products
from huilu.engine.blocks import Copy
from huilu.model import kernels
from huilu.model.spec import ModelSpec

torch.set_num_threads(1)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def spec(num_heads: int = 4, num_kv_heads: int = 2, head_size: int = 8) -> ModelSpec:
    return ModelSpec(
        family="llama",
        vocab_size=11,
        num_layers=2,
        hidden_size=num_heads * head_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        intermediate_size=8,
        rope_theta=1e4,
        norm_eps=1e-5,
        max_positions=1024,
    )


class Sequences:
    """Sequences with random keys and values, stored in random blocks of a cache (layer 1)."""

    def __init__(self, sizes: ModelSpec, block_size: int, device: str = "cpu", dtype: torch.dtype = torch.float32):
        self.sizes, self.block_size = sizes, block_size
        self.device, self.dtype = device, dtype
        self.random = random.Random(5)
        self.generator = torch.Generator().manual_seed(5)
        self.cache = KvCache(sizes, 400, block_size, dtype, torch.device(device))
        self.free = self.random.sample(range(400), 400)
        self.blocks: list[list[int]] = []
        self.keys_values: list[tuple[Tensor, Tensor]] = []

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device, self.dtype)

    def add(self, num_tokens: int, share_with: int | None = None, num_shared: int = 0) -> int:
        """A sequence of `num_tokens`; the first `num_shared` blocks are those of another."""
        size, kv = self.block_size, (self.sizes.num_kv_heads, self.sizes.head_size)
        k_LKd, v_LKd = self.normal(num_tokens, *kv), self.normal(num_tokens, *kv)
        blocks: list[int] = []
        if share_with is not None:
            blocks = self.blocks[share_with][:num_shared]
            k_LKd[: num_shared * size] = self.keys_values[share_with][0][: num_shared * size]
            v_LKd[: num_shared * size] = self.keys_values[share_with][1][: num_shared * size]
        while len(blocks) * size < num_tokens:
            blocks.append(self.free.pop())
        slots = torch.tensor([blocks[p // size] * size + p % size for p in range(num_tokens)], device=self.device)
        self.cache.write(1, slots, k_LKd, v_LKd)
        self.blocks.append(blocks)
        self.keys_values.append((k_LKd, v_LKd))
        return len(self.blocks) - 1

    def expected(self, sequence: int, q_THd: Tensor, start: int) -> Tensor:
        """Plain causal attention of tokens that begin at position `start`, in float64."""
        k_LKd, v_LKd = (x.double() for x in self.keys_values[sequence])
        end = start + len(q_THd)
        mask_TL = torch.ones(len(q_THd), end, device=self.device).tril(start).bool()
        out = functional.scaled_dot_product_attention(
            q_THd.double().transpose(0, 1)[None],
            k_LKd[:end].transpose(0, 1)[None],
            v_LKd[:end].transpose(0, 1)[None],
            attn_mask=mask_TL,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)


def check(
    world: Sequences, families: dict[str, list[int]], prefills: list[tuple[int, int]], tolerance: float = 1e-5
) -> None:
    """One iteration in which the last token of each member decodes, and sequences are prefilled from a start."""
    decodes = [
        (place, DecodeRow(name, world.blocks[place], len(world.keys_values[place][0])))
        for name, places in families.items()
        for place in places
    ]
    rows = [PrefillRow(world.blocks[p], start, len(world.keys_values[p][0])) for p, start in prefills]
    attend = PagedAttention(world.cache, [row for _, row in decodes], rows)
    asked = [(decodes[row][0], decodes[row][1].num_tokens - 1) for row in attend.order] + prefills
    k_TKd = torch.cat([world.keys_values[place][0][start:] for place, start in asked])
    v_TKd = torch.cat([world.keys_values[place][1][start:] for place, start in asked])
    q_THd = world.normal(len(k_TKd), world.sizes.num_heads, world.sizes.head_size)
    out_THd = attend(1, q_THd, k_TKd, v_TKd)
    first = 0
    for place, start in asked:
        tokens = slice(first, first + len(world.keys_values[place][0]) - start)
        first = tokens.stop
        expected = world.expected(place, q_THd[tokens], start)
        torch.testing.assert_close(out_THd[tokens].double(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_size", [1, 5, 16])
@pytest.mark.parametrize("heads", [(4, 2), (4, 1), (4, 4), (9, 3)])
def test_decode_rows_of_any_length_read_their_own_blocks(heads: tuple[int, int], block_size: int, device: str) -> None:
    world = Sequences(spec(*heads), block_size, device)
    for num_tokens in (1, 2, 17, 33, 90, 5, 64):
        world.add(num_tokens)
    check(world, {f"r{place}": [place] for place in range(7)}, [])


@pytest.mark.parametrize("block_size", [1, 5, 16, 256])
@pytest.mark.parametrize("heads", [(4, 2, 16), (4, 1, 32), (10, 2, 16), (9, 3, 64), (6, 1, 16)])
def test_decode_rows_read_their_pages_in_place(heads: tuple[int, int, int], block_size: int) -> None:
    world = Sequences(spec(*heads), block_size)
    for num_tokens in (1, 2, 17, 33, 90, 5, 64):
        world.add(num_tokens)
    shared = world.add(3 * block_size + 2)
    members = [shared, world.add(3 * block_size + 1, shared, 3)]
    with torch.inference_mode():
        assert kernels.target() == "torch" or kernels.can_attend(world.cache.slots(1)[0], block_size)
        check(world, {f"r{place}": [place] for place in range(7)} | {"group": members}, [(3, 20), (4, 0)])
        check(world, {f"r{place}": [place] for place in range(7)} | {"group": members}, [])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_size", [5, 16])
def test_families_that_share_blocks_are_merged_exactly(
    block_size: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_MERGE_TOKENS", 1)
    world = Sequences(spec(), block_size, device)
    families: dict[str, list[int]] = {"alone": [world.add(40)]}
    for name, members, shared in (("many", 5, 4), ("two", 2, 1), ("apart", 3, 0), ("long", 3, 6)):
        first = world.add(shared * block_size + 3)
        others = [world.add(shared * block_size + 1 + 4 * i, first, shared) for i in range(members - 1)]
        families[name] = [first, *others]
    check(world, families, [])


def test_shared_blocks_are_read_once_only_where_that_saves_much() -> None:
    world = Sequences(spec(), 16)
    first = world.add(16 * 20 + 1)
    rows = [world.add(16 * 20 + 1, first, 20) for _ in range(5)]
    few = [DecodeRow("r", world.blocks[place], 321) for place in rows[:3]]
    many = [DecodeRow("r", world.blocks[place], 321) for place in rows]
    assert PagedAttention(world.cache, few, [])._families == []
    assert len(PagedAttention(world.cache, many, [])._families) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_prefill_continues_after_what_is_stored_beside_decoding_rows(device: str) -> None:
    world = Sequences(spec(), 4, device)
    for num_tokens in (9, 30, 12, 8, 3):
        world.add(num_tokens)
    check(world, {"a": [0], "b": [4]}, [(1, 12), (2, 0), (3, 7)])


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_is_right_within_its_precision(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_MERGE_TOKENS", 1)
    world = Sequences(spec(), 4, device, torch.bfloat16)
    first = world.add(30)
    check(world, {"a": [first, world.add(29, first, 5)]}, [(world.add(14), 4)], tolerance=2e-2)


def test_many_rows_are_cut_into_calls_that_waste_little() -> None:
    world = Sequences(spec(), 16)
    lengths = [16] * 20 + [160] * 3 + [1000]
    rows = [DecodeRow(str(i), list(range(-(-n // 16))), n) for i, n in enumerate(lengths)]
    calls = PagedAttention(world.cache, rows, [])._own
    sizes = [call.blocks_CN.shape for call in calls]
    assert sum(size[0] for size in sizes) == len(lengths)
    assert sum(size[0] * size[1] * 16 for size in sizes) < 1.25 * sum(lengths)
    assert all(before.rows.stop == after.rows.start for before, after in itertools.pairwise(calls))


def test_attention_by_products_equals_the_operator_of_the_cpu() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(3, 2, n, 8, generator=generator) for n in (4, 11, 11))
    mask_C11L = torch.zeros(3, 1, 1, 11).masked_fill(
        torch.arange(11) >= torch.tensor([[11], [1], [6]])[:, None, None], -torch.inf
    )
    for ours, theirs in zip(attend_by_products(q, k, v, mask_C11L), attention._attend(q, k, v, mask_C11L), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_copies_happen_all_at_once() -> None:
    world = Sequences(spec(), 4)
    first, second = world.blocks[world.add(4)][0], world.blocks[world.add(4)][0]
    target = world.free.pop()
    world.cache.copy([Copy(first, second), Copy(second, target)])
    blocks = torch.tensor([[second], [target]])
    keys = world.cache.read(1, blocks)[0]
    for row, place in enumerate((0, 1)):
        torch.testing.assert_close(keys[row].transpose(0, 1), world.keys_values[place][0])
