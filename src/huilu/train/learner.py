"""The learner: one claim in, one update of the weights out, and what the step was like.

Called by `assembly.model`, from one thread, while no engine iteration runs (the weights are shared in place).

    claim -> prepare -> [ micro-batch: forward, loss, backward ] -> clip -> AdamW -> digest in the background
             advantages,  once a minibatch and epoch                  ^ a step that is not finite stops here
             weights, packing

It executes an algorithm (`algo.methods.Method`) without knowing its name.

Shapes: N targets of a micro-batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from huilu.algo.losses import Tokens
from huilu.algo.methods import method_of
from huilu.algo.objective import Batch, figures, objective
from huilu.config.tree import Rollout, Train
from huilu.core.nouns import Claim, StepReport
from huilu.errors import BadWeights, Invariant, TrainingUnhealthy
from huilu.model import weights
from huilu.model.decoder import Decoder
from huilu.telemetry import Telemetry
from huilu.train.adamw import AdamW
from huilu.train.drift import Probe, drift, take_probe
from huilu.train.forward import MicroBatch, evaluate, micro_batches
from huilu.train.prepare import Lesson, prepare
from huilu.train.report import Tally, tell
from huilu.train.schedule import learning_rate
from huilu.train.state import Header, digest_of, read_state, write_state

_PROBE = "probe"


class Exercise(NamedTuple):
    """A micro-batch with the log-probabilities that do not change during the step; None where not needed."""

    micro: MicroBatch
    old_N: Tensor | None
    ref_N: Tensor | None


class Update(NamedTuple):
    """The work of one optimiser step. `num_tokens` are those of its loss's divisor."""

    exercises: list[Exercise]
    num_tokens: int


