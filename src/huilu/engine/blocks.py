"""The block pool: which KV block belongs to whom, which hold a prefix worth finding again, and which are free.

Called by `scheduler`, which asks for room before every iteration, and by `engine` for its accounting. It deals
in block numbers only: no tensors, no clock, no knowledge of requests. A block is in exactly one state:

    free --reserve--> held (by one or more tables) --close--> free, or idle when it is published
    idle (published, held by nobody) --open--> held again
    idle --reserve--> held by somebody else, once no free block is left: least recently used goes first

A published block can be found by its key, a SHA-256 chain over (namespace, token ids): equal keys mean equal
prefixes under equal weights. Tokens are compared on a hit all the same. A new namespace makes older blocks
unreachable at once; they are the first to be taken again, before a block that was never used.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from huilu.errors import Invariant


class BlockTable:
    """The blocks that hold one sequence's KV, in order; `num_tokens` of them are stored (or will be, this iteration).

    `keys` are the chain keys of its leading full blocks as far as they are known. `epoch` counts the changes of
    namespace before it began: KV that was computed across a change is never published.
    """

    __slots__ = ("blocks", "epoch", "keys", "num_tokens")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.blocks: list[int] = []
        self.keys: list[bytes] = []
        self.num_tokens = 0


class Copy(NamedTuple):
    """The KV of block `source` must be copied to block `target` before the iteration writes."""

    source: int
    target: int


class _Published(NamedTuple):
    key: bytes
    token_ids: tuple[int, ...]
    namespace: str


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, counted references, and an index of published prefixes."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool = True) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.namespace = ""
        self._epoch = 0
        self._prefix_cache = prefix_cache
        self._references = [0] * num_blocks
        # Low numbers first and recently freed ones before untouched ones: memory is touched only as it is needed.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._published: list[_Published | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}

    @property
    def num_available(self) -> int:
        """Blocks that can be had now: free and idle ones."""
        return len(self._free) + len(self._idle)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def set_namespace(self, namespace: str) -> None:
        """From now on only KV computed under `namespace` is published or found. Costs the same whatever is cached."""
        if namespace != self.namespace:
            self.namespace = namespace
            self._epoch += 1

    def open(self, token_ids: Sequence[int]) -> BlockTable:
        """A table that begins with the longest published prefix of the tokens, short of the last token.

        The last token is always left to compute: its hidden state gives the next token's distribution.
        """
        table = BlockTable(self._epoch)
        if not self._prefix_cache:
            return table
        for start in range(0, len(token_ids) - self.block_size, self.block_size):
            ids = tuple(token_ids[start : start + self.block_size])
            key = self._key(table, ids)
            block = self._index.get(key)
            if block is None or not self._holds(block, ids):
                break
            self._hold(block)
            table.blocks.append(block)
            table.keys.append(key)
        table.num_tokens = len(table.blocks) * self.block_size
        return table

    def num_missing(self, table: BlockTable, num_tokens: int) -> int:
        """Blocks that `reserve` would take from the pool."""
        num_new = -(-num_tokens // self.block_size) - len(table.blocks)
        return max(num_new, 0) + self._must_copy(table, num_tokens)

    def reserve(self, table: BlockTable, num_tokens: int) -> Copy | None:
        """Give the table blocks of its own to write its tokens up to `num_tokens` into.

        A partly filled block that others hold too is replaced; the copy that this needs is returned. The caller
        has made sure of `num_missing(...) <= num_available`; Invariant otherwise.
        """
        copy = None
        if self._must_copy(table, num_tokens):
            place = table.num_tokens // self.block_size
            copy = Copy(source=table.blocks[place], target=self._take())
            self._release(copy.source)
            table.blocks[place] = copy.target
        while len(table.blocks) * self.block_size < num_tokens:
            table.blocks.append(self._take())
        return copy

    def commit(self, table: BlockTable, token_ids: Sequence[int], num_tokens: int) -> None:
        """The KV of the first `num_tokens` of `token_ids` is stored; publish the blocks that this filled."""
        table.num_tokens = num_tokens
        if not self._prefix_cache or table.epoch != self._epoch:
            return
        for place in range(len(table.keys), num_tokens // self.block_size):
            start = place * self.block_size
            ids = tuple(token_ids[start : start + self.block_size])
            key = self._key(table, ids)
            table.keys.append(key)
            # Of two equal blocks computed side by side the first stays published; the other is freed in time.
            if key not in self._index:
                block = table.blocks[place]
                self._published[block] = _Published(key, ids, self.namespace)
                self._index[key] = block

    def fork(self, table: BlockTable) -> BlockTable:
        """A second table over the same blocks."""
        twin = BlockTable(table.epoch)
        twin.blocks, twin.keys, twin.num_tokens = list(table.blocks), list(table.keys), table.num_tokens
        for block in twin.blocks:
            self._hold(block)
        return twin

    def close(self, table: BlockTable) -> None:
        """Give the table's blocks back. The tail goes first, so that it is also the first to be taken again."""
        for block in reversed(table.blocks):
            self._release(block)
        table.blocks, table.keys, table.num_tokens = [], [], 0

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Raise Invariant unless every block is accounted for, given every open table."""
        held = Counter(block for table in tables for block in table.blocks)
        counted = {block: count for block, count in enumerate(self._references) if count}
        if held != counted:
            wrong = {block: (held[block], counted.get(block, 0)) for block in held.keys() | counted.keys()}
            wrong = {block: pair for block, pair in wrong.items() if pair[0] != pair[1]}
            raise Invariant(f"blocks as (holders, references): {wrong}", expected="as many references as holders")
        states = Counter([*self._free, *self._idle, *held.keys()])
        if states != Counter(range(self.num_blocks)):
            raise Invariant(
                f"{len(self._free)} free, {len(self._idle)} idle and {len(held)} held of {self.num_blocks} blocks",
                expected="every block exactly once free, idle or held",
            )
        published = {entry.key: block for block, entry in enumerate(self._published) if entry is not None}
        if published != self._index:
            raise Invariant("the prefix index differs from what the blocks publish")
        if any(self._published[block] is None for block in self._idle) or any(
            self._published[block] is not None for block in self._free
        ):
            raise Invariant("an idle block is unpublished or a free block is published")

    def _key(self, table: BlockTable, ids: tuple[int, ...]) -> bytes:
        parent = table.keys[-1] if table.keys else hashlib.sha256(self.namespace.encode()).digest()
        return hashlib.sha256(parent + struct.pack(f"<{len(ids)}I", *ids)).digest()

    def _holds(self, block: int, ids: tuple[int, ...]) -> bool:
        entry = self._published[block]
        return entry is not None and entry.token_ids == ids

    def _must_copy(self, table: BlockTable, num_tokens: int) -> bool:
        place, offset = divmod(table.num_tokens, self.block_size)
        return num_tokens > table.num_tokens and offset > 0 and self._references[table.blocks[place]] > 1

    def _hold(self, block: int) -> None:
        if self._references[block] == 0:
            del self._idle[block]
        self._references[block] += 1

    def _release(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block]:
            return
        entry = self._published[block]
        if entry is not None and entry.namespace == self.namespace:
            self._idle[block] = None
        else:
            self._forget(block)
            self._free.append(block)

    def _take(self) -> int:
        """A block with one reference: a retired one, else a free one, else the least recently used idle one."""
        oldest = next(iter(self._idle), None)
        if oldest is not None and (not self._free or self._is_retired(oldest)):
            del self._idle[oldest]
            self._forget(oldest)
            block = oldest
        elif self._free:
            block = self._free.pop()
        else:
            raise Invariant(f"all {self.num_blocks} KV blocks are held", expected="num_missing asked before reserve")
        self._references[block] = 1
        return block

    def _is_retired(self, block: int) -> bool:
        entry = self._published[block]
        return entry is not None and entry.namespace != self.namespace

    def _forget(self, block: int) -> None:
        entry = self._published[block]
        if entry is not None:
            del self._index[entry.key]
            self._published[block] = None
