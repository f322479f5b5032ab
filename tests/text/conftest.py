"""The tokeniser of SmolLM2 and what transformers makes of the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from huilu.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(smollm_dir: Path) -> Tokenizer:
    return Tokenizer.load(smollm_dir)


@pytest.fixture(scope="session")
def theirs(smollm_dir: Path) -> Any:
    """The same folder as transformers loads it."""
    load: Any = transformers.PreTrainedTokenizerFast.from_pretrained
    return load(smollm_dir)
