"""The control process of a run: job file to wired parts, in the order in which they may start.

Called by the CLI; the only file that names the concrete parts of the loop. Imports no torch: the model is a process
of its own.

    lock -> database -> tools, model process -> preflight -> restore -> evaluate -> loop -> release -> report
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from huilu import errors, loop
from huilu.assembly.tools import Toolbox, open_tools
from huilu.bus import feedback
from huilu.bus.integrity import check_integrity
from huilu.checks import preflight
from huilu.checks.result import Check, refuse_failures
from huilu.config import tree
from huilu.config.load import resolve_secrets
from huilu.core import ids
from huilu.core.nouns import Evaluation, PolicyVersion
from huilu.envs.registry import build_environment
from huilu.envs.sources import Sources
from huilu.observe.book import RoundBook
from huilu.observe.journal import fold
from huilu.observe.report import write_report
from huilu.observe.runlog import JsonLines, event_log, metrics_log, read_events, without
from huilu.observe.summary import Summary, summary
from huilu.observe.trackers import TRACKERS
from huilu.release.chain import Chain, Pace
from huilu.release.gate import HeldOutGate
from huilu.release.releases import Pointers
from huilu.serving import protocol
from huilu.serving.client import ModelClient
from huilu.store import lock, rows
from huilu.store.database import Database, read_now
from huilu.store.files import HELD_OUT, Files
from huilu.store.folder import RunFolder
from huilu.telemetry import Sink, Telemetry
from huilu.text.chat import Chat
from huilu.text.tokenizer import Tokenizer
from huilu.work.evaluation import evaluate
from huilu.work.flow import Flow, Plan
from huilu.work.queue import Queue
from huilu.work.rollouts import Attempts, GroupRollouts, Style

BYTES_A_PARAMETER = 12
"""Of a saved state: weights 4, Adam's moments 8."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What is open while a run goes on."""

    job: tree.Job
    folder: RunFolder
    telemetry: Telemetry
    database: Database
    sources: Sources
    tools: Toolbox
    model: ModelClient
    info: protocol.ModelInfo
    chat: Chat


async def train(job: tree.Job, folder: RunFolder, *, base: Path, resume: bool, sink: Sink) -> Summary:
    """Run a job to its end, or on from where it was; `sink` also gets every event. Raises HuiluError."""
    job, base = _settle_job(job, folder, base, resume)
    folder.create()
    with lock.held(folder.lock, time.time()), contextlib.ExitStack() as stack:
        if not resume:
            _refuse_used(folder)
            folder.write_job(job)
        telemetry = _telemetry(job, folder, sink, stack)
        try:
            async with _opened(job, folder, base, telemetry) as run:
                version, accounting = await _rounds(run)
                telemetry.event("stage", name="done")
                write_report(folder, time.time())
        except errors.HuiluError as error:
            telemetry.event("error", message=str(error), code=error.code, fix=error.fix)
            raise
        journal = fold(read_events(folder.events))
    return summary(journal, accounting, version, run_id=folder.id, run_dir=str(folder.path))


async def check(job: tree.Job, folder: RunFolder, *, base: Path) -> list[Check]:
    """What preflight finds for a job, without starting it or its model: `huilu run --dry-run`."""
    telemetry = Telemetry()
    existing = next(path for path in (folder.path, *folder.path.absolute().parents) if path.exists())
    with Sources(job.data, job.seed, lambda name, params: build_environment(name, params, base)) as sources:
        async with open_tools(job, base, telemetry) as tools:
            checks = [preflight.check_folder(existing), preflight.check_sandbox(job, sources.environments)]
            if all(check.status != "fail" for check in checks):
                checks += await preflight.check_answers(sources.environments, tools)
    return checks


def _settle_job(job: tree.Job, folder: RunFolder, base: Path, resume: bool) -> tuple[tree.Job, Path]:
    """The job to run and what its relative paths mean. A resume goes on with the recorded job, maybe for longer."""
    path = job.model.path
    if not path.startswith("pypi:") and (base / path).exists():
        job = msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, path=str((base / path).absolute())))
    if resume:
        recorded = folder.read_job()
        longer = msgspec.structs.replace(recorded, rounds=job.rounds)
        if longer != job:
            raise errors.Usage(
                f"the job differs from the one in {folder.job} in {', '.join(_differences(longer, job))}",
                expected="the same job; only `rounds` may be raised",
                fix="start a new run for other settings",
            )
        if job.rounds < recorded.rounds:
            raise errors.Usage(f"rounds {job.rounds}", expected=f"at least the recorded {recorded.rounds}")
    return job, base.absolute()


