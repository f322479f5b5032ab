"""How a job is read: defaults < job file < environment (`HUILU_…`) < `--set`; each value's source is remembered.

Called by the CLI. Refuses unknown keys with the nearest right one, and a secret that is not a reference without
repeating it. Reads nothing but the job file and the environment it is given.
"""

from __future__ import annotations

import math
import re
import stat
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from huilu import errors
from huilu.config.tree import Job

PREFIX = "HUILU_"
RESERVED = ("HUILU_CACHE", "HUILU_KILL_AT")
"""Variables of ours that are no settings."""
HIDDEN = "…"
SURPRISING = ("bool", "float", "int", "timestamp")
"""Kinds of YAML 1.1 words that are read by narrower rules here: there, `no` is false, 010 is 8 and 12:30 is 750."""


class Loaded(NamedTuple):
    """A job and where each of its values came from, by dotted key."""

    job: Job
    sources: dict[str, str]


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: `1e-5` is a number, `no`, `010` and `12:30` are words, a key twice is an error."""


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node)
        if key in found:
            raise errors.BadConfig(f"{_place(key_node.start_mark)}: {key!r} stands twice", expected="each key once")
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag.removeprefix("tag:yaml.org,2002:") not in SURPRISING]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false|True|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|\d+[eE][-+]?\d+)$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))


def load_job(path: Path, sets: list[str], environ: Mapping[str, str]) -> Loaded:
    """The job of a file, with what the environment and `--set` change. Raises BadConfig, NotFound."""
    values = read_yaml(path)
    sources = {key: "file" for key, _ in leaves(values)}
    for variable, text in sorted(environ.items()):
        if variable.startswith(PREFIX) and variable not in RESERVED:
            key = _key_of(variable)
            _put(values, key, _parse(text, variable), variable)
            sources |= _told(key, values, f"env {variable}")
    for setting in sets:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise errors.BadConfig(f"--set {key}", expected="KEY=VALUE, as in train.learning_rate=1e-5")
        _put(values, key, _parse(text, f"--set {key}"), f"--set {key}")
        sources |= _told(key, values, "--set")
    job = convert(values, str(path))
    return Loaded(job, {key: sources.get(key, "default") for key, _ in leaves(msgspec.to_builtins(job))})


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, or one clear error."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError as error:
        raise errors.NotFound(f"no job file at {path}", fix="recipes/ has examples") from error
    except UnicodeDecodeError as error:
        raise errors.BadConfig(f"{path}: byte {error.start} is not UTF-8", expected="a UTF-8 file") from error
    except OSError as error:
        raise errors.from_os(error, f"reading {path}") from error
    try:
        values = yaml.load(text, _Loader)  # noqa: S506 - a safe loader's child
    except yaml.MarkedYAMLError as error:
        raise errors.BadConfig(f"{path}{_place(error.problem_mark)}: {error.problem}", expected="YAML") from error
    except yaml.YAMLError as error:
        raise errors.BadConfig(f"{path}: {error}", expected="YAML") from error
    except errors.BadConfig as error:
        raise errors.BadConfig(f"{path}{error.observed}", expected=error.expected) from error
    if not isinstance(values, dict):
        raise errors.BadConfig(f"{path} holds {_kind(values)}", expected="a mapping of settings; recipes/ has examples")
    return values


def convert(values: dict[str, Any], what: str) -> Job:
    """Plain values as a job. `algorithm: dapo` stands for `algorithm: {name: dapo}`."""
    train = values.get("train")
    if isinstance(train, dict) and isinstance(train.get("algorithm"), str):
        train["algorithm"] = {"name": train["algorithm"]}
    _refuse_literal_secrets(values.get("secrets"), what)
    _refuse_unknown(values, Job, what)
    _refuse_infinite(values, what)
    try:
        return msgspec.convert(values, Job, strict=True)
    except msgspec.ValidationError as error:
        message, _, key = str(error).partition(" - at `$.")
        raise errors.BadConfig(
            f"{what}: {key.rstrip('`') or 'the job'} is {_seen(values, key.rstrip('`'))}",
            expected=message.removeprefix("Expected ").replace("Object missing required field", "it to have"),
            fix="huilu config schema, or docs/settings.md, lists every setting",
        ) from error


def resolve_secrets(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """The values of a job's secrets. Raises BadConfig naming the reference, never a value."""
    return {name: _secret(name, reference, environ) for name, reference in job.secrets.items()}


def _secret(name: str, reference: str, environ: Mapping[str, str]) -> str:
    kind, _, place = reference.partition(":")
    if kind == "env":
        if place not in environ:
            raise errors.BadConfig(f"secrets.{name}: {place} is not set", expected=f"the environment variable {place}")
        return environ[place]
    path = Path(place).expanduser()
    try:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise errors.BadConfig(
                f"secrets.{name}: others may read {path}", expected="mode 0600", fix=f"chmod 600 {path}"
            )
        return path.read_text().strip()
    except OSError as error:
        raise errors.BadConfig(f"secrets.{name}: {path}: {error.strerror}", expected="a readable file") from error


