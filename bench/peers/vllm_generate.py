"""vLLM's CPU build, float32, compiled as by default, prefix caching on, n samples of each prompt in one request.

First line {folder, threads}; then {requests: [{ids, n, max_new_tokens}]}, answered by {seconds, tokens}. The engine
runs in this process, so that its memory is counted with it. Intel's OpenMP is preloaded, as vLLM's manual asks. Only
tokens are asked for: no text, no log-probabilities.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from lines import Lines, Message

THREADS = os.cpu_count() or 1
OPENMP = Path(sys.prefix) / "lib" / "libiomp5.so"
ENVIRONMENT = {
    "LD_PRELOAD": str(OPENMP),
    "OMP_NUM_THREADS": str(THREADS),
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    """Load, then answer until there are no more lines."""
    if os.environ.get("LD_PRELOAD") != str(OPENMP):  # a library is preloaded at the start of a process only
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ENVIRONMENT)
    lines = Lines()
    first = lines.read() or {}
    from vllm import LLM  # noqa: PLC0415 - reads the environment when it is imported

    engine = LLM(
        model=first["folder"],
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=64,
        enable_prefix_caching=True,
        seed=0,
    )
    lines.reply(ready=True)
    while message := lines.read():
        lines.reply(**answer(engine, message["requests"]))


def answer(engine: Any, requests: list[Message]) -> Message:
    """One queue of requests, until it is empty."""
    from vllm import SamplingParams  # noqa: PLC0415

    prompts = [{"prompt_token_ids": request["ids"]} for request in requests]
    sampling = [
        SamplingParams(
            n=request["n"], max_tokens=request["max_new_tokens"], temperature=1.0, ignore_eos=True, detokenize=False
        )
        for request in requests
    ]
    start = time.perf_counter()
    found = engine.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "tokens": sum(len(each.token_ids) for request in found for each in request.outputs)}


if __name__ == "__main__":
    main()
