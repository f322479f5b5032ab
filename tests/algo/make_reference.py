"""Writes reference.json: advantages, losses and gradients as TRL's own trainers compute them on fixed numbers.

Run by hand, in an environment of its own with `torch==2.13.0 trl==1.16.0`, after a change of the numbers wanted:
`python tests/algo/make_reference.py`. What is faked is only what needs a trained model: sampling, the judge, and
the log-probabilities. Rewards to advantages, importance sampling, losses, KL and the entropy bonus are TRL's code.
"""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.rewards import get_soft_overlong_punishment

NUM_GROUPS, GROUP_SIZE, LIMIT = 3, 4, 6
LENGTHS = [5, 3, 4, 1, 2, 6, 3, 4, 5, 2, 6, 1]
REWARDS = [1.0, 0.0, 0.25, None, 0.5, 0.5, 0.5, 0.5, 0.0, 1.0, 1.0, 0.7]

ADVANTAGE_BATCHES: dict[str, list[float | None]] = {
    "mixed": [1.0, 0.0, 0.0, 1.0, 0.2, 0.4, 0.6, 0.9, -1.0, 2.0, 0.5, 0.5],
    "masked": REWARDS,
    "one judged": [None, None, 1.0, None, 0.0, 1.0, None, None, 0.3, 0.3, 0.3, 0.3],
    "equal": [0.1] * 12,
}

TIS = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0}
GSPO = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"}
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "grpo tis": {"loss_type": "grpo", **TIS},
    "grpo kl": {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False, **TIS},
    "grpo entropy": {"loss_type": "grpo", "entropy_coef": 0.01},
    "grpo batch": {"loss_type": "grpo", "scale_rewards": "batch", **TIS},
    "bnpo": {"loss_type": "bnpo", **TIS},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dr_grpo tis": {"loss_type": "dr_grpo", "scale_rewards": "none", **TIS},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "dapo tis": {"loss_type": "dapo", "epsilon_high": 0.28, **TIS},
    "gspo": GSPO,
    "gspo tis": {**GSPO, **TIS},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.2},
    "cispo tis": {"loss_type": "cispo", "epsilon_high": 1.2, **TIS},
}


def main() -> None:
    """Compute everything and write it beside this file."""
    batch = make_batch()
    reference = {
        "made_with": {name: version(name) for name in ("trl", "torch", "transformers")},
        "group_size": GROUP_SIZE,
        "limit": LIMIT,
        "lengths": LENGTHS,
        "rewards": REWARDS,
        "tokens": {name: flat(values) for name, values in batch.items()},
        "losses": {name: run_loss(settings, batch) for name, settings in CASES.items()},
        "advantages": {name: run_advantages(rewards, batch) for name, rewards in ADVANTAGE_BATCHES.items()},
        "overlong": run_overlong(),
    }
    text = json.dumps(reference, indent=1)
    Path(__file__).with_name("reference.json").write_text(text + "\n")


def make_batch() -> dict[str, list[torch.Tensor]]:
    """Log-probabilities and entropies, spread so that ratios are clipped on both sides and the cap of 2 binds."""
    generator = torch.Generator().manual_seed(20260101)

    def noise(length: int, scale: float) -> torch.Tensor:
        return torch.randn(length, generator=generator) * scale

    old = [-torch.rand(length, generator=generator) * 3 - 0.1 for length in LENGTHS]
    return {
        "old": old,
        "logp": [value + noise(len(value), 0.25) for value in old],
        "rollout": [value + noise(len(value), 0.6) for value in old],
        "ref": [value + noise(len(value), 0.3) for value in old],
        "entropy": [torch.rand(length, generator=generator) * 4 for length in LENGTHS],
    }


