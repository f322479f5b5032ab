"""The recipes' data: every recipe's sources can be built, split and told right from wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from huilu.config.tree import Job
from huilu.core.ports import Environment
from huilu.envs.registry import build_environment
from huilu.envs.report import report_sources
from huilu.envs.sources import split_sources

RECIPES = Path(__file__).parents[2] / "recipes"
SHIPPED = ("code_repair", "humaneval", "jsonl", "quickstart", "reasoning_gym")


def build(env: str, params: dict[str, Any]) -> Environment:
    return build_environment(env, params, RECIPES)


@pytest.mark.parametrize("recipe", SHIPPED)
def test_a_recipes_sources_are_clean_and_its_answers_pass(recipe: str, gold_failures: Any) -> None:
    job = msgspec.convert(yaml.safe_load((RECIPES / f"{recipe}.yaml").read_text()), Job)
    sources = split_sources(job.data, build)
    for source, report in zip(sources, report_sources(sources), strict=True):
        assert report.num_holdout >= job.eval.num_tasks
        assert report.num_without_gold == 0
        assert report.num_leaked <= report.num_holdout / 10
        assert gold_failures(source.environment, 3) == []
