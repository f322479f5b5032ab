"""The first checks before a run: folder, disk, memory, sandbox level, gold answers, model.

Called by assembly, in order, before anything is generated; a sick machine never starts. Measures, never guesses:
what cannot be measured here is `unknown`.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

from huilu import errors
from huilu.checks.result import Check
from huilu.config.tree import Job
from huilu.core.ports import Environment, Tools
from huilu.envs.gold import check_gold
from huilu.sandbox.levels import require

GIB = 1 << 30
DISK_RESERVE_BYTES = 256 << 20
GOLD_TASKS = 8
BYTES_A_PARAMETER = {"weights": 4, "gradients": 4, "optimizer": 8}


def check_folder(folder: Path) -> Check:
    """Whether files can be made in the run's folder, and survive a sync."""
    check = partial(Check, id="folder", code="PRE-FOLDER", title="folder", component="store")
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"huilu")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        fix = "choose another folder with --run-dir"
        return check(status="fail", observed=f"{folder}: {error.strerror}", expected="a writable folder", fix=fix)
    return check(status="ok", observed=f"{folder} takes files")


def check_size(folder: Path, num_parameters: int, job: Job) -> list[Check]:
    """Whether disk and memory hold a model of this size in training."""
    return [
        check_disk(folder, num_parameters, job),
        check_memory(num_parameters, job, Path("/proc/meminfo").read_text()),
    ]


def check_disk(folder: Path, num_parameters: int, job: Job) -> Check:
    """Room for the states and weights that retention keeps, one more while writing, and a reserve."""
    state_bytes = num_parameters * (BYTES_A_PARAMETER["weights"] + BYTES_A_PARAMETER["optimizer"])
    kept_weights = 2 * num_parameters * BYTES_A_PARAMETER["weights"]  # the best and the released
    needed = (job.store.keep_last + 1) * state_bytes + kept_weights + DISK_RESERVE_BYTES
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    return Check(
        id="disk",
        code="PRE-DISK",
        title="disk",
        component="store",
        status="ok" if free >= needed else "fail",
        observed=f"{free / GIB:.1f} GiB free",
        expected=f"{needed / GIB:.1f} GiB",
        unit="bytes",
        evidence=(f"statvfs {folder}",),
        fix="" if free >= needed else "choose a folder on a larger disk with --run-dir",
    )


def check_memory(num_parameters: int, job: Job, meminfo: str) -> Check:
    """Room for weights, gradients, Adam moments and the KV cache. `meminfo` is the text of /proc/meminfo."""
    needed = num_parameters * sum(BYTES_A_PARAMETER.values()) + job.inference.kv_bytes
    if job.train.algorithm.kl is not None:
        needed += num_parameters * BYTES_A_PARAMETER["weights"]
    available = next(
        (int(line.split()[1]) * 1024 for line in meminfo.splitlines() if line.startswith("MemAvailable:")), None
    )
    if available is None:
        return Check(
            id="memory",
            code="PRE-MEMORY",
            title="memory",
            component="host",
            status="unknown",
            observed="no MemAvailable",
        )
    return Check(
        id="memory",
        code="PRE-MEMORY",
        title="memory",
        component="host",
        status="ok" if available >= needed else "fail",
        observed=f"{available / GIB:.1f} GiB available",
        expected=f"{needed / GIB:.1f} GiB",
        unit="bytes",
        fix="" if available >= needed else "lower inference.kv_bytes or take a smaller model",
    )


def check_sandbox(job: Job, environments: dict[str, Environment]) -> Check:
    """The isolation that the job's environments need."""
    users = sorted(name for name, environment in environments.items() if "sandbox" in environment.needs)
    check = partial(Check, id="sandbox", code="PRE-SANDBOX", title="sandbox", component="sandbox")
    if not users:
        return check(status="skip", observed="no environment of this job runs code")
    try:
        isolation = require(job.sandbox.level)
    except errors.IsolationRefused as error:
        return check(status="fail", observed=error.observed, expected=error.expected, fix=error.fix)
    return check(status="ok", observed=f"level {isolation.level}, for {', '.join(users)}")


async def check_answers(environments: dict[str, Environment], tools: Tools) -> list[Check]:
    """Gold answers must score 1.0 and an empty answer must not, in each environment."""
    checks = []
    for name, environment in environments.items():
        failures = await check_gold(environment, GOLD_TASKS, tools)
        checks.append(
            Check(
                id=f"gold-{name}",
                code="PRE-GOLD",
                title="answers",
                component=name,
                status="fail" if failures else "ok",
                observed="; ".join(failures[:3]) if failures else f"{name}: gold answers score 1.0, empty ones do not",
                expected="gold answers to pass and empty answers to fail",
                fix="huilu data check JOB.yaml lists every failing task" if failures else "",
            )
        )
    return checks