def run_loss(settings: dict[str, Any], batch: dict[str, list[torch.Tensor]]) -> dict[str, Any]:
    """One GRPO loss from rewards to gradients."""
    with_tis = "vllm_importance_sampling_mode" in settings
    beta = settings.get("beta", 0.0)
    trainer = make_trainer(GRPOTrainer, GRPOConfig, {**settings, "beta": 0.0})
    trainer.use_vllm = with_tis
    inputs = score(trainer, REWARDS, batch)
    if not with_tis:
        inputs["old_per_token_logps"] = padded(batch["old"])
    if beta:
        # Set only now: a trainer that is made with a beta wants to load its reference model from a hub.
        trainer.beta = beta
        inputs["ref_per_token_logps"] = padded(batch["ref"])
    logp = padded(batch["logp"]).requires_grad_()
    entropy = padded(batch["entropy"]).requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logp, entropy, None)
    trainer._metrics["train"].clear()
    loss = trainer._compute_loss(trainer.model, inputs)
    grad_logp, grad_entropy = gradients(loss, logp, entropy)
    return {
        "loss": loss.item(),
        "advantages": inputs["advantages"].tolist(),
        "grad_logp": grad_logp,
        "grad_entropy": grad_entropy,
        "metrics": {name: values[0] for name, values in trainer._metrics["train"].items()},
    }


def run_advantages(rewards: list[float | None], batch: dict[str, list[torch.Tensor]]) -> dict[str, list[float]]:
    """The advantages of one batch, one list an estimator."""
    found = {}
    for scale in ("group", "batch", "none"):
        trainer = make_trainer(GRPOTrainer, GRPOConfig, {"scale_rewards": scale})
        found[scale] = score(trainer, rewards, batch)["advantages"].tolist()
    found["rloo"] = score(make_trainer(RLOOTrainer, RLOOConfig, {"beta": 0.0}), rewards, batch)["advantages"].tolist()
    return found


def run_overlong() -> dict[str, Any]:
    """TRL's soft overlong punishment for every length around the limit."""
    lengths = list(range(105))
    penalty = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    return {
        "limit": 100,
        "buffer": 20,
        "lengths": lengths,
        "penalties": penalty(completion_ids=[[1] * n for n in lengths]),
    }


def make_trainer(trainer_type: Any, config_type: Any, settings: dict[str, Any]) -> Any:
    """A real trainer round a tiny model that is never asked anything."""
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>")  # type: ignore[no-untyped-call]
    sizes = transformers.LlamaConfig(
        vocab_size=3, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    model = transformers.LlamaForCausalLM(sizes)  # type: ignore[no-untyped-call]
    config = config_type(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=NUM_GROUPS * GROUP_SIZE,
        num_generations=GROUP_SIZE,
        max_completion_length=LIMIT,
        report_to="none",
        use_cpu=True,
        bf16=False,
        **settings,
    )
    trainer = trainer_type(
        model=model,
        args=config,
        processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["a"] * NUM_GROUPS}),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def score(trainer: Any, rewards: list[float | None], batch: dict[str, list[torch.Tensor]]) -> dict[str, Any]:
    """TRL's own path from rewards to advantages and importance ratios, with sampling and judge replaced."""
    ids = [[2] * length for length in LENGTHS]
    values = torch.tensor([[float("nan") if reward is None else reward] for reward in rewards])
    sampled = [row.tolist() for row in batch["rollout"]]
    generated: tuple[Any, ...] = ([[2]] * len(ids), ids, None, ["a"] * len(ids), sampled, {}, None, None)
    if isinstance(trainer, RLOOTrainer):
        generated = ([[2]] * len(ids), ids, ["a"] * len(ids))
    trainer._generate = lambda *_: generated
    trainer._calculate_rewards = lambda *_: values
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (padded(batch["old"]), None, None)
    inputs: dict[str, Any] = trainer._generate_and_score_completions([{"prompt": "a"}] * len(ids))
    return inputs


def gradients(loss: torch.Tensor, *leaves: torch.Tensor) -> list[list[float] | None]:
    """The gradient of each leaf without its padding, or None where the loss does not depend on it."""
    found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [flat(rows(grad)) if grad is not None else None for grad in found]


def padded(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True)


def rows(values: torch.Tensor) -> list[torch.Tensor]:
    return [row[:length] for row, length in zip(values, LENGTHS, strict=True)]


def flat(values: list[torch.Tensor]) -> list[float]:
    return torch.cat(values).tolist()


if __name__ == "__main__":
    main()
