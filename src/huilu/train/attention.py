"""Attention for packed episodes that share their prompts: each prompt is read once, forward and backward.

Called by the learner with the layout of `algo.packing`; exact, it equals attention over every episode on its own.

Shapes: T tokens of the micro-batch; P prompts, L tokens of the longest; B branches, C tokens of the longest;
S = L + C, what a branch can see; H query heads; K key/value heads; d head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from huilu.algo.packing import Pack, starts_of
from huilu.model.decoder import Attend, causal_attend


def shared_prompt_attend(pack: Pack, dtype: torch.dtype, device: torch.device) -> Attend:
    """Causal attention where a branch sees its prompt and itself, and a prompt only itself.

    Rows are padded to the longest of their kind; a padded key is masked or hidden by causality, and what padded
    queries compute is dropped, so that no gradient passes through them.
    """
    num_prompt_tokens = sum(pack.prompts)
    attend_prompts = causal_attend(pack.prompts)
    branches = [(prompt, length) for prompt, length in pack.branches if length]
    if not branches:
        return attend_prompts
    prompt_starts = starts_of(pack.prompts)
    branch_starts = [num_prompt_tokens + start for start in starts_of([length for _, length in branches])]
    longest = max(length for _, length in branches)
    prefix_BL = _rows([prompt_starts[prompt] for prompt, _ in branches], [pack.prompts[p] for p, _ in branches])
    own_BC = _rows(branch_starts, [length for _, length in branches])
    seen_BS = torch.cat((prefix_BL, own_BC), 1).to(device)
    query_BC = (own_BC - num_prompt_tokens).to(device)
    length_B = torch.tensor([length for _, length in branches])
    kept_T = (torch.arange(longest) < length_B[:, None]).flatten().nonzero()[:, 0].to(device)
    mask_B1CS = _mask([pack.prompts[prompt] for prompt, _ in branches], prefix_BL.shape[1], longest).to(device, dtype)

    def attend(layer: int, q_THd: Tensor, k_TKd: Tensor, v_TKd: Tensor) -> Tensor:
        n = num_prompt_tokens
        out_prompts = attend_prompts(layer, q_THd[:n], k_TKd[:n], v_TKd[:n])
        q = q_THd[n:][query_BC].transpose(1, 2)
        k, v = k_TKd[seen_BS].transpose(1, 2), v_TKd[seen_BS].transpose(1, 2)
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask_B1CS, enable_gqa=True)
        out_branches = out.transpose(1, 2).flatten(0, 1)[kept_T]
        return torch.cat((out_prompts, out_branches))

    return attend


def _rows(starts: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """The places of each run, [runs, longest], padded with the run's first place."""
    offsets = torch.arange(max(lengths))
    inside = offsets < torch.tensor(lengths)[:, None]
    return torch.tensor(starts)[:, None] + torch.where(inside, offsets, 0)


def _mask(prefix_lengths: Sequence[int], longest_prefix: int, longest_branch: int) -> Tensor:
    """0 where query c of branch b may see key s, minus infinity elsewhere: [B, 1, C, L + C]."""
    prefix_B1L = torch.arange(longest_prefix) < torch.tensor(prefix_lengths)[:, None, None]
    own_CC = torch.ones(longest_branch, longest_branch, dtype=torch.bool).tril()
    num_branches = len(prefix_lengths)
    visible = torch.cat(
        (
            prefix_B1L.expand(num_branches, longest_branch, longest_prefix),
            own_CC.expand(num_branches, longest_branch, longest_branch),
        ),
        -1,
    )
    return torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))[:, None]