def _refuse_literal_secrets(secrets: Any, what: str) -> None:
    for name, reference in secrets.items() if isinstance(secrets, dict) else ():
        if not isinstance(reference, str) or not re.match(r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$", reference):
            raise errors.BadConfig(
                f"{what}: secrets.{name} is not a reference",
                expected="env:NAME or file:PATH, never the secret itself",
                fix="take the value out of the file and change the secret: it may have been seen",
            )


def _refuse_infinite(values: dict[str, Any], what: str) -> None:
    """Raise BadConfig for 1e999 and the like: JSON has no word for them, so that job.json could not hold the job."""
    for key, value in leaves(values):
        if isinstance(value, float) and not math.isfinite(value):
            raise errors.BadConfig(f"{what}: {key} is {value}", expected="a finite number")


def _key_of(variable: str) -> str:
    """HUILU_TRAIN__LEARNING_RATE -> train.learning_rate."""
    return variable.removeprefix(PREFIX).lower().replace("__", ".")


def _parse(text: str, what: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader's child
    except yaml.YAMLError as error:
        raise errors.BadConfig(f"{what}: {text!r} is no value", expected="a YAML value") from error


def _put(values: dict[str, Any], key: str, value: Any, what: str) -> None:
    """Set a dotted key; a number is a place in a list."""
    here: Any = values
    *parents, last = key.split(".")
    for name in parents:
        if isinstance(here, list):
            here = here[_place_in(here, name, what)]
        elif isinstance(here, dict):
            if isinstance(here.get(name), str) and name == "algorithm":
                here[name] = {"name": here[name]}
            here = here.setdefault(name, {})
        else:
            raise errors.BadConfig(f"{what}: {name!r} is inside a plain value", expected="a section")
    if isinstance(here, list):
        here[_place_in(here, last, what)] = value
    elif isinstance(here, dict):
        here[last] = value
    else:
        raise errors.BadConfig(f"{what}: {last!r} is inside a plain value", expected="a section")


def _place_in(values: list[Any], name: str, what: str) -> int:
    if not name.isdigit() or int(name) >= len(values):
        raise errors.BadConfig(f"{what}: {name!r}", expected=f"a place from 0 to {len(values) - 1}")
    return int(name)


def _told(key: str, values: dict[str, Any], source: str) -> dict[str, str]:
    """The source of a key and of everything below it."""
    here: Any = values
    for name in key.split("."):
        here = here[int(name)] if isinstance(here, list) else here[name]
    return {f"{key}.{below}".rstrip("."): source for below, _ in leaves(here)}


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value below, with its dotted key; an empty collection is a value."""
    if isinstance(value, dict) and value:
        items: Any = value.items()
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        items = enumerate(value)
    else:
        yield prefix, value
        return
    for key, below in items:
        yield from leaves(below, f"{prefix}.{key}" if prefix else str(key))


def _refuse_unknown(values: Any, kind: Any, what: str, prefix: str = "") -> None:
    """Raise BadConfig at the first key that no section has, with the nearest that one has."""
    section = _section(kind, values)
    _refuse_unknown_name(values, kind, what, prefix)
    if isinstance(values, list):
        for place, item in enumerate(values):
            _refuse_unknown(item, _item(kind), what, f"{prefix}{place}.")
    if section is None or not isinstance(values, dict):
        return
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    tag = section.__struct_config__.tag_field
    for key, value in values.items():
        if key == tag:
            continue
        if key not in fields:
            elsewhere = _elsewhere(key, kind, section)
            raise errors.BadConfig(
                f"{what}: no setting is called {prefix}{key}",
                expected=f"one of {', '.join(sorted(fields))}",
                fix=elsewhere or errors.nearest(str(key), fields),
            )
        _refuse_unknown(value, fields[key], what, f"{prefix}{key}.")


def _refuse_unknown_name(values: Any, kind: Any, what: str, prefix: str) -> None:
    """Raise BadConfig when one of several sections must be named and the name is none of theirs."""
    known = {str(one.__struct_config__.tag): one.__struct_config__.tag_field for one in sections(kind)}
    if len(known) > 1 and isinstance(values, dict):
        tag = next(iter(known.values())) or ""
        if values.get(tag) not in known:
            raise errors.BadConfig(
                f"{what}: {prefix}{tag} is {values.get(tag)!r}",
                expected=f"one of {', '.join(sorted(known))}",
                fix=errors.nearest(str(values.get(tag)), known),
            )


def sections(kind: Any) -> list[type[msgspec.Struct]]:
    """The sections that a type may be."""
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    if typing.get_origin(kind) in (typing.Union, types.UnionType, list):
        return [section for arm in typing.get_args(kind) for section in sections(arm)]
    return [kind] if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else []


def _section(kind: Any, values: Any) -> type[msgspec.Struct] | None:
    """The section that these values are for: of several, the one that they name."""
    found = sections(kind)
    if len(found) > 1 and isinstance(values, dict):
        found = [one for one in found if one.__struct_config__.tag == values.get(one.__struct_config__.tag_field or "")]
    return found[0] if len(found) == 1 else None


def _item(kind: Any) -> Any:
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    return (typing.get_args(kind) or (Any,))[0]


def _elsewhere(key: str, kind: Any, section: type[msgspec.Struct]) -> str:
    """Whether a sister section has the key: this one would ignore it."""
    sisters = [
        str(one.__struct_config__.tag)
        for one in sections(kind)
        if one is not section and key in {field.encode_name for field in msgspec.structs.fields(one)}
    ]
    name = section.__struct_config__.tag
    return f"{name} would ignore it; it is a setting of {', '.join(sisters)}" if sisters else ""


def _seen(values: Any, key: str) -> str:
    """What stands at a key that msgspec complained about, shortened; never a secret."""
    if key.startswith("secrets"):
        return HIDDEN
    here = values
    for name in re.findall(r"[^.\[\]]+", key):
        try:
            here = here[int(name)] if isinstance(here, list) else here[name]
        except (KeyError, IndexError, ValueError, TypeError):
            return "wrong"
    text = repr(here)
    return text if len(text) <= 80 else text[:77] + "..."


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _place(mark: Any) -> str:
    return "" if mark is None else f", line {mark.line + 1}"
