"""The saved state: it resumes bit for bit, and whatever is wrong with a file is named."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from huilu.config.tree import Dapo
from huilu.errors import BadWeights, DiskFull, TrainingUnhealthy
from huilu.model import hf
from huilu.telemetry import Telemetry
from huilu.train.state import Header, read_state, write_state


def saved(tiny: Any, folder: Path, steps: int, dtype: torch.dtype = torch.float32) -> Any:
    """A learner after some steps, saved into `folder`."""
    decoder = tiny.decoder(dtype=dtype)
    learner = tiny.learner(decoder, Dapo(minibatches=2), lr_schedule="cosine")
    for seed in range(steps):
        learner.step(tiny.random_claim(seed))
    hf.export(decoder, folder / "weights")
    learner.save_state(folder / "state")
    return learner


def resumed(tiny: Any, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A fresh learner, in a decoder of other weights, that goes on from what was saved."""
    decoder = tiny.decoder(seed=9, dtype=dtype)
    learner = tiny.learner(decoder, Dapo(minibatches=2), lr_schedule="cosine")
    hf.load_weights(decoder, folder / "weights")
    learner.load_state(folder / "state")
    return learner


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_resumed_learner_makes_the_same_weights_bit_for_bit(
    tiny: Any, tmp_path: Path, steps: int, dtype: torch.dtype
) -> None:
    straight = saved(tiny, tmp_path, steps, dtype)
    again = resumed(tiny, tmp_path, dtype)
    for seed in range(steps, 5):
        first, second = straight.step(tiny.random_claim(seed)), again.step(tiny.random_claim(seed))
        assert first.metrics == second.metrics
        assert straight.digest() == again.digest()
    assert straight.drift() == again.drift()


def test_saving_changes_nothing(tiny: Any, tmp_path: Path) -> None:
    learner, other = saved(tiny, tmp_path, 2), tiny.learner(tiny.decoder(), Dapo(minibatches=2), lr_schedule="cosine")
    for seed in range(3):
        other.step(tiny.random_claim(seed))
    learner.step(tiny.random_claim(2))
    assert learner.digest() == other.digest()


def test_the_state_has_eight_bytes_a_parameter(tiny: Any, tmp_path: Path) -> None:
    saved(tiny, tmp_path, 1)
    num_parameters = sum(parameter.numel() for parameter in tiny.decoder().parameters())
    _, tensors = read_state(tmp_path / "state")
    probe = tensors.pop("probe")
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) == 8 * num_parameters
    assert probe.shape[1] == tiny.spec.vocab_size


def test_sick_steps_in_a_row_are_counted_across_a_resume(tiny: Any, tmp_path: Path) -> None:
    poisoned = tiny.claim(
        [
            tiny.episode([1, 2], [5, 6], 1.0, logprobs=[math.nan, -1.0]),
            tiny.episode([1, 2], [7, 8], 0.0),
        ]
    )
    decoder, other = tiny.decoder(), tiny.decoder()
    learner, again = tiny.learner(decoder, max_nonfinite=2), tiny.learner(other, max_nonfinite=2)
    learner.step(poisoned)
    learner.save_state(tmp_path / "state")
    again.load_state(tmp_path / "state")
    with pytest.raises(TrainingUnhealthy):
        again.step(poisoned)


def test_random_state_is_restored(tiny: Any, tmp_path: Path) -> None:
    saved(tiny, tmp_path, 1)
    expected = torch.rand(3)
    torch.manual_seed(0)
    resumed(tiny, tmp_path)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("kept_frac", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_state_is_refused(tiny: Any, tmp_path: Path, kept_frac: float) -> None:
    saved(tiny, tmp_path, 1)
    path = tmp_path / "state"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept_frac)])
    with pytest.raises(BadWeights):
        resumed(tiny, tmp_path)


@pytest.mark.parametrize("place", ["header", "tensors"])
def test_a_flipped_bit_is_refused(tiny: Any, tmp_path: Path, place: str) -> None:
    saved(tiny, tmp_path, 1)
    path = tmp_path / "state"
    content = bytearray(path.read_bytes())
    index = content.index(b'"header": "') + 40 if place == "header" else len(content) - 100
    content[index] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(BadWeights, match="digest"):
        resumed(tiny, tmp_path)


def test_a_missing_state_is_refused(tiny: Any, tmp_path: Path) -> None:
    saved(tiny, tmp_path, 1)
    (tmp_path / "state").unlink()
    with pytest.raises(BadWeights):
        resumed(tiny, tmp_path)


def test_weights_are_no_state(tiny: Any, tmp_path: Path) -> None:
    learner = saved(tiny, tmp_path, 1)
    with pytest.raises(BadWeights, match="no learner's state"):
        learner.load_state(tmp_path / "weights" / "model.safetensors")


def test_a_state_of_other_weights_is_refused(tiny: Any, tmp_path: Path) -> None:
    saved(tiny, tmp_path, 1)
    with pytest.raises(BadWeights, match="belongs to the weights"):
        tiny.learner(tiny.decoder(seed=5)).load_state(tmp_path / "state")


def test_a_full_disk_is_named_and_leaves_the_old_state(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = saved(tiny, tmp_path, 1)
    before = (tmp_path / "state").read_bytes()
    learner.step(tiny.random_claim(1))

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(DiskFull):
        learner.save_state(tmp_path / "state")
    assert (tmp_path / "state").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "weights"]


def test_a_save_that_stops_half_way_leaves_the_old_state(tmp_path: Path) -> None:
    header = Header(weights_digest="", tensors_digest="", num_steps=0, num_nonfinite=0, random_state=b"", probe=[])
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def stop() -> None:
        (temporary,) = [path for path in tmp_path.iterdir() if path.name != "state"]
        assert temporary.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_state(path, header, {"a": torch.zeros(4), "b": torch.ones(2, 3)}, stop)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert path.read_bytes() == b"old"


def test_saving_says_how_large_it_was(tiny: Any, tmp_path: Path) -> None:
    telemetry = Telemetry()
    learner = tiny.learner(tiny.decoder(), telemetry=telemetry)
    num_bytes = learner.save_state(tmp_path / "state")
    assert telemetry.value("huilu_checkpoint_bytes") == num_bytes == (tmp_path / "state").stat().st_size


def test_a_restarted_optimizer_forgets_its_moments(tiny: Any) -> None:
    decoder, other = tiny.decoder(), tiny.decoder()
    learner, fresh = tiny.learner(decoder), tiny.learner(other)
    learner.step(tiny.random_claim(0))
    learner.restart_optimizer()
    other.load_state_dict(decoder.state_dict())
    learner.step(tiny.random_claim(1))
    fresh.step(tiny.random_claim(1))
    assert learner.digest() == fresh.digest()
