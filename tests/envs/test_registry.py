"""Environments by name: wrong names, keys and values, and third parties'."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from huilu import errors
from huilu.envs.registry import ENVIRONMENTS, build_environment, environment_names


def test_an_unknown_environment_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(errors.BadConfig, match="did you mean 'arithmetic'"):
        build_environment("arithmetics", {})


def test_an_unknown_setting_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(errors.BadConfig, match=r"no setting 'hi'.*expected one of high, low, ops"):
        build_environment("arithmetic", {"hi": 3})
    with pytest.raises(errors.BadConfig, match="did you mean 'timeout_s'"):
        build_environment("reasoning_gym", {"dataset": "chain_sum", "timeout": 3})


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("arithmetic", {"low": "one"}, r"Expected `int`, got `str` - at `\$.low`"),
        ("arithmetic", {"low": 3, "high": 2}, "low is 3 and high is 2"),
        ("arithmetic", {"ops": ["/"]}, "Invalid enum value '/'"),
        ("arithmetic", {"ops": []}, "length >= 1"),
        ("arithmetic", {"ops": ["+", "+"]}, "names one twice"),
        ("jsonl", {}, "missing required field `path`"),
        ("jsonl", {"path": "x", "judge": "a.py:f", "equality": "exact"}, "both `judge` and `equality`"),
        ("jsonl", {"path": "x", "judge_style": "trl"}, "`judge`, which is not set"),
        ("jsonl", {"path": "x", "tolerance": 0.1}, "only used by `equality: numeric`"),
        ("jsonl", {"path": "x", "judge": "no function"}, "matching regex"),
        ("code", {"instruction": "no place for it"}, "matching regex"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(name: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.BadConfig, match=said):
        build_environment(name, params)


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_every_setting_is_described_in_the_code_and_in_the_docs(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    section = page.split(f"## `{name}`")[1].split("\n## ")[0]
    hints = get_type_hints(ENVIRONMENTS[name].settings, include_extras=True)
    for field in msgspec.structs.fields(ENVIRONMENTS[name].settings):
        (meta,) = [arg for arg in get_args(hints[field.name])[1:] if isinstance(arg, msgspec.Meta)]
        assert meta.description
        assert re.search(rf"^\| `{field.encode_name}` \|", section, re.MULTILINE), field.name


def test_the_example_in_the_docs_runs_as_a_third_partys_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gold_failures: Any, judge: Any
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    (example,) = re.findall(r"```python title=\"letters\.py\"\n(.*?)```", page, re.DOTALL)
    (entry_point,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "letters.py").write_text(example)
    described = tmp_path / "letters-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: letters\nVersion: 1.0\n")
    name, value = re.findall(r'^(\w+) = "(.+)"$', entry_point, re.MULTILINE)[0]
    (described / "entry_points.txt").write_text(f"[huilu.envs]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert "letters" in environment_names()
    environment = build_environment("letters", {"words": ["banana", "kiwi"]})
    assert gold_failures(environment, 10) == []
    assert [made.reward for made in judge(environment, [(0, "3"), (0, "2"), (1, "1")])] == [1.0, 0.0, 0.0]
    with pytest.raises(errors.BadConfig, match="did you mean 'words'"):
        build_environment("letters", {"word": []})


def test_a_third_partys_environment_cannot_replace_one_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = tmp_path / "evil-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[huilu.envs]\narithmetic = nowhere:KIND\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(build_environment("arithmetic", {})) == 400


def test_an_environment_that_fails_to_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = tmp_path / "broken-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[huilu.envs]\nbroken = nowhere_at_all:KIND\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.ExtensionFailed, match="environment broken from nowhere_at_all:KIND"):
        build_environment("broken", {})
