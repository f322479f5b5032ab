"""The decoder computes what transformers computes: logits, log-probabilities and gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from huilu.model import hf, weights
from huilu.model.decoder import Decoder, causal_attend, initialise
from huilu.model.spec import from_config
from huilu.text.tokenizer import Tokenizer

Build = Callable[[transformers.PreTrainedConfig], Any]
Logits = Callable[[Any, list[Tensor]], Tensor]


def test_logits_and_logprobs_equal_those_of_transformers(
    config: transformers.PreTrainedConfig,
    reference: Build,
    sequences: list[Tensor],
    packed_logits: Logits,
    their_logits: Logits,
    tmp_path: Path,
) -> None:
    model = reference(config)
    model.save_pretrained(tmp_path)
    decoder = hf.load_decoder(tmp_path)
    with torch.no_grad():
        ours, theirs = packed_logits(decoder, sequences), their_logits(model, sequences)
    assert theirs.std() > 0.5
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.log_softmax(-1), theirs.log_softmax(-1), atol=1e-4, rtol=0)


def test_gradients_equal_those_of_transformers(
    config: transformers.PreTrainedConfig,
    reference: Build,
    sequences: list[Tensor],
    packed_logits: Logits,
    their_logits: Logits,
    tmp_path: Path,
) -> None:
    model = reference(config)
    model.save_pretrained(tmp_path)
    decoder = hf.load_decoder(tmp_path)
    their_names, their_parameters = zip(*model.named_parameters(), strict=True)
    their_loss = their_logits(model, sequences).log_softmax(-1)[:, 5].sum()
    theirs = dict(zip(their_names, torch.autograd.grad(their_loss, their_parameters), strict=True))
    our_parameters = list(decoder.parameters())
    our_loss = packed_logits(decoder, sequences).log_softmax(-1)[:, 5].sum()
    # Put our gradients where the weights are, so that the layout's own table names them as transformers does.
    for parameter, gradient in zip(our_parameters, torch.autograd.grad(our_loss, our_parameters), strict=True):
        parameter.data = gradient
    ours = weights.tensors(decoder)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=2e-4, rtol=1e-3, msg=name)


def test_recomputed_activations_give_the_same_gradients(sequences: list[Tensor]) -> None:
    config = transformers.Qwen3Config(vocab_size=101, hidden_size=16, intermediate_size=24, num_hidden_layers=2)
    spec = from_config(config.to_dict() | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8})
    lengths = [len(sequence) for sequence in sequences]
    gradients = []
    for recompute in (False, True):
        decoder = Decoder(spec)
        initialise(decoder, seed=5, std=0.2)
        positions_T = torch.cat([torch.arange(length) for length in lengths])
        hidden_TD = decoder.hidden(torch.cat(sequences), positions_T, causal_attend(lengths), recompute=recompute)
        loss = decoder.logits(hidden_TD).square().sum()
        gradients.append(torch.autograd.grad(loss, list(decoder.parameters())))
    for kept, recomputed in zip(*gradients, strict=True):
        assert torch.equal(kept, recomputed)


def test_bfloat16_is_as_close_to_float32_as_in_transformers(
    config: transformers.PreTrainedConfig,
    reference: Build,
    sequences: list[Tensor],
    packed_logits: Logits,
    their_logits: Logits,
    tmp_path: Path,
) -> None:
    model = reference(config)
    model.save_pretrained(tmp_path)
    decoder = hf.load_decoder(tmp_path, torch.bfloat16)
    with torch.no_grad():
        exact = their_logits(model, sequences)
        theirs = their_logits(model.to(torch.bfloat16), sequences).float()
        ours = packed_logits(decoder, sequences)
    assert ours.dtype == torch.bfloat16
    assert (ours.float() - exact).square().mean() < 1.5 * (theirs - exact).square().mean()


@pytest.mark.parametrize("lengths", [(1,), (5, 5, 5), (3, 9, 1)])
def test_packed_sequences_do_not_see_each_other(lengths: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    num_tokens = sum(lengths)
    q_THd, k_TKd, v_TKd = (torch.randn(num_tokens, heads, 8, generator=generator) for heads in (4, 2, 2))
    together = causal_attend(lengths)(0, q_THd, k_TKd, v_TKd)
    start = 0
    for length in lengths:
        for end in range(start + 1, start + length + 1):
            seen = slice(start, end)
            # The definition, for the last token alone: softmax over what it may see.
            k_hTd = k_TKd[seen].repeat_interleave(2, dim=1).transpose(0, 1)
            v_hTd = v_TKd[seen].repeat_interleave(2, dim=1).transpose(0, 1)
            scores_hT = (k_hTd @ q_THd[end - 1][:, :, None]).squeeze(-1) / 8**0.5
            expected_hd = (scores_hT.softmax(-1)[:, None] @ v_hTd).squeeze(1)
            torch.testing.assert_close(together[end - 1], expected_hd, atol=1e-6, rtol=1e-5)
        start += length


def test_smollm2_logits_equal_those_of_transformers(
    smollm_dir: Path, packed_logits: Logits, their_logits: Logits
) -> None:
    tokenizer = Tokenizer.load(smollm_dir)
    texts = (
        "What is 3 + 14? Answer with just the number.",
        "def f(x):\n    return x * 2  # 回炉",
        "The quick fox " * 20,
    )
    sequences = [torch.tensor(tokenizer.encode(text)) for text in texts]
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(smollm_dir, dtype=torch.float32).eval()
    decoder = hf.load_decoder(smollm_dir)
    with torch.no_grad():
        ours, theirs = packed_logits(decoder, sequences), their_logits(model, sequences)
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)
    torch.testing.assert_close(ours.log_softmax(-1), theirs.log_softmax(-1), atol=1e-4, rtol=0)