def _differences(one: Any, other: Any, prefix: str = "") -> list[str]:
    if isinstance(one, msgspec.Struct) and type(one) is type(other):
        names = [field.name for field in msgspec.structs.fields(type(one))]
        return [
            found
            for name in names
            for found in _differences(getattr(one, name), getattr(other, name), f"{prefix}{name}.")
        ]
    return [] if one == other else [prefix.rstrip(".")]


def _refuse_used(folder: RunFolder) -> None:
    if folder.database.exists():
        raise errors.Usage(
            f"{folder.path} holds a run already",
            expected="a new folder",
            fix="add --resume to continue it, or choose another --run-dir",
        )


def _telemetry(job: tree.Job, folder: RunFolder, sink: Sink, stack: contextlib.ExitStack) -> Telemetry:
    """Telemetry that writes the run's logs, tells its trackers and `sink`; secrets are struck out of all."""
    secrets = resolve_secrets(job, os.environ).values()
    events = stack.enter_context(JsonLines(folder.events))
    metrics = stack.enter_context(JsonLines(folder.metrics))
    saved = read_now(folder.database, rows.last_state) if folder.database.exists() else None
    trackers = [TRACKERS[name](folder.path, 1 + (saved.round if saved else 0)) for name in job.trackers]
    for tracker in trackers:
        stack.callback(tracker.close)
    told: list[Sink] = [event_log(events), metrics_log(metrics), *trackers, sink]
    sinks = [without(secrets, each) for each in told]
    return Telemetry(*sinks, kill_at=os.environ.get("HUILU_KILL_AT", ""))


@contextlib.asynccontextmanager
async def _opened(job: tree.Job, folder: RunFolder, base: Path, telemetry: Telemetry) -> AsyncIterator[Run]:
    """Everything a run needs, each thing started after what it stands on, and closed in the other order."""
    telemetry.event("stage", name="preflight")
    async with contextlib.AsyncExitStack() as stack:
        sources = stack.enter_context(
            Sources(job.data, job.seed, lambda name, params: build_environment(name, params, base))
        )
        tools = await stack.enter_async_context(open_tools(job, base, telemetry))
        await _preflight(job, folder, sources, tools, telemetry)
        database = Database(folder.database)
        stack.callback(database.close)
        telemetry.event("stage", name="load", detail=job.model.path)
        model = await ModelClient.launch(folder.model_log, os.environ)
        stack.push_async_callback(model.close)
        info = await model.start(protocol.Start(model=job.model, inference=job.inference, learn=job))
        refuse_failures(preflight.check_size(folder.path, info.num_parameters, job))
        chat = Chat(Tokenizer.load(Path(info.folder)))
        yield Run(
            job=job,
            folder=folder,
            telemetry=telemetry,
            database=database,
            sources=sources,
            tools=tools,
            model=model,
            info=info,
            chat=chat,
        )


async def _preflight(job: tree.Job, folder: RunFolder, sources: Sources, tools: Toolbox, telemetry: Telemetry) -> None:
    checks = [preflight.check_folder(folder.path), preflight.check_sandbox(job, sources.environments)]
    refuse_failures(checks)
    checks += await preflight.check_answers(sources.environments, tools)
    telemetry.event("preflight", checks=[msgspec.to_builtins(each) for each in checks])
    refuse_failures(checks)


async def _rounds(run: Run) -> tuple[PolicyVersion, Any]:
    """Restore, evaluate, turn the loop, and account for everything."""
    job, telemetry = run.job, run.telemetry
    files = Files(run.folder, Path(run.info.folder), run.database, job.store.keep_last, telemetry)
    pace = Pace(
        rounds=job.rounds,
        every=job.store.save_every,
        state_bytes=run.info.num_parameters * BYTES_A_PARAMETER,
    )
    chain = Chain(run.database, run.model, files, pace, telemetry)
    base = PolicyVersion(number=0, lineage=0, parent=None, round=0, digest=run.info.digest)
    version = await chain.restore(base)
    await run.model.sync(version)
    flow = _flow(run)
    await flow.recover(settled=version.round)
    scores = Scores(run)
    parts = _parts(run, chain, flow, scores)
    await scores.of(base)
    if version.round and parts.gate.due(version.round):  # a crash may have fallen between its save and its verdict
        await parts.releases.decide(await parts.gate.judge(version))
    heartbeat = asyncio.create_task(flow.heartbeat())
    try:
        await loop.run(parts, _told(range(version.round + 1, job.rounds + 1), telemetry), job.rollout.max_lag)
    finally:
        heartbeat.cancel()
    await chain.seal()
    await flow.abandon()
    accounting = await run.database.read(feedback.accounting)
    num_episodes = job.rollout.episodes_per_task
    problems = await run.database.read(lambda connection: check_integrity(connection, num_episodes))
    if problems:
        raise errors.Invariant(f"the books do not add up: {'; '.join(problems[:3])}")
    last = await run.database.read(lambda connection: rows.find_version(connection, job.rounds))
    return last or version, accounting


