"""transformers' `generate`, float32, at its defaults: SDPA attention, a dynamic cache, each prompt expanded n times.

First line {folder, threads}; then {requests: [{ids, n, max_new_tokens}]}, all of one n and one length, answered by
{seconds, tokens}. End-of-sequence is ignored, so that every sequence is as long as asked.
"""

from __future__ import annotations

import time

import torch
from lines import Lines, Message
from transformers import AutoModelForCausalLM


def main() -> None:
    """Load, then answer until there are no more lines."""
    lines = Lines()
    first = lines.read() or {}
    torch.set_num_threads(first["threads"])
    model = AutoModelForCausalLM.from_pretrained(first["folder"], dtype=torch.float32)
    model.generation_config.eos_token_id = None
    lines.reply(ready=True)
    while message := lines.read():
        lines.reply(**answer(model, message["requests"]))


@torch.inference_mode()
def answer(model: torch.nn.Module, requests: list[Message]) -> Message:
    """One batch: its prompts padded on the left to the longest."""
    (n,) = {request["n"] for request in requests}
    (length,) = {request["max_new_tokens"] for request in requests}
    width = max(len(request["ids"]) for request in requests)
    ids = torch.zeros(len(requests), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        ids[row, width - len(request["ids"]) :] = torch.tensor(request["ids"])
        mask[row, width - len(request["ids"]) :] = 1
    start = time.perf_counter()
    found = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=n,
        max_new_tokens=length,
        pad_token_id=0,
    )
    return {"seconds": time.perf_counter() - start, "tokens": found.shape[0] * (found.shape[1] - width)}


if __name__ == "__main__":
    main()
