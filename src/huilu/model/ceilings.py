"""What this machine allows: copy bandwidth, matrix rate, and the matrix products alone of a model's decode.

`python -m huilu.model.ceilings FOLDER THREADS` prints one JSON object; started by `assembly.bench`, in a process of
its own, while nothing else is measured. Each figure is the best of several tries: a ceiling, not a mean. Products are
tried by torch with weights stored [in, out] and [out, in], and by `model.kernels`; the fastest counts.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from huilu.model import kernels
from huilu.model.spec import ModelSpec, read_spec

COPY_BYTES = 256 << 20
SQUARE = 2048
TRIES = 5


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """`copy_bytes_per_s` counts what is read and what is written. `decode_tokens_per_s` is by number of sequences."""

    copy_bytes_per_s: float
    matmul_flops_per_s: float
    decode_tokens_per_s: dict[int, float]


def measure(spec: ModelSpec, rows: tuple[int, ...]) -> Ceilings:
    """Measure this process's ceilings, with the threads that torch has now."""
    return Ceilings(
        copy_bytes_per_s=_copy(),
        matmul_flops_per_s=_square(),
        decode_tokens_per_s=_decode(spec, rows),
    )


def products(spec: ModelSpec) -> list[tuple[int, int]]:
    """(in, out) of each matrix product that one token of a decode needs, q/k/v and gate/up taken together."""
    heads, kv = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
    layer = [
        (spec.hidden_size, heads + 2 * kv),
        (heads, spec.hidden_size),
        (spec.hidden_size, 2 * spec.intermediate_size),
        (spec.intermediate_size, spec.hidden_size),
    ]
    return layer * spec.num_layers + [(spec.hidden_size, spec.vocab_size)]


def _copy() -> float:
    source = torch.zeros(COPY_BYTES // 4)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _best(lambda: target.copy_(source))


def _square() -> float:
    left, right = torch.rand(SQUARE, SQUARE), torch.rand(SQUARE, SQUARE)
    out = torch.empty(SQUARE, SQUARE)
    return 2 * SQUARE**3 / _best(lambda: torch.mm(left, right, out=out))


def _decode(spec: ModelSpec, rows: tuple[int, ...]) -> dict[int, float]:
    best = dict.fromkeys(rows, math.inf)
    for in_out in (True, False):
        weights = [torch.rand(size if in_out else size[::-1]) for size in products(spec)]
        uses = [weight if in_out else weight.T for weight in weights]
        for count in rows:
            inputs = {size: torch.rand(count, size) for size in {weight.shape[0] for weight in uses}}
            for product in (torch.mm, kernels.linear):
                best[count] = min(best[count], _best(functools.partial(_multiply, product, uses, inputs)))
    return {count: count / seconds for count, seconds in best.items()}


def _multiply(product: Callable[[Tensor, Tensor], Tensor], weights: list[Tensor], inputs: dict[int, Tensor]) -> None:
    for weight in weights:
        product(inputs[weight.shape[0]], weight)


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest try, after one that does not count."""
    work()
    seconds = []
    for _ in range(TRIES):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    """Print the ceilings of the model in FOLDER at 1, 8 and 64 sequences."""
    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    with torch.inference_mode():
        found = measure(read_spec(Path(folder)), (1, 8, 64))
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")


if __name__ == "__main__":
    main()