class Scores:
    """Held-out evaluations of versions: from the database, or made with the engine as it is and stored."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._tasks = run.sources.holdout(run.job.eval.num_tasks)

    async def of(self, version: PolicyVersion) -> Evaluation:
        """The evaluation of `version`, which must be the one that is served unless it was evaluated before."""
        run = self._run
        known = await run.database.read(lambda connection: rows.find_evaluation(connection, version, HELD_OUT))
        if known is not None:
            return known
        run.telemetry.event("stage", name="evaluate", detail=version.id, number=version.round, total=run.job.rounds)
        attempts = _attempts(run, greedy=True)
        found, _ = await evaluate(attempts, self._tasks, version.number, HELD_OUT, run.telemetry)
        await run.database.write(lambda connection: rows.insert_evaluation(connection, version, found, time.time()))
        run.telemetry.gauge("huilu_eval_score", found.pass_rate, split=HELD_OUT)
        run.telemetry.event(
            "evaluation",
            split=HELD_OUT,
            version=version.number,
            pass_rate=found.pass_rate,
            mean_reward=found.mean_reward,
            num_tasks=found.num_tasks,
            seconds=found.seconds,
        )
        return found


def _flow(run: Run) -> Flow:
    job = run.job
    algorithm = job.train.algorithm
    plan = Plan(
        batch=job.rollout.tasks_per_round * job.feedback.every,
        rounds=job.rounds,
        max_lag=job.rollout.max_lag,
        max_extra=job.rollout.max_draws,
        episodes_per_task=job.rollout.episodes_per_task,
        drop_equal=isinstance(algorithm, tree.Dapo) and algorithm.dynamic_sampling,
        sample_frac=job.feedback.sample_frac,
        seed=job.seed,
    )
    tasks = Queue(run.database, ids.owner_id(), max_attempts=job.rollout.max_attempts)
    return Flow(run.database, tasks, run.sources.draw, plan, run.telemetry)


def _attempts(run: Run, *, greedy: bool) -> Attempts:
    job = run.job
    style = Style(
        episodes_per_task=1 if greedy else job.rollout.episodes_per_task,
        max_new_tokens=(job.eval.max_new_tokens or job.rollout.max_new_tokens)
        if greedy
        else job.rollout.max_new_tokens,
        temperature=job.eval.temperature if greedy else job.rollout.temperature,
        stop=tuple(job.rollout.stop),
        seed=job.seed,
        timeout_s=job.rollout.timeout_s,
        max_attempts=job.rollout.max_attempts,
    )
    environments = run.sources.environments
    # Evaluation's tokens are no rollout's: they are counted apart, by nobody yet.
    telemetry = Telemetry() if greedy else run.telemetry
    return Attempts(run.model, run.chat, environments, run.tools, style, telemetry, run.info.max_positions)


def _parts(run: Run, chain: Chain, flow: Flow, scores: Scores) -> loop.Parts:
    """The loop's parts."""
    job, telemetry = run.job, run.telemetry

    async def restore(target: PolicyVersion) -> None:
        newest = await run.database.read(rows.chain)
        await run.model.sync(await chain.fork(newest[-1].round, target))

    async def keep(version: PolicyVersion) -> None:
        kept = await run.database.read(rows.saved)
        if version.id not in {saved.version.id for saved in kept}:
            await chain.save(version, with_state=False)

    pointers = Pointers(run.database, keep, restore, job.gate.on_breach, telemetry)

    async def production() -> Evaluation:
        return await scores.of(await pointers.production())

    gate = HeldOutGate(job.gate, job.eval.every, job.rounds, scores.of, production, run.model.drift, telemetry)
    return loop.Parts(
        draws=flow,
        rollouts=GroupRollouts(_attempts(run, greedy=False), flow.missing, flow.round_of),
        bus=flow,
        learner=Timed(run.model, telemetry),
        versions=chain,
        engine=Timed(run.model, telemetry),
        gate=gate,
        releases=pointers,
        book=RoundBook(telemetry, job.rounds),
    )


class Timed:
    """The model's two slow calls of a round, with their time told."""

    def __init__(self, model: ModelClient, telemetry: Telemetry) -> None:
        self._model, self._telemetry = model, telemetry

    async def step(self, claim: Any) -> Any:
        with self._telemetry.timed("huilu_round_seconds", phase="train"):
            return await self._model.step(claim)

    async def sync(self, version: PolicyVersion) -> None:
        with self._telemetry.timed("huilu_round_seconds", phase="sync"):
            await self._model.sync(version)


def _told(rounds: range, telemetry: Telemetry) -> Iterator[int]:
    """The rounds, each announced as its turn comes."""
    for round_ in rounds:
        telemetry.event("stage", name="round", number=round_, total=rounds.stop - 1)
        yield round_