class Learner:
    """Owns the optimiser's state of a decoder; updates its weights in place.

    `reference` is a second decoder, needed only by a KL penalty. `num_rounds` sets the length of the learning rate's
    schedule. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        decoder: Decoder,
        settings: Train,
        rollout: Rollout,
        num_rounds: int,
        telemetry: Telemetry,
        reference: Decoder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if settings.algorithm.kl is not None and reference is None:
            raise Invariant("a KL penalty without a reference decoder")
        self._decoder, self._settings, self._rollout = decoder, settings, rollout
        self._telemetry, self._reference, self._clock = telemetry, reference, clock
        self._method = method_of(settings.algorithm, rollout.max_new_tokens)
        self._num_steps = num_rounds * settings.algorithm.minibatches * settings.algorithm.epochs
        self._adamw = AdamW(decoder, settings)
        self._num_nonfinite = 0
        self._probe: Probe | None = None
        self._drift: float | None = 0.0
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._hash: Future[str] | None = None

    def step(self, claim: Claim) -> StepReport:
        """Learn from a claim. Raises TrainingUnhealthy after `max_nonfinite` updates in a row that were not finite.

        Without a signal (nothing to train on, or every advantage zero and no term that needs no advantage) nothing
        is computed and nothing changes.
        """
        tally = Tally(self._clock)
        with tally.timed("prepare"):
            lesson = prepare(claim, self._method, self._settings.algorithm, self._rollout.max_new_tokens)
            self._keep_probe(lesson)
            updates = self._plan(lesson)
        rate = learning_rate(self._settings, self._adamw.num_steps, self._num_steps)
        for _ in range(self._settings.algorithm.epochs):
            for update in updates:
                rate = learning_rate(self._settings, self._adamw.num_steps, self._num_steps)
                self._update(update, rate, tally)
        if tally.losses:
            self._drift = None
        with tally.timed("drift"):
            kl_start = self.drift()
        self._start_hash()
        steps = float(self._adamw.num_steps)
        report = tally.report({**lesson.figures, "learning_rate": rate, "step": steps, "kl_start": kl_start})
        tell(self._telemetry, report)
        return report

    def drift(self) -> float:
        """KL(now || start) in nats a token on the probe; 0.0 before the first episode arrived. See `drift`."""
        if self._drift is None:
            self._drift = drift(self._decoder, self._probe) if self._probe is not None else 0.0
            self._telemetry.gauge("huilu_trainer_kl", self._drift, kind="start")
        return self._drift

    def digest(self) -> str:
        """The digest of the weights, waiting for the hash that started after the last update."""
        return self._start_hash().result()

    def digest_if_ready(self) -> str | None:
        """The digest of the weights, or None while it is being computed."""
        hash_ = self._start_hash()
        return hash_.result() if hash_.done() else None

    def save_state(self, path: Path) -> int:
        """Write everything but the weights to one file, whole or not at all; its size in bytes.

        Raises DiskFull or NotWritable, and then leaves what was at `path`.
        """
        with self._telemetry.timed("huilu_checkpoint_save_seconds"):
            tensors = self._adamw.tensors()
            if self._probe is not None:
                tensors[_PROBE] = self._probe.start_NV
            header = Header(
                weights_digest=self.digest(),
                tensors_digest=digest_of(tensors),
                num_steps=self._adamw.num_steps,
                num_nonfinite=self._num_nonfinite,
                random_state=torch.get_rng_state().numpy().tobytes(),
                probe=self._probe.samples if self._probe is not None else [],
            )
            num_bytes = write_state(path, header, tensors, lambda: self._telemetry.reach("mid-save"))
        self._telemetry.gauge("huilu_checkpoint_bytes", num_bytes)
        return num_bytes

    def load_state(self, path: Path) -> None:
        """Go on from a saved state; the decoder must already hold the weights it belongs to. Raises BadWeights."""
        header, tensors = read_state(path)
        self._hash = None
        self._drift = None
        if self.digest() != header.weights_digest:
            raise BadWeights(
                f"{path} belongs to the weights {header.weights_digest[:16]}…",
                expected=f"a state of the loaded weights, {self.digest()[:16]}…",
                fix="load the weights that were saved with it",
            )
        start_NV = tensors.pop(_PROBE, None)
        self._adamw.restore(tensors, header.num_steps)
        self._num_nonfinite = header.num_nonfinite
        self._probe = None if start_NV is None else Probe(header.probe, start_NV.to(self._device, copy=True))
        torch.set_rng_state(torch.frombuffer(bytearray(header.random_state), dtype=torch.uint8))

    def restart_optimizer(self) -> None:
        """The weights were replaced by others without a state: forget the moments, keep the probe of the start."""
        self._hash = None
        self._drift = None
        self._num_nonfinite = 0
        self._adamw.reset()

    @property
    def _device(self) -> torch.device:
        return self._decoder.embedding.device

    def _plan(self, lesson: Lesson) -> list[Update]:
        """The optimiser steps of one epoch. What the policy was at the start is only computed if it will change."""
        settings = self._settings
        parts = [minibatch for minibatch in lesson.minibatches if minibatch.chosen]
        is_single = len(parts) * settings.algorithm.epochs == 1
        updates = []
        for part in parts:
            micros = micro_batches(
                part.samples, part.weights, part.chosen, settings.tokens_per_microbatch, self._device
            )
            exercises = [
                Exercise(
                    micro,
                    None if is_single else _fixed(self._decoder, micro),
                    None if self._reference is None else _fixed(self._reference, micro),
                )
                for micro in micros
            ]
            updates.append(Update(exercises, part.num_tokens))
        return updates

    def _update(self, update: Update, rate: float, tally: Tally) -> None:
        """One optimiser step, or none when its loss or gradient is not finite."""
        loss = 0.0
        with tally.timed("forward_backward"):
            for exercise in update.exercises:
                loss += self._backward(exercise, update.num_tokens, tally)
                if not math.isfinite(loss):
                    break
        self._telemetry.reach("mid-step")
        with tally.timed("optimizer"):
            norm = self._adamw.gradient_norm() if math.isfinite(loss) else math.nan
            if not math.isfinite(norm):
                self._adamw.clear_gradients()
                self._skip(loss, norm, tally)
                return
            if self._hash is not None:
                self._hash.result()  # it reads the weights that are about to change
                self._hash = None
            self._adamw.apply(rate, norm)
        self._num_nonfinite = 0
        tally.losses.append(loss)
        tally.norms.append(norm)

    def _backward(self, exercise: Exercise, num_tokens: int, tally: Tally) -> float:
        """Add a micro-batch's gradient; its share of the loss."""
        micro = exercise.micro
        logp_N, entropy_N = evaluate(self._decoder, micro)
        old_N = logp_N.detach() if exercise.old_N is None else exercise.old_N
        tokens = Tokens(logp_N, old_N, micro.advantage_N, micro.episode_N, len(micro.pack.samples))
        batch = Batch(tokens, micro.weight_N, micro.rollout_N, entropy_N, num_tokens, exercise.ref_N)
        loss, term = objective(batch, self._method.term, self._settings.algorithm)
        loss.backward()  # type: ignore[no-untyped-call]
        tally.add(figures(batch, term, self._settings.algorithm), len(micro.pack.targets))
        return float(loss.detach())

    def _skip(self, loss: float, norm: float, tally: Tally) -> None:
        tally.num_nonfinite += 1
        self._num_nonfinite += 1
        self._telemetry.count("huilu_trainer_nonfinite_total")
        self._telemetry.event("train.nonfinite", loss=str(loss), grad_norm=str(norm), in_a_row=self._num_nonfinite)
        if self._num_nonfinite >= self._settings.max_nonfinite:
            raise TrainingUnhealthy(
                f"{self._num_nonfinite} updates in a row were not finite (loss {loss}, gradient norm {norm})",
                expected=f"fewer than {self._settings.max_nonfinite}",
                fix="lower train.learning_rate, or look for rewards and log-probabilities that are not finite",
            )

    def _keep_probe(self, lesson: Lesson) -> None:
        """Before the first update the policy is the start: take the probe from the first episodes that arrive."""
        samples = [sample for minibatch in lesson.minibatches for sample in minibatch.samples]
        if self._probe is None and self._adamw.num_steps == 0 and samples:
            self._probe = take_probe(self._decoder, samples)

    def _start_hash(self) -> Future[str]:
        if self._hash is None:
            self._hash = self._hasher.submit(weights.digest, self._decoder)
        return self._hash


@torch.no_grad()
def _fixed(decoder: Decoder, micro: MicroBatch) -> Tensor:
    return evaluate(decoder, micro)[0]
