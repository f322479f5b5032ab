"""Trackers that also get a run's metrics, by the names of the job file's `trackers`. Called by assembly.

A tracker is a sink of events with a `close`; it takes `round` and `evaluation` events and lets the rest pass.
A third tracker is one more function here and one more line in `TRACKERS`.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from huilu.errors import Usage, boundary
from huilu.observe.events import EvaluationEnded, RoundEnded, decode
from huilu.observe.runlog import flat

TENSORBOARD_DIR = "tensorboard"
_NOT_SCALARS = frozenset({"at", "round", "rounds", "digest", "version"})


class Tracker(Protocol):
    """A sink that has to be closed."""

    def __call__(self, told: Mapping[str, Any], /) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Writes TensorBoard event files into the run folder: `train/*`, `seconds/*` by round, `eval/SPLIT/*`.

    `first_round` is the first round of this process: what an earlier process wrote from there on is replayed, and
    TensorBoard drops it. Evaluations lie at the last round that ended. Raises Usage where tensorboardX is missing.
    """

    def __init__(self, run_dir: Path, first_round: int) -> None:
        self._round = first_round - 1
        with boundary("open the TensorBoard writer"):
            purge = first_round if first_round > 1 else None
            self._writer = _summary_writer()(str(run_dir / TENSORBOARD_DIR), purge_step=purge)

    def __call__(self, told: Mapping[str, Any], /) -> None:
        match decode(told):
            case RoundEnded() as ended:
                self._round = ended.round
                for name, value in flat(ended).items():
                    if name not in _NOT_SCALARS:
                        group, short = ("seconds", name[8:]) if name.startswith("seconds_") else ("train", name)
                        self._scalar(f"{group}/{short}", value, ended.at)
            case EvaluationEnded() as evaluation:
                for name in ("pass_rate", "mean_reward"):
                    self._scalar(f"eval/{evaluation.split}/{name}", getattr(evaluation, name), evaluation.at)

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()

    def _scalar(self, tag: str, value: float | None, at: float) -> None:
        if value is not None and math.isfinite(value):
            self._writer.add_scalar(tag, value, self._round, walltime=at)


TRACKERS: dict[str, Callable[[Path, int], Tracker]] = {"tensorboard": TensorBoard}
"""Name -> tracker of (run folder, first round of this process)."""


def _summary_writer() -> Any:
    # Optional and slow to import: only where a job asks for it.
    with _without_torch():
        try:
            return importlib.import_module("tensorboardX").SummaryWriter
        except ImportError as error:
            raise Usage(
                "trackers: tensorboard needs the package tensorboardX, which is not installed",
                fix="install it with `pip install 'huilu[trackers]'`, or take tensorboard out of `trackers`",
            ) from error


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """tensorboardX imports torch where it finds it, for tensors that this process never has; hide it meanwhile."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # importing it raises ImportError
    try:
        yield
    finally:
        del sys.modules["torch"]
