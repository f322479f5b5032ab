"""The events that a run tells through `Telemetry.event`, as typed records; the one place that names their fields.

Told by loop, release and assembly (`tell`), read by every sink of this room (`decode`). Tellers that may not
import this room call `telemetry.event(name, **fields)` with these same names.

| event      | told when                                                                  | record            |
|------------|----------------------------------------------------------------------------|-------------------|
| stage      | the run starts to do something else; a process begins with `preflight`      | `StageBegan`      |
| progress   | a long stage got further                                                   | `ProgressMade`    |
| round      | a round's version is recorded and served                                   | `RoundEnded`      |
| evaluation | an evaluation on held-out tasks is complete                                | `EvaluationEnded` |
| verdict    | the gate has judged a version                                              | `VerdictGiven`    |
| release    | a release pointer has moved                                                | `ReleaseMoved`    |
| warning    | something is off, and the run goes on                                      | `WarningGiven`    |
| error      | the run ends because of it                                                 | `ErrorRaised`     |

Events of other names are for `events.jsonl` alone. A number that is not finite travels as NaN and is read back
from a file as None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from huilu.errors import Invariant
from huilu.telemetry import Telemetry

StageName = Literal["preflight", "load", "evaluate", "round", "save", "gate", "done"]


class Told(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """What every event has: when, in seconds since 1970."""

    at: float = 0.0


class StageBegan(Told, frozen=True, tag="stage"):
    """`number` of `total` where the stage is one of several (round 3 of 14); `detail` is a word for the user."""

    name: StageName
    detail: str = ""
    number: int | None = None
    total: int | None = None


class ProgressMade(Told, frozen=True, tag="progress"):
    """`done` of `total` things called `name` (episodes, tasks, tensors); `total` 0 when it is not known."""

    name: str
    done: int
    total: int


class RoundEnded(Told, frozen=True, tag="round"):
    """One turn of the loop. Means are over the round's episodes; None where there was nothing to average.

    `kl_start` is KL to the weights the run started from and `entropy` that of the next token, both in nats a
    token. `zero_variance` is the share of groups with equal rewards, `truncated_frac` the share of episodes cut
    at the limit, `staleness` the mean number of versions a sample was behind. `seconds` is wall time by phase
    (rollout, train, record, save, sync). `prompt_tokens` counts every episode's prompt, `cached_tokens` those of
    them whose KV was found in the cache.
    """

    round: int
    rounds: int
    reward_mean: float | None = None
    pass_rate: float | None = None
    loss: float | None = None
    kl_start: float | None = None
    entropy: float | None = None
    response_tokens: float | None = None
    truncated_frac: float | None = None
    zero_variance: float | None = None
    episodes: int = 0
    generated_tokens: int = 0
    trained_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: dict[str, float] = {}
    generated_tokens_per_s: float | None = None
    staleness: float | None = None
    version: int | None = None
    digest: str = ""


class EvaluationEnded(Told, frozen=True, tag="evaluation"):
    """One evaluation of a version on the held-out tasks of `split`."""

    split: str
    version: int
    pass_rate: float
    mean_reward: float
    num_tasks: int
    seconds: float = 0.0


class VerdictGiven(Told, frozen=True, tag="verdict"):
    """The gate's word on a version, with its reasons in plain words."""

    version: int
    promote: bool
    reasons: tuple[str, ...] = ()
    evidence: dict[str, float | None] = {}


class ReleaseMoved(Told, frozen=True, tag="release"):
    """A release pointer (`candidate`, `production`, `previous`) now names this version."""

    name: str
    version: int
    digest: str = ""


class WarningGiven(Told, frozen=True, tag="warning"):
    """Something is off, and the run goes on."""

    message: str
    code: str = ""


class ErrorRaised(Told, frozen=True, tag="error"):
    """The run ends because of it. `code`, `message` and `fix` are those of the error in `huilu.errors`."""

    message: str
    code: str = ""
    fix: str = ""


Event = (
    StageBegan | ProgressMade | RoundEnded | EvaluationEnded | VerdictGiven | ReleaseMoved | WarningGiven | ErrorRaised
)

EVENTS = frozenset({"stage", "progress", "round", "evaluation", "verdict", "release", "warning", "error"})


def tell(telemetry: Telemetry, event: Event) -> None:
    """Tell an event; its time is telemetry's own."""
    fields = msgspec.structs.asdict(event)
    fields.pop("at")
    telemetry.event(str(type(event).__struct_config__.tag), **fields)


def decode(told: Mapping[str, Any]) -> Event | None:
    """The record of what a sink was given or a log line holds; None for events of other names.

    Raises Invariant for a known event with wrong fields: its teller has a bug.
    """
    if told.get("event") not in EVENTS:
        return None
    try:
        event: Event = msgspec.convert(told, type=Event)
        return event
    except msgspec.ValidationError as error:
        raise Invariant(f"event {told.get('event')!r}: {error}", expected="the fields of observe/events.py") from error
