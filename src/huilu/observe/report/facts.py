"""What the report shows of a run: plain records, filled by `collect` from the run's folder or by a test.

Called by `collect` and `page`; does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from huilu.core.nouns import Accounting, Message, Outcome, PolicyVersion
from huilu.observe.journal import Journal
from huilu.store.rows import Moved

MAX_EPISODES = 2000
MAX_TEXT_CHARS = 12_000_000
"""Episodes and characters of text that a report holds, at most: a file that a browser opens at once."""


class EpisodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One episode as the report lists it; `task` is the id of its `TaskFacts`."""

    id: str
    task: str
    round: int
    version: int
    answer: str
    outcome: Outcome
    finish_reason: str
    num_tokens: int
    reward: float | None = None
    note: str = ""


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked; `expected` is the answer of the data set as text, where there is one."""

    id: str
    env: str
    prompt: tuple[Message, ...]
    expected: str = ""


class VersionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A version; `superseded` when its lineage was lost, `is_kept` when its weights are on disk."""

    version: PolicyVersion
    superseded: bool = False
    is_kept: bool = False


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `job` is the resolved job file; `num_episodes` counts all of them, `episodes` are those shown."""

    run_id: str
    job: dict[str, Any]
    journal: Journal
    written_at: float
    accounting: Accounting = Accounting()
    versions: tuple[VersionFacts, ...] = ()
    releases: tuple[Moved, ...] = ()
    tasks: dict[str, TaskFacts] = {}
    episodes: tuple[EpisodeFacts, ...] = ()
    num_episodes: int = 0


def shown_episodes(by_round: Iterable[tuple[int, str]], limit: int = MAX_EPISODES) -> list[str]:
    """The ids to show of (round, id) pairs: all up to `limit`; else half of it the newest, half an even share of the
    other rounds, each round's first ones. In order of round and id.
    """
    pairs = sorted(by_round)
    if len(pairs) <= limit:
        return [id_ for _, id_ in pairs]
    newest = pairs[len(pairs) - (limit - limit // 2) :]
    older: dict[int, list[tuple[int, str]]] = {}
    for pair in pairs[: len(pairs) - len(newest)]:
        older.setdefault(pair[0], []).append(pair)
    chosen = _even_share(list(older.values()), limit // 2)
    return [id_ for _, id_ in sorted([*chosen, *newest])]


def within_budget(episodes: Sequence[EpisodeFacts], max_chars: int = MAX_TEXT_CHARS) -> tuple[EpisodeFacts, ...]:
    """The newest episodes whose answers fit the budget together, in their order."""
    kept: list[EpisodeFacts] = []
    for episode in reversed(episodes):
        max_chars -= len(episode.answer)
        if max_chars < 0:
            break
        kept.append(episode)
    return tuple(reversed(kept))


def _even_share(rounds: list[list[tuple[int, str]]], limit: int) -> list[tuple[int, str]]:
    """As many first entries of every round as fit; where not even one each fits, one of evenly spaced rounds."""
    if len(rounds) > limit:
        return [rounds[i * len(rounds) // limit][0] for i in range(limit)]
    share, chosen = max(1, limit // max(1, len(rounds))), []
    for entries in rounds:
        chosen += entries[:share]
    return chosen
