"""TRL's GRPOTrainer, float32, one optimiser step a round over all of the round's episodes.

First line {folder, threads, tasks: [{prompt, answer}], reward, job: {...}}, where `job` has the numbers of Huilu's
recipe; then a line for each round that is wanted, answered by {seconds, zero_groups, mean_tokens}. A round's time
runs from the start of its generation to the end of its optimiser step. The trainer waits between rounds, so that
another program can be measured there.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import datasets
import rewards
import torch
from lines import Lines, Message
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Rounds(TrainerCallback):
    """Starts a round when a line arrives, and answers when it is done."""

    def __init__(self, lines: Lines) -> None:
        self._lines, self._start = lines, 0.0
        self.trainer: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._lines.read() is None:
            raise KeyboardInterrupt  # no more rounds
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seconds = time.perf_counter() - self._start
        figures = {name: values[-1] for name, values in self.trainer._metrics["train"].items() if values}
        self._lines.reply(
            seconds=seconds,
            zero_groups=figures["frac_reward_zero_std"],
            mean_tokens=figures["completions/mean_length"],
            reward=figures["reward"],
        )


def main() -> None:
    """Load, then train a round a line."""
    lines = Lines()
    first = lines.read() or {}
    torch.set_num_threads(first["threads"])
    with tempfile.TemporaryDirectory(prefix="huilu-trl-") as scratch:
        rounds = Rounds(lines)
        rounds.trainer = trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(first["folder"], dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(first["folder"]),
            reward_funcs=getattr(rewards, first["reward"]),
            args=config(first["job"], scratch),
            train_dataset=datasets.Dataset.from_list(first["tasks"]),
            callbacks=[rounds],
        )
        lines.reply(ready=True)
        try:
            trainer.train()
        except KeyboardInterrupt:
            return


def config(job: Message, folder: str) -> GRPOConfig:
    """TRL's names for the recipe's numbers. What is left at a default is not part of the loss or of the update."""
    episodes = job["tasks_per_round"] * job["episodes_per_task"]
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,  # faster, where memory allows
        per_device_train_batch_size=job["micro_batch"],
        gradient_accumulation_steps=episodes // job["micro_batch"],
        num_generations=job["episodes_per_task"],
        max_completion_length=job["max_new_tokens"],
        temperature=job["temperature"],
        top_p=1.0,
        top_k=0,
        loss_type="grpo",
        scale_rewards="group",
        epsilon=job["clip"],
        beta=0.0,
        num_iterations=1,
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        adam_beta1=job["betas"][0],
        adam_beta2=job["betas"][1],
        adam_epsilon=job["eps"],
        weight_decay=job["weight_decay"],
        max_grad_norm=job["max_grad_norm"],
        max_steps=job["rounds"],
        seed=job["seed"],
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


if __name__ == "__main__":
    main()
