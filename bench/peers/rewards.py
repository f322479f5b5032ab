"""The rewards of bench/round_vs_trl.py, in TRL's convention: TRL calls them, and so does Huilu (`judge` of `jsonl`)."""

from __future__ import annotations

import hashlib
import re
from typing import Any

NUMBER = re.compile(r"-?\d+")


def parity(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
    """A fair coin thrown by the answer's text, so that groups have a signal; no answer, no reward."""
    texts = [_text(completion) for completion in completions]
    return [float(text != "" and hashlib.sha256(text.encode()).digest()[0] & 1) for text in texts]


def last_number(prompts: list[Any], completions: list[Any], answer: list[int], **columns: Any) -> list[float]:
    """1 where the last number of an answer is the right one, as `arithmetic` judges sums."""
    found = [NUMBER.findall(_text(completion).replace(",", "")) for completion in completions]
    return [float(bool(numbers) and int(numbers[-1]) == right) for numbers, right in zip(found, answer, strict=True)]


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[0]["content"])
