"""Reading a prompt once must change neither what the episodes compute nor their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from huilu.algo.packing import Sample, cut, lay_out
from huilu.model.decoder import Decoder, causal_attend
from huilu.train.attention import shared_prompt_attend

PROMPTS = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]
ANSWERS = {0: [[11, 12, 13], [14], [15, 16, 17, 18, 19]], 1: [[20, 21], [22, 23]], 2: [[24]]}


def samples(tiny: Any) -> list[Sample]:
    found = []
    for number, answers in ANSWERS.items():
        for answer in answers:
            sample = cut(tiny.episode(PROMPTS[number], answer, 1.0), 1.0)
            assert sample is not None
            found.append(sample)
    return found


def shared(decoder: Decoder, found: list[Sample]) -> Tensor:
    """The hidden states that predict each target, from one packed pass."""
    pack = lay_out(found, range(len(found)))
    attend = shared_prompt_attend(pack, torch.float32, torch.device("cpu"))
    hidden = decoder.hidden(torch.tensor(pack.ids), torch.tensor(pack.positions), attend)
    return hidden[torch.tensor(pack.sources)]


def separate(decoder: Decoder, found: list[Sample]) -> Tensor:
    """The same, every episode read on its own with the decoder's reference attention."""
    rows = []
    for sample in found:
        ids = [*sample.prompt, *sample.branch]
        hidden = decoder.hidden(torch.tensor(ids), torch.arange(len(ids)), causal_attend([len(ids)]))
        rows.append(hidden[torch.tensor(sample.sources)])
    return torch.cat(rows)


def gradients(decoder: Decoder, hidden: Tensor) -> list[Tensor]:
    weight = torch.linspace(-1, 1, hidden.numel()).view_as(hidden)
    parameters = [parameter for name, parameter in decoder.named_parameters() if name != "head"]
    return list(torch.autograd.grad((weight * hidden.square()).mean(), parameters))


@pytest.mark.parametrize("kept", [slice(None), slice(0, 3), slice(3, 5), slice(1, 2), slice(5, 6)])
def test_shared_prompts_equal_separate_episodes(tiny: Any, kept: slice) -> None:
    decoder, found = tiny.decoder(), samples(tiny)[kept]
    together, apart = shared(decoder, found), separate(decoder, found)
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)
    for one, other in zip(gradients(decoder, together), gradients(decoder, apart), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_branch_sees_neither_its_siblings_nor_other_prompts(tiny: Any) -> None:
    decoder, found = tiny.decoder(), samples(tiny)
    whole = shared(decoder, found)
    alone = shared(decoder, found[2:3])
    start = sum(len(sample.targets) for sample in found[:2])
    torch.testing.assert_close(whole[start : start + len(alone)], alone, atol=1e-5, rtol=1e-5)


def test_padding_brings_no_nan_into_gradients(tiny: Any) -> None:
    decoder = tiny.decoder()
    for gradient in gradients(decoder, shared(decoder, samples(tiny))):
        assert gradient.isfinite().all()
