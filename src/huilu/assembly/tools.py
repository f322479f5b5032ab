"""What environments judge with: the sandbox and the calls to a job's own code, started when first used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from huilu.config.load import resolve_secrets
from huilu.config.tree import Job
from huilu.core import ports
from huilu.sandbox.client import SandboxClient
from huilu.telemetry import Telemetry
from huilu.work.calls import Calls


class Toolbox(msgspec.Struct, frozen=True):
    """The `Tools` of one process."""

    sandbox: ports.Sandbox
    calls: ports.Calls


@contextlib.asynccontextmanager
async def open_tools(job: Job, base: Path, telemetry: Telemetry) -> AsyncIterator[Toolbox]:
    """The tools until the block ends; `base` is what relative paths in the job mean."""
    cores = os.cpu_count() or 1
    sandbox = SandboxClient(job.sandbox, telemetry)
    calls = Calls(base, telemetry, secrets=resolve_secrets(job, os.environ), num_workers=cores)
    try:
        yield Toolbox(sandbox, calls)
    finally:
        await calls.close()
        await sandbox.close()
