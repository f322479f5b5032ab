"""What a micro-batch adds to the loss and to the step's figures. Pure functions of packed tensors.

Called by the learner. The parts every policy-gradient algorithm shares (importance sampling against the engine, KL
penalty, entropy bonus) are put round the algorithm's own term here, once.

Shapes: N trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from huilu.algo.kl import ESTIMATORS, k3
from huilu.algo.losses import Term, Tokens, truncated_weight
from huilu.config.tree import Algorithm


class Batch(NamedTuple):
    """One micro-batch after its forward pass.

    `weight_N` are the global token weights; `rollout_N` the engine's log-probabilities; `ref_N` the reference's;
    `entropy_N` the policy's entropy in nats; `num_tokens` the trained tokens of the whole optimiser step.
    """

    tokens: Tokens
    weight_N: Tensor
    rollout_N: Tensor
    entropy_N: Tensor
    num_tokens: int
    ref_N: Tensor | None = None


def objective(batch: Batch, term: Callable[[Tokens], Term], settings: Algorithm) -> tuple[Tensor, Term]:
    """The micro-batch's share of the loss, a scalar with a gradient, and the algorithm's term.

    loss = sum weight * (min(exp(old - rollout), tis_cap) * term + kl.coef * kl(ref - logp)) - entropy_coef * mean
    entropy; the KL is not reweighted and the entropy is a mean over tokens whatever the aggregation, as in TRL.
    """
    tokens = batch.tokens
    policy = term(tokens)
    loss_N = policy.loss_N
    if settings.tis_cap is not None:
        loss_N = loss_N * truncated_weight(tokens.old_N, batch.rollout_N, settings.tis_cap)
    if settings.kl is not None and batch.ref_N is not None:
        loss_N = loss_N + settings.kl.coef * ESTIMATORS[settings.kl.estimator](batch.ref_N - tokens.logp_N)
    loss = (batch.weight_N * loss_N).sum()
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * batch.entropy_N.sum() / batch.num_tokens
    return loss, policy


@torch.no_grad()
def figures(batch: Batch, policy: Term, settings: Algorithm) -> dict[str, Tensor]:
    """Sums over the micro-batch's tokens, for means over the step.

    `mismatch` is |p - p'| of learner and engine, `mismatch_kl` the k3 estimate of KL(engine || learner), `kl_old`
    of KL(start of the update || now), `kl_ref` of KL(now || reference), all in nats but the first.
    """
    tokens = batch.tokens
    logp_N, old_N, rollout_N = tokens.logp_N.detach(), tokens.old_N, batch.rollout_N
    sums = {
        "entropy": batch.entropy_N.detach().sum(),
        "kl_old": k3(logp_N - old_N).sum(),
        "mismatch": (old_N.exp() - rollout_N.exp()).abs().sum(),
        "mismatch_kl": k3(old_N - rollout_N).sum(),
        "clip_low_frac": policy.is_clipped_low_N.sum(),
        "clip_high_frac": policy.is_clipped_high_N.sum(),
    }
    if settings.tis_cap is not None:
        sums["tis_mean"] = truncated_weight(old_N, rollout_N, settings.tis_cap).sum()
    if batch.ref_N is not None:
        sums["kl_ref"] = k3(batch.ref_N - logp_N).sum()
    return sums
