"""The KV cache's pages, and attention over them for one iteration's tokens.

Called by `engine`: it makes one `PagedAttention` an iteration and hands it to the decoder as its `attend`. It
decides nothing about who runs or which blocks are whose.

Decode rows read their pages in place by `model.kernels` where it applies. Elsewhere pages are gathered: a row's own
blocks, and once for all the blocks that rows of one family share (a group's prompt); the two partial results are merged
by their log-sum-exps, which is exact. On a CPU few rows are gathered at a time, so that the scratch stays in the cache.

Shapes: T tokens of the iteration; B decode rows, of C in one call; L keys of a call; G rows of a family; F families;
H query heads; K key/value heads; r = H / K; d head size; S slots (block * block_size + offset); g queries that read
the same keys: r, or G * r for a family.
"""

from __future__ import annotations

import itertools
import math
import mmap
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from huilu.engine.blocks import Copy
from huilu.model import kernels
from huilu.model.spec import ModelSpec

_CPU_ROWS = 16
"""Most rows gathered at once on a CPU; measured best of 4 to 64 at 50 to 300 keys a row."""
_CALL_TOKENS = 256
"""What one more call costs, in keys that could be read instead: padding up to it is cheaper than another call."""
_MERGE_TOKENS = 1024
"""Keys a layer that must be saved before families are worth their merge."""


class DecodeRow(NamedTuple):
    """One sequence's next token. Rows of one `family` may share leading blocks. `num_tokens` includes the new one."""

    family: str
    blocks: list[int]
    num_tokens: int


class PrefillRow(NamedTuple):
    """Tokens `start` to `end` (exclusive) of one sequence, all of whose blocks are there."""

    blocks: list[int]
    start: int
    end: int


