"""What a job's settings are, mean and imply: for `huilu config`, the docs and editors. Pure."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from huilu.config import tree
from huilu.config.load import Loaded, leaves, sections

SCHEMA_TITLE = "Huilu job"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a job: its value, the value as text, and where it came from."""

    key: str
    value: Any
    text: str
    source: str


def show(loaded: Loaded) -> list[Row]:
    """Every setting of a job, in the order of the tree."""
    return [
        Row(key=key, value=value, text=msgspec.json.encode(value).decode(), source=loaded.sources.get(key, "default"))
        for key, value in leaves(msgspec.to_builtins(loaded.job))
    ]


def schema() -> dict[str, Any]:
    """The JSON Schema of a job file."""
    return {"title": SCHEMA_TITLE, **msgspec.json.schema(tree.Job)}


def settings_table() -> str:
    """Every setting as a Markdown page: key, type, default, bounds and meaning."""
    lines = [
        "# Settings",
        "",
        "Every key of a job file. Made from `src/huilu/config/tree.py` by `huilu.config.explain.settings_table`; a",
        "test keeps the two equal. Sources, weakest first: default, job file, `HUILU_SECTION__KEY`, `--set KEY=VALUE`.",
        "",
        "| key | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{key}` | {kind} | {default} | {meaning} |" for key, kind, default, meaning in _settings(tree.Job, "")
    ]
    return "\n".join(lines) + "\n"


def checks(job: tree.Job) -> list[str]:
    """What would be ignored, or contradicts itself, in plain sentences; none when all is well."""
    algorithm, rollout = job.train.algorithm, job.rollout
    groups = rollout.tasks_per_round * job.feedback.every
    found = []
    if rollout.max_lag > 0:
        found.append(
            f"rollout.max_lag {rollout.max_lag}: engine and learner share weights here, so rollouts are "
            "prefetched between updates and do not overlap them"
        )
    if isinstance(algorithm, tree.Dapo) and algorithm.dynamic_sampling and rollout.max_draws == 0:
        found.append("train.algorithm.dynamic_sampling drops groups, and rollout.max_draws 0 draws none in their place")
    if isinstance(algorithm, tree.Dapo) and algorithm.overlong_buffer >= rollout.max_new_tokens:
        found.append("train.algorithm.overlong_buffer is not below rollout.max_new_tokens: every answer is penalised")
    if rollout.max_draws > 0 and not (isinstance(algorithm, tree.Dapo) and algorithm.dynamic_sampling):
        found.append("rollout.max_draws replaces only dead tasks: this algorithm filters no groups")
    if algorithm.minibatches > groups:
        found.append(f"train.algorithm.minibatches {algorithm.minibatches} is more than the {groups} groups of a claim")
    if rollout.episodes_per_task == 1 and not isinstance(algorithm, tree.ReinforcePlusPlus):
        found.append("rollout.episodes_per_task 1 leaves a group nothing to compare with: every advantage is 0")
    if job.train.warmup_steps >= job.rounds * algorithm.minibatches * algorithm.epochs:
        found.append("train.warmup_steps is not below the number of optimiser steps: the peak rate is never reached")
    if job.store.save_every is not None and job.store.save_every > job.rounds:
        found.append(
            f"store.save_every {job.store.save_every} is more than the {job.rounds} rounds: only the end is saved"
        )
    if job.eval.every > job.rounds:
        found.append(f"eval.every {job.eval.every} is more than the {job.rounds} rounds: only the end is evaluated")
    return found


def _settings(kind: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for field in msgspec.structs.fields(kind):
        key = prefix + field.encode_name
        below = sections(field.type)
        if below:
            for section in below:
                tag = section.__struct_config__.tag
                yield from _settings(section, f"{key}{'' if tag is None else f'<{tag}>'}{_list_mark(field.type)}.")
        else:
            yield key, _type(field.type), _default(field), _meaning(field.type)


def _list_mark(kind: Any) -> str:
    return "[]" if typing.get_origin(_bare(kind)) is list else ""


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _metas(kind: Any) -> list[msgspec.Meta]:
    """Every note on a type, those inside first."""
    if typing.get_origin(kind) is typing.Annotated:
        inner, *metas = typing.get_args(kind)
        return [*_metas(inner), *(meta for meta in metas if isinstance(meta, msgspec.Meta))]
    return [meta for arm in typing.get_args(kind) for meta in _metas(arm)]


def _type(kind: Any) -> str:
    bounds = [
        f"{sign} {getattr(meta, name):g}"
        for meta in _metas(kind)
        for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if getattr(meta, name) is not None
    ]
    return " ".join([_name(kind), *bounds])


def _name(kind: Any) -> str:
    kind = _bare(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " \\| ".join(f"`{arg}`" for arg in args)
    if args and origin in (list, tuple, dict):
        return f"{origin.__name__} of {', '.join(_name(arg) for arg in args)}"
    if args:
        return " or ".join("null" if arg is type(None) else _name(arg) for arg in args)
    return str(getattr(kind, "__name__", kind))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return f"`{msgspec.json.encode(field.default).decode()}`"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{msgspec.json.encode(field.default_factory()).decode()}`"
    return "required"


def _meaning(kind: Any) -> str:
    return next((meta.description for meta in reversed(_metas(kind)) if meta.description), "")
