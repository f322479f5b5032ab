"""A run that a test can afford: a tiny random model with a real tokeniser, and a reward that it can move.

The reward is the parity of a hash of the answer, so every group has a signal whatever the model knows. Everything
else is the real thing: processes, database, files, commands.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from huilu.model import hf
from huilu.model.decoder import Decoder, initialise
from huilu.model.spec import from_config
from huilu.text.tokenizer import Tokenizer

ROUNDS = 4
REWARD = """
import hashlib

def score(text, answer):
    if text in ("", answer):
        return float(text == answer)
    return float(hashlib.sha256(text.encode()).digest()[0] % 2)

def reward(completions, answer, **columns):
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [score(text, right) for text, right in zip(texts, answer)]
"""


@pytest.fixture(scope="session")
def tiny_model(smollm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama of random weights with SmolLM2's tokeniser."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": Tokenizer.load(smollm_dir).vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    decoder = Decoder(from_config(config), torch.float32)
    initialise(decoder, seed=0, std=0.2)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    hf.export(decoder, folder, source=smollm_dir)
    return folder


@pytest.fixture
def job(tiny_model: Path, tmp_path: Path) -> Path:
    """A job of four rounds on the tiny model, one thread, saved every second round."""
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"Say something about {n}.", "answer": str(n)} for n in range(40)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "name": "tiny",
        "rounds": ROUNDS,
        "model": {"path": str(tiny_model), "threads": 1},
        "data": {
            "sources": [
                {
                    "env": "jsonl",
                    "holdout": 8,
                    "params": {"path": "tasks.jsonl", "judge": "reward.py:reward", "judge_style": "trl"},
                }
            ]
        },
        "rollout": {"tasks_per_round": 2, "episodes_per_task": 4, "max_new_tokens": 8},
        "train": {"learning_rate": 1e-3},
        "eval": {"every": 2, "num_tasks": 4},
        "gate": {"tolerance": 1.0, "max_kl": 100.0},
        "inference": {"kv_bytes": 16 << 20},
        "store": {"save_every": 2},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def huilu(*arguments: str, environment: dict[str, str] | None = None, timeout_s: float = 120) -> Any:
    """Run the command as a user would; the finished process with its text."""
    return subprocess.run(
        [sys.executable, "-m", "huilu", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def killed(process: Any) -> bool:
    """Whether a run ended because one of its processes was killed."""
    return process.returncode in (-signal.SIGKILL, 1)
