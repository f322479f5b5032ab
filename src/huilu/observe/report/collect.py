"""The facts of a run from its folder: job, events and database, read and never written. Called by the CLI and assembly.

The database is opened read-only, so that a report can be made of a run that goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from huilu.bus import feedback
from huilu.core.nouns import PolicyVersion, Task
from huilu.errors import NotFound, from_os
from huilu.observe.journal import Journal, fold
from huilu.observe.report.facts import (
    EpisodeFacts,
    RunFacts,
    TaskFacts,
    VersionFacts,
    shown_episodes,
    within_budget,
)
from huilu.observe.report.page import render
from huilu.observe.runlog import read_events
from huilu.store import rows, schema
from huilu.store.database import read_now
from huilu.store.folder import RunFolder

_IDS_A_QUERY = 500
"""Ids in one `IN`, well under SQLite's limit of variables."""


def write_report(folder: RunFolder, now: float) -> Path:
    """Make the report of a run and write it to `report.html`, whole or not at all. Returns its path.

    Raises NotFound where the folder is no run, DiskFull or NotWritable where it cannot be written.
    """
    page = render(collect(folder, now)).encode("utf-8", "replace")
    beside = folder.report.with_suffix(".html.tmp")
    try:
        beside.write_bytes(page)
        beside.replace(folder.report)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise from_os(error, f"write {folder.report}") from error
    return folder.report


def collect(folder: RunFolder, now: float) -> RunFacts:
    """What the report shows of the run as it is now."""
    try:
        job = msgspec.json.decode(folder.job.read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        raise NotFound(
            f"{folder.path} is no run folder", expected="a folder with job.json", fix="huilu runs lists the runs"
        ) from error
    journal = fold(read_events(folder.events))
    if not folder.database.exists():
        return RunFacts(run_id=folder.id, job=job, journal=journal, written_at=now)
    return read_now(folder.database, lambda connection: _recorded(connection, folder.id, job, journal, now))


def _recorded(connection: Connection, run_id: str, job: dict[str, Any], journal: Journal, now: float) -> RunFacts:
    """Job and journal with what the database holds, all from one snapshot."""
    columns = select(schema.episodes.c.round, schema.episodes.c.id)
    by_round = [(row.round, row.id) for row in connection.execute(columns)]
    episodes = within_budget(_episodes(connection, shown_episodes(by_round)))
    return RunFacts(
        run_id=run_id,
        job=job,
        journal=journal,
        accounting=feedback.accounting(connection),
        versions=_versions(connection),
        releases=tuple(rows.history(connection)),
        tasks=_tasks(connection, {episode.task for episode in episodes}),
        episodes=episodes,
        num_episodes=len(by_round),
        written_at=now,
    )


def _episodes(connection: Connection, ids: list[str]) -> list[EpisodeFacts]:
    """These episodes, in order of round and id."""
    found = []
    for start in range(0, len(ids), _IDS_A_QUERY):
        wanted = schema.episodes.c.id.in_(ids[start : start + _IDS_A_QUERY])
        for row in connection.execute(select(schema.episodes.c.record, schema.episodes.c.round).where(wanted)):
            episode = feedback.decode(row.record, row.round)
            found.append(
                EpisodeFacts(
                    id=episode.id,
                    task=episode.task_id,
                    round=episode.round,
                    version=episode.version,
                    answer=episode.text,
                    outcome=episode.outcome,
                    finish_reason=episode.finish_reason,
                    num_tokens=episode.num_sampled,
                    reward=episode.reward,
                    note=episode.note,
                )
            )
    return sorted(found, key=lambda episode: (episode.round, episode.id))


def _tasks(connection: Connection, ids: set[str]) -> dict[str, TaskFacts]:
    wanted, found = sorted(ids), {}
    for start in range(0, len(wanted), _IDS_A_QUERY):
        chosen = schema.tasks.c.id.in_(wanted[start : start + _IDS_A_QUERY])
        for row in connection.execute(select(schema.tasks.c.record).where(chosen)):
            task = msgspec.msgpack.decode(row.record, type=Task)
            expected = "" if task.answer is None else str(task.answer)
            found[task.id] = TaskFacts(id=task.id, env=task.env, prompt=task.prompt, expected=expected)
    return found


def _versions(connection: Connection) -> tuple[VersionFacts, ...]:
    """Every version in order, those of lost lineages too."""
    table = schema.versions
    on_disk = {(saved.version.number, saved.version.lineage) for saved in rows.saved(connection)}
    return tuple(
        VersionFacts(
            version=PolicyVersion(
                number=row.number,
                lineage=row.lineage,
                parent=row.parent,
                round=row.round,
                digest=row.digest,
                claim_id=row.claim_id,
                healthy=row.healthy,
            ),
            superseded=row.superseded,
            is_kept=(row.number, row.lineage) in on_disk,
        )
        for row in connection.execute(select(table).order_by(table.c.number, table.c.lineage))
    )