class KvCache:
    """Keys and values of every layer, in pages of `block_size` tokens. Memory is touched only as pages are written."""

    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size, self.num_blocks = block_size, num_blocks
        self.dtype, self.device = dtype, device
        token = (spec.num_kv_heads, spec.head_size)
        pages = _lazy_zeros((spec.num_layers, 2, num_blocks, block_size, *token), dtype, device)
        self._pages = pages
        # The same memory by slot and by block, keys and values of each layer: a view costs as much as a small product.
        self._slots = [(layer[0].flatten(0, 1), layer[1].flatten(0, 1)) for layer in pages]
        self._blocks = [tuple(layer.flatten(2)) for layer in pages]
        self._scratch = torch.empty(0, dtype=dtype, device=device)
        self._token = token

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy whole blocks, all at once (a target may be another copy's source)."""
        sources = torch.tensor([copy.source for copy in copies], device=self.device)
        targets = torch.tensor([copy.target for copy in copies], device=self.device)
        self._pages[:, :, targets] = self._pages[:, :, sources]

    def write(self, layer: int, slots_T: Tensor, k_TKd: Tensor, v_TKd: Tensor) -> None:
        """Store the keys and values of T tokens in their slots."""
        k_SKd, v_SKd = self._slots[layer]
        k_SKd.index_copy_(0, slots_T, k_TKd)
        v_SKd.index_copy_(0, slots_T, v_TKd)

    def slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer, [S, K, d] each, in place."""
        return self._slots[layer]

    def read(self, layer: int, blocks_CN: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of C rows of N blocks, [C, K, L, d] each. Valid until the next `read`."""
        k_blocks, v_blocks = self._blocks[layer]
        shape = (2, blocks_CN.numel(), k_blocks.shape[1])
        size = math.prod(shape)
        if self._scratch.numel() < size:
            self._scratch = self._scratch.new_empty(size)
        found = self._scratch[:size].view(shape)
        blocks = blocks_CN.view(-1)
        torch.index_select(k_blocks, 0, blocks, out=found[0])
        torch.index_select(v_blocks, 0, blocks, out=found[1])
        k_CKLd, v_CKLd = found.view(2, len(blocks_CN), -1, *self._token).transpose(2, 3)
        return k_CKLd, v_CKLd


class _Rows(NamedTuple):
    """Some rows of one call: their blocks, padded, and what to add to the scores (-inf where there is no token)."""

    rows: slice
    blocks_CN: Tensor
    mask_C11L: Tensor


class _Families(NamedTuple):
    """Families of one call: the decode rows of each, padded; M of the F * G places are real, those of `rows_M`."""

    rows_FG: Tensor
    real_M: Tensor
    rows_M: Tensor
    blocks_FN: Tensor
    mask_F11L: Tensor


class _InPlace(NamedTuple):
    """All decode rows, read where they lie: their blocks, padded, and their lengths in tokens."""

    blocks_BN: Tensor
    lengths_B: Tensor


class _Prefill(NamedTuple):
    """One prefill row: its tokens of the iteration; the blocks of all its tokens, unless it starts at 0."""

    tokens: slice
    num_keys: int
    blocks_1N: Tensor | None
    mask_TL: Tensor | None


class PagedAttention:
    """The `Attend` of one iteration: decode rows first, in `order`, then the tokens of each prefill row."""

    def __init__(self, cache: KvCache, decodes: Sequence[DecodeRow], prefills: Sequence[PrefillRow]) -> None:
        self._cache = cache
        self._num_decodes = len(decodes)
        self._in_place: _InPlace | None = None
        self.order = list(range(len(decodes)))
        """Row `i` of the iteration is the caller's decode row `order[i]`."""
        if decodes and kernels.can_attend(cache.slots(0)[0], cache.block_size):
            self._in_place = _in_place(decodes)
            ordered = list(decodes)
        else:
            shared = _shared_blocks(decodes, cache.block_size)
            # Rows with most blocks of their own first: those of similar length are gathered together.
            self.order.sort(key=lambda row: shared[decodes[row].family] - len(decodes[row].blocks))
            ordered = [decodes[row] for row in self.order]
            self._own = self._own_calls(ordered, shared)
            self._families = self._family_calls(ordered, shared)
        self._prefills = self._prefill_calls(prefills)
        slots = [self._slot(row.blocks, row.num_tokens - 1) for row in ordered]
        for row in prefills:
            slots += [self._slot(row.blocks, place) for place in range(row.start, row.end)]
        self._slots_T = torch.tensor(slots, device=cache.device)

    def __call__(self, layer: int, q_THd: Tensor, k_TKd: Tensor, v_TKd: Tensor) -> Tensor:
        self._cache.write(layer, self._slots_T, k_TKd, v_TKd)
        rows = self._in_place
        if rows is not None and not self._prefills:
            return kernels.attend(q_THd, *self._cache.slots(layer), *rows, self._cache.block_size)
        out_THd = q_THd.new_empty(q_THd.shape)
        if rows is not None:
            q_BHd = q_THd[: self._num_decodes]
            out_THd[: self._num_decodes] = kernels.attend(
                q_BHd, *self._cache.slots(layer), *rows, self._cache.block_size
            )
        elif self._num_decodes:
            shape = (self._num_decodes, k_TKd.shape[1], -1, k_TKd.shape[2])
            self._decode(layer, q_THd[: self._num_decodes].view(shape), out_THd[: self._num_decodes].view(shape))
        for call in self._prefills:
            out_THd[call.tokens] = self._prefill(layer, call, q_THd, k_TKd, v_TKd)
        return out_THd

    def _decode(self, layer: int, q_BKrd: Tensor, out_BKrd: Tensor) -> None:
        lse_BKr = out_BKrd.new_empty(out_BKrd.shape[:3], dtype=torch.float32)
        for own in self._own:
            keys_values = self._cache.read(layer, own.blocks_CN)
            out_BKrd[own.rows], lse_BKr[own.rows] = _attend(q_BKrd[own.rows], *keys_values, own.mask_C11L)
        for call in self._families:
            keys_values = self._cache.read(layer, call.blocks_FN)
            q_FKgd = q_BKrd[call.rows_FG].transpose(1, 2).flatten(2, 3)
            out_FKgd, lse_FKg = _attend(q_FKgd, *keys_values, call.mask_F11L)
            by_row = (*out_FKgd.shape[:2], call.rows_FG.shape[1], q_BKrd.shape[2])
            out_MKrd = out_FKgd.view(*by_row, -1).transpose(1, 2).flatten(0, 1)[call.real_M]
            lse_MKr = lse_FKg.view(by_row).transpose(1, 2).flatten(0, 1)[call.real_M]
            # Softmax over two sets of keys is the mean of both results, weighted by their sums of exponentials.
            weight_MKr1 = torch.sigmoid(lse_MKr - lse_BKr[call.rows_M])[..., None].to(out_BKrd.dtype)
            out_BKrd[call.rows_M] = torch.lerp(out_BKrd[call.rows_M], out_MKrd, weight_MKr1)

    def _prefill(self, layer: int, call: _Prefill, q_THd: Tensor, k_TKd: Tensor, v_TKd: Tensor) -> Tensor:
        q_1HTd = q_THd[call.tokens].transpose(0, 1)[None]
        if call.blocks_1N is None:
            k_1KLd, v_1KLd = k_TKd[call.tokens].transpose(0, 1)[None], v_TKd[call.tokens].transpose(0, 1)[None]
        else:
            k_1KLd, v_1KLd = (x[:, :, : call.num_keys] for x in self._cache.read(layer, call.blocks_1N))
        out_1HTd = functional.scaled_dot_product_attention(
            q_1HTd, k_1KLd, v_1KLd, attn_mask=call.mask_TL, is_causal=call.mask_TL is None, enable_gqa=True
        )
        return out_1HTd[0].transpose(0, 1)

    def _own_calls(self, rows: Sequence[DecodeRow], shared: dict[str, int]) -> list[_Rows]:
        tables = [row.blocks[shared[row.family] :] for row in rows]
        lengths = [row.num_tokens - shared[row.family] * self._cache.block_size for row in rows]
        return [_Rows(part, *self._pad(tables[part], lengths[part])) for part in self._split(tables)]

    def _family_calls(self, rows: Sequence[DecodeRow], shared: dict[str, int]) -> list[_Families]:
        members = defaultdict(list)
        for place, row in enumerate(rows):
            if shared[row.family]:
                members[row.family].append(place)
        families = sorted(members.items(), key=lambda family: -shared[family[0]])
        tables = [rows[places[0]].blocks[: shared[name]] for name, places in families]
        calls = []
        for part in self._split(tables):
            blocks_FN, mask_F11L = self._pad(tables[part], [len(t) * self._cache.block_size for t in tables[part]])
            widest = max(len(places) for _, places in families[part])
            padded = [places + places[-1:] * (widest - len(places)) for _, places in families[part]]
            real = [i * widest + j for i, (_, places) in enumerate(families[part]) for j in range(len(places))]
            device = self._cache.device
            rows_FG, real_M = torch.tensor(padded, device=device), torch.tensor(real, device=device)
            calls.append(_Families(rows_FG, real_M, rows_FG.flatten()[real_M], blocks_FN, mask_F11L))
        return calls

    def _prefill_calls(self, rows: Sequence[PrefillRow]) -> list[_Prefill]:
        calls, first = [], self._num_decodes
        for row in rows:
            tokens = slice(first, first + row.end - row.start)
            first = tokens.stop
            if row.start == 0:
                calls.append(_Prefill(tokens, row.end, None, None))
                continue
            num_blocks = -(-row.end // self._cache.block_size)
            places = torch.arange(row.end, device=self._cache.device)
            mask_TL = places <= places[row.start :, None]
            blocks_1N = torch.tensor([row.blocks[:num_blocks]], device=self._cache.device)
            calls.append(_Prefill(tokens, row.end, blocks_1N, mask_TL))
        return calls

    def _split(self, tables: Sequence[Sequence[int]]) -> list[slice]:
        """Cut tables, the longest first, into runs that are worth one call each."""
        most = _CPU_ROWS if self._cache.device.type == "cpu" else len(tables)
        cuts, padding = [0], 0
        for place, table in enumerate(tables):
            padding += (len(tables[cuts[-1]]) - len(table)) * self._cache.block_size
            if place - cuts[-1] == most or padding > _CALL_TOKENS:
                cuts.append(place)
                padding = 0
        return [slice(start, end) for start, end in itertools.pairwise([*cuts, len(tables)]) if end > start]

    def _pad(self, tables: Sequence[Sequence[int]], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The tables as one tensor [C, N], padded with a block that each reads anyway, and the mask [C, 1, 1, L]."""
        longest = max(len(table) for table in tables)
        padded = [[*table, *[table[-1]] * (longest - len(table))] for table in tables]
        places_L = torch.arange(longest * self._cache.block_size, device=self._cache.device)
        lengths_C1 = torch.tensor(lengths, device=self._cache.device)[:, None]
        mask_CL = torch.zeros(len(tables), len(places_L), dtype=self._cache.dtype, device=self._cache.device)
        mask_CL.masked_fill_(places_L >= lengths_C1, -torch.inf)
        return torch.tensor(padded, device=self._cache.device), mask_CL[:, None, None]

    def _slot(self, blocks: Sequence[int], place: int) -> int:
        block, offset = divmod(place, self._cache.block_size)
        return blocks[block] * self._cache.block_size + offset


def _in_place(rows: Sequence[DecodeRow]) -> _InPlace:
    longest = max(len(row.blocks) for row in rows)
    padded = [row.blocks + [0] * (longest - len(row.blocks)) for row in rows]
    return _InPlace(torch.tensor(padded), torch.tensor([row.num_tokens for row in rows]))


def _shared_blocks(rows: Sequence[DecodeRow], block_size: int) -> dict[str, int]:
    """How many leading blocks all rows of each family share; 0 for all where reading them once would save little."""
    members = defaultdict(list)
    for row in rows:
        members[row.family].append(row.blocks)
    shared = {family: _common_prefix(tables) if len(tables) > 1 else 0 for family, tables in members.items()}
    saved = sum((len(members[family]) - 1) * num_blocks * block_size for family, num_blocks in shared.items())
    return shared if saved >= _MERGE_TOKENS else dict.fromkeys(shared, 0)


def _common_prefix(tables: Sequence[list[int]]) -> int:
    for place, blocks in enumerate(zip(*tables, strict=False)):
        if any(block != blocks[0] for block in blocks):
            return place
    return min(len(table) for table in tables)


def _attend(q_CKgd: Tensor, k_CKLd: Tensor, v_CKLd: Tensor, mask_C11L: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of its scaled scores, [C, K, g, d] and [C, K, g] (float32)."""
    if q_CKgd.device.type == "cpu":
        # torch's public attention does not return log-sum-exps; the operator under it on a CPU does.
        out_CKgd, lse_CKg = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q_CKgd, k_CKLd, v_CKLd, attn_mask=mask_C11L
        )
        return out_CKgd, lse_CKg
    return attend_by_products(q_CKgd, k_CKLd, v_CKLd, mask_C11L)


def attend_by_products(q_CKgd: Tensor, k_CKLd: Tensor, v_CKLd: Tensor, mask_C11L: Tensor) -> tuple[Tensor, Tensor]:
    """The same by two matrix products, for devices without such an operator. Scores are in float32."""
    scores_CKgL = (q_CKgd @ k_CKLd.transpose(2, 3)).float() / math.sqrt(q_CKgd.shape[-1]) + mask_C11L
    lse_CKg = scores_CKgL.logsumexp(-1)
    return (scores_CKgL - lse_CKg[..., None]).exp().to(v_CKLd.dtype) @ v_CKLd, lse_CKg


def _lazy_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take memory only as they are written, on a CPU (torch's own zeros are written at once).

    Zeros, because masked attention reads a page's unwritten end, where anything but finite numbers would spread.
    """
    if device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)
