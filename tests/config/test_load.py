"""How a job is read: precedence, remembered sources, and one clear error for each kind of mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from huilu import errors
from huilu.config import tree
from huilu.config.load import load_job, resolve_secrets

MINIMAL = """
name: tiny
model: {path: somewhere}
data:
  sources:
    - env: arithmetic
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(MINIMAL)
    return path


def refused(path: Path, *sets: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(errors.BadConfig) as caught:
        load_job(path, list(sets), environ or {})
    return str(caught.value)


def written(job: Path, text: str) -> Path:
    job.write_text(MINIMAL + text)
    return job


def test_the_stronger_source_wins_and_is_remembered(job: Path) -> None:
    written(job, "rounds: 3\nseed: 5\n")
    loaded = load_job(job, ["rounds=9"], {"HUILU_ROUNDS": "7", "HUILU_SEED": "8", "PATH": "/bin"})
    assert (loaded.job.rounds, loaded.job.seed) == (9, 8)
    assert loaded.sources["rounds"] == "--set"
    assert loaded.sources["seed"] == "env HUILU_SEED"
    assert loaded.sources["name"] == "file"
    assert loaded.sources["rollout.temperature"] == "default"


def test_two_underscores_are_a_dot_and_reserved_variables_are_no_settings(job: Path) -> None:
    environ = {"HUILU_TRAIN__LEARNING_RATE": "1e-5", "HUILU_CACHE": "/somewhere"}
    assert load_job(job, [], environ).job.train.learning_rate == 1e-5


def test_an_algorithm_may_be_named_by_a_word(job: Path) -> None:
    written(job, "train: {algorithm: rloo}\n")
    assert isinstance(load_job(job, [], {}).job.train.algorithm, tree.Rloo)
    dapo = load_job(job, ["train.algorithm=dapo", "train.algorithm.clip_high=0.3"], {}).job.train.algorithm
    assert dapo == tree.Dapo(clip_high=0.3)


def test_places_in_lists_and_whole_objects_can_be_set(job: Path) -> None:
    loaded = load_job(job, ["data.sources.0.weight=2", "rollout.stop=['.', '!']"], {})
    assert loaded.job.data.sources[0].weight == 2.0
    assert loaded.job.rollout.stop == [".", "!"]


def test_numbers_are_numbers_and_words_are_words(job: Path) -> None:
    written(job, "rounds: 1_000\ntrain: {learning_rate: 1e-5}\nrollout: {stop: [on, no, 010, 12:30, 2026-01-01]}\n")
    loaded = load_job(job, [], {})
    assert loaded.job.rounds == 1000
    assert loaded.job.train.learning_rate == 1e-5
    assert loaded.job.rollout.stop == ["on", "no", "010", "12:30", "2026-01-01"]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("rollout.temprature=1", "did you mean 'temperature'"),
        ("trian.learning_rate=1", "did you mean 'train'"),
        ("data.sources.0.wieght=2", "did you mean 'weight'"),
        ("train.algorithm=grop", "did you mean 'grpo'"),
        ("train.algorithm={name: dapo, scale: none}", "dapo would ignore it; it is a setting of grpo"),
        ("rounds=0", "rounds is 0; expected `int` >= 1"),
        ("rollout.temperature=hot", "rollout.temperature is 'hot'"),
        ("data.sources.4.env=code", "expected a place from 0 to 0"),
        ("rounds=010", "rounds is '010'; expected `int`"),
        ("rounds=3.5", "rounds is 3.5; expected `int`"),
        ("train.learning_rate=1e999", "train.learning_rate is inf; expected a finite number"),
        ("train.learning_rate=.nan", "train.learning_rate is '.nan'; expected `float`"),
        ("rounds.deep=1", "expected"),
        ("rounds", "expected KEY=VALUE"),
        ("name='Not A Name'", "name is"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(setting: str, told: str, job: Path) -> None:
    assert told in refused(job, setting)


def test_an_unknown_variable_is_refused_with_the_nearest_setting(job: Path) -> None:
    assert "did you mean 'rounds'" in refused(job, environ={"HUILU_ROUNS": "3"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rounds: 3\nrounds: 4\n", "'rounds' stands twice"),
        ("rounds: [3\n", "line"),
        ("rounds:\n\t- 3\n", "line"),
    ],
)
def test_a_broken_file_is_named_with_its_line(text: str, told: str, job: Path) -> None:
    message = refused(written(job, text))
    assert told in message
    assert "line" in message


def test_a_file_that_is_no_mapping_no_text_or_not_there_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("- a list\n")
    assert "holds a list" in refused(path)
    path.write_text("")
    assert "holds nothing" in refused(path)
    path.write_bytes(b"name: \xff\n")
    assert "not UTF-8" in refused(path)
    with pytest.raises(errors.NotFound, match=r"missing\.yaml"):
        load_job(tmp_path / "missing.yaml", [], {})


def test_a_missing_section_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: tiny\ndata: {sources: [{env: arithmetic}]}\n")
    assert "model" in refused(path)


@pytest.mark.parametrize("literal", ["hunter2", "12345", "env:", "file"])
def test_a_literal_secret_is_refused_and_never_repeated(literal: str, job: Path) -> None:
    message = refused(written(job, f"secrets: {{TOKEN: '{literal}'}}\n"))
    assert "secrets.TOKEN" in message
    if literal.isalnum() and literal != "file":
        assert literal not in message


def test_secrets_come_from_where_their_reference_points(job: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("opensesame\n")
    key.chmod(0o600)
    written(job, f"secrets: {{A: 'env:MY_KEY', B: 'file:{key}'}}\n")
    loaded = load_job(job, [], {})
    assert resolve_secrets(loaded.job, {"MY_KEY": "s3"}) == {"A": "s3", "B": "opensesame"}
    with pytest.raises(errors.BadConfig, match="MY_KEY is not set"):
        resolve_secrets(loaded.job, {})
    key.chmod(0o644)
    with pytest.raises(errors.BadConfig, match="others may read") as caught:
        resolve_secrets(loaded.job, {"MY_KEY": "s3"})
    assert "opensesame" not in str(caught.value)
