"""What the documents say is what the code does: settings, commands, errors, recipes, coverage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from huilu import errors
from huilu.cli.app import COMMANDS
from huilu.config import explain
from huilu.config.load import load_job
from huilu.docs import commands_page, errors_page
from huilu.envs.registry import find_kind
from huilu.telemetry import KILL_POINTS

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_parses_names_a_known_environment_and_contradicts_nothing(recipe: Path) -> None:
    job = load_job(recipe, [], {}).job
    for source in job.data.sources:
        find_kind(source.env)
    assert explain.checks(job) == []
    assert recipe.name in (ROOT / "docs" / "recipes.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_job_file_in_the_readme_is_the_quickstart(page: str, tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (tmp_path / "job.yaml").write_text(shown)
    assert load_job(tmp_path / "job.yaml", [], {}).job == load_job(ROOT / "recipes" / "quickstart.yaml", [], {}).job


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "docs/architecture.md", "docs/recipes.md"])
def test_every_command_a_page_shows_exists(page: str) -> None:
    shown = re.findall(r"`huilu ([a-z]+)(?: ([a-z]+))?", (ROOT / page).read_text())
    assert [words for words in shown if not {words[0], " ".join(words)} & set(COMMANDS)] == []


def test_the_page_of_settings_is_the_tree() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == explain.settings_table()


def test_the_page_of_commands_is_the_application() -> None:
    assert (ROOT / "docs" / "commands.md").read_text() == commands_page()


def test_the_page_of_errors_is_the_hierarchy() -> None:
    assert (ROOT / "docs" / "errors.md").read_text() == errors_page(errors.HuiluError)


def test_every_kill_point_is_named_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert [point for point in KILL_POINTS if point not in text] == []


def test_every_line_of_the_coverage_names_a_command_and_a_test_that_exist() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", (ROOT / "docs" / "coverage.md").read_text(), re.MULTILINE)[2:]
    assert len(rows) > 15
    for capability, command, tests in rows:
        for named in re.findall(r"`huilu ([a-z]+(?: [a-z]+)?)", command):
            assert named in COMMANDS or named.split()[0] in COMMANDS, (capability, named)
        paths = re.findall(r"`(tests/[^`]+)`", tests)
        assert paths, capability
        assert [path for path in paths if not (ROOT / path).exists()] == [], capability
