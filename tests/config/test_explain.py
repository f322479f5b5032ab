"""What a job's settings imply: rows with sources, the schema, and contradictions in plain sentences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from huilu.config import explain, tree
from huilu.config.load import Loaded

BASE = tree.Job(
    name="tiny", model=tree.Model(path="m"), data=tree.Data(sources=[tree.Tasks(env="arithmetic")]), rounds=10
)


def changed(**sections: Any) -> tree.Job:
    return msgspec.structs.replace(BASE, **sections)


def test_a_sound_job_has_nothing_to_be_told() -> None:
    assert explain.checks(BASE) == []


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (changed(rollout=tree.Rollout(max_lag=1)), "prefetched"),
        (changed(train=tree.Train(algorithm=tree.Dapo())), "draws none in their place"),
        (changed(rollout=tree.Rollout(max_draws=4)), "filters no groups"),
        (changed(rollout=tree.Rollout(episodes_per_task=1)), "nothing to compare with"),
        (changed(train=tree.Train(algorithm=tree.Grpo(minibatches=99))), "more than the 8 groups"),
        (changed(train=tree.Train(warmup_steps=10)), "never reached"),
        (changed(store=tree.Store(save_every=11)), "only the end is saved"),
        (changed(eval=tree.Eval(every=11)), "only the end is evaluated"),
    ],
)
def test_a_contradiction_is_told_in_a_sentence(job: tree.Job, told: str) -> None:
    (sentence,) = explain.checks(job)
    assert told in sentence


def test_every_setting_is_shown_with_its_source() -> None:
    rows = {row.key: row for row in explain.show(Loaded(BASE, {"rounds": "file"}))}
    assert rows["rounds"].value == 10
    assert rows["rounds"].source == "file"
    assert rows["train.algorithm.name"].text == '"grpo"'


def test_the_schema_knows_every_section() -> None:
    schema = explain.schema()
    assert schema["title"] == explain.SCHEMA_TITLE
    assert set(schema["$defs"]) >= {"Rollout", "Train", "Grpo", "Dapo", "Gate"}
