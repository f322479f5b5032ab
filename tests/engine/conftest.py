"""Tiny decoders of each family, a tokeniser of letters, and engines on them with a clock that tests turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
import torch

from huilu.config.tree import Inference
from huilu.core.generation import Completion, Sampling
from huilu.engine.engine import Engine
from huilu.model.decoder import Decoder, causal_attend, initialise
from huilu.model.spec import ModelSpec
from huilu.telemetry import Telemetry
from huilu.text.tokenizer import Tokenizer

torch.set_num_threads(1)

VOCAB_SIZE = 60
EOS = 1
SIZES: dict[str, Any] = {
    "family": "llama",
    "vocab_size": VOCAB_SIZE,
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_size": 8,
    "intermediate_size": 48,
    "rope_theta": 1e4,
    "norm_eps": 1e-5,
    "max_positions": 128,
    "eos_ids": (EOS,),
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied-one-kv-head": {"tie_embeddings": True, "num_kv_heads": 1},
    "qwen2": {"family": "qwen2", "qkv_bias": True, "num_kv_heads": 4},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_size": 16},
}


def build(family: str, seed: int = 0, device: str = "cpu") -> Decoder:
    """A random decoder whose weights are large enough for its logits to tell tokens apart."""
    decoder = Decoder(ModelSpec(**SIZES | FAMILIES[family]), device=device)
    initialise(decoder, seed, std=0.3)
    return decoder


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_decoder() -> Callable[..., Decoder]:
    return build


@pytest.fixture
def decoder() -> Decoder:
    return build("llama")


@pytest.fixture(scope="session")
def letters() -> Tokenizer:
    """Id 1 is the EOS; ids from 2 on are pieces of one to three letters."""
    pieces = ["<pad>", "</s>"]
    pieces += [first + rest for rest in ("", "x", "yz") for first in "abcdefghijklmnopqrst"][: VOCAB_SIZE - 2]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({piece: id_ for id_, piece in enumerate(pieces)}))
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(["<pad>", "</s>"])
    return Tokenizer(
        backend, special_tokens={"eos_token": "</s>"}, eos_ids=(EOS,), pad_id=0, template=None, digest="letters"
    )


@dataclasses.dataclass
class World:
    """An engine, its telemetry and its clock."""

    engine: Engine
    telemetry: Telemetry
    clock: list[float]

    def submit(self, name: str, prompt: list[int], deadline: float = 1e9, **sampling: Any) -> None:
        self.engine.submit(name, prompt, Sampling(**{"max_new_tokens": 8, **sampling}), deadline)

    def finish(self) -> dict[str, tuple[Completion, ...]]:
        """Step until nothing is left to do."""
        ended: dict[str, tuple[Completion, ...]] = {}
        for _ in range(5000):
            if not self.engine.has_work:
                return ended
            ended |= {one.request_id: one.completions for one in self.engine.step()}
        raise AssertionError("the engine makes no progress")

    def steps(self, count: int) -> dict[str, tuple[Completion, ...]]:
        return {one.request_id: one.completions for _ in range(count) for one in self.engine.step()}


@pytest.fixture
def make_world(letters: Tokenizer) -> Callable[..., World]:
    """An engine with `num_blocks` KV blocks."""

    def make(decoder: Decoder, num_blocks: int = 64, block_size: int = 4, **settings: Any) -> World:
        spec, telemetry, clock = decoder.spec, Telemetry(), [0.0]
        item_bytes = decoder.embedding.dtype.itemsize
        token_bytes = spec.num_layers * 2 * spec.num_kv_heads * spec.head_size * item_bytes
        inference = Inference(kv_bytes=num_blocks * block_size * token_bytes, block_size=block_size, **settings)
        return World(Engine(decoder, inference, letters, telemetry, now=lambda: clock[0]), telemetry, clock)

    return make


@pytest.fixture
def full_logprobs() -> Callable[..., torch.Tensor]:
    """The log-probabilities [T, V] that a plain forward pass gives after each token of one sequence."""

    @torch.no_grad()
    def compute(decoder: Decoder, token_ids: list[int], temperature: float = 1.0) -> torch.Tensor:
        device = decoder.embedding.device
        ids_T, positions_T = torch.tensor(token_ids, device=device), torch.arange(len(token_ids), device=device)
        hidden_TD = decoder.hidden(ids_T, positions_T, causal_attend([len(token_ids)]))
        return (decoder.logits(hidden_TD).float() / temperature).log_softmax(-1).cpu()

    return compute


@pytest.fixture
def naive_greedy(full_logprobs: Callable[..., torch.Tensor]) -> Callable[..., list[int]]:
    """Greedy decoding that computes everything again for every token, up to an EOS."""

    def decode(decoder: Decoder, prompt: list[int], max_new_tokens: int) -> list[int]:
        token_ids = list(prompt)
        for _ in range(max_new_tokens):
            token_ids.append(int(full_logprobs(decoder, token_ids)[-1].argmax()))
            if token_ids[-1] == EOS:
                break
        return token_ids[len(prompt) :]

    return decode


@pytest.fixture
def make_prompt() -> Callable[..., list[int]]:
    """A random prompt without the EOS."""

    def make(length: int, seed: int = 0) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist()

    return make
