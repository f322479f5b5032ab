"""`huilu generate` and `huilu eval`: try a model or a run's version on a prompt, or on tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from huilu import errors
from huilu.assembly import served
from huilu.assembly.tools import open_tools
from huilu.cli.options import Json, Quiet
from huilu.cli.output import print_json, print_rows
from huilu.config import tree
from huilu.config.load import load_job
from huilu.core.generation import Sampling
from huilu.envs.registry import build_environment, environment_names
from huilu.envs.sources import Sources
from huilu.observe.live import watching
from huilu.observe.view import Ending
from huilu.telemetry import Telemetry
from huilu.work.rollouts import Style

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_RUN", help="A run's folder (RUN@v12 for one version), a HF folder, a .gguf, pypi:PACKAGE."
    ),
]
MaxTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest answer, tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", min=0.0, help="0 is greedy.")]
SHOWN_ANSWERS = 10


def generate(
    target: Target,
    prompt: Annotated[str, typer.Argument(help="What the user says.")],
    n: Annotated[int, typer.Option("-n", min=1, help="How many answers.")] = 1,
    max_new_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus; 1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 0,
    json: Json = False,
) -> int:
    """Answer a prompt with a model, or with what a run released."""
    path, job = served.find(target)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, n=n, seed=seed)

    async def work() -> list[tuple[str, Any]]:
        async with served.serve(_model(path, job), _inference(job), Telemetry()) as model:
            return await served.answer(model, prompt, sampling)

    answers = asyncio.run(work())
    if json:
        found = [
            {
                "text": text,
                "finish_reason": each.finish_reason,
                "token_ids": each.token_ids,
                "logprobs": each.logprobs,
            }
            for text, each in answers
        ]
        print_json({"schema_version": 1, "model": path, "prompt": prompt, "answers": found})
    else:
        for text, _ in answers:
            typer.echo(text)
    return 0


def evaluate(
    target: Target,
    tasks: Annotated[
        str,
        typer.Option(
            "--tasks", help="A job file, an environment's name, or NAME:KEY=VALUE,…; a run's own if left out."
        ),
    ] = "",
    num_tasks: Annotated[int, typer.Option("--num-tasks", min=1, help="Tasks, at most.")] = 100,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", min=1, help="Longest answer, tokens.")
    ] = None,
    temperature: Temperature = 0.0,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Score a model on held-out tasks, greedily."""
    path, job = served.find(target)
    source, base = _tasks(tasks, job)
    telemetry = Telemetry()
    style = Style(
        episodes_per_task=1,
        max_new_tokens=max_new_tokens or (source.eval.max_new_tokens or source.rollout.max_new_tokens),
        temperature=temperature,
        stop=tuple(source.rollout.stop),
        seed=source.seed,
    )

    async def work() -> Any:
        build = lambda name, params: build_environment(name, params, base)  # noqa: E731
        with Sources(source.data, source.seed, build) as sources:
            held_out = sources.holdout(num_tasks)
            if not held_out:
                raise errors.BadConfig("these tasks hold nothing out", expected="a source with holdout above 0")
            async with (
                open_tools(source, base, telemetry) as tools,
                served.serve(_model(path, job), _inference(job), telemetry) as model,
            ):
                return await served.score(model, sources.environments, held_out, tools, style, telemetry)

    with watching(Console(stderr=True), f"eval {target}", Ending(run_dir=""), quiet=quiet) as view:
        telemetry.add_sink(view)
        telemetry.event("stage", name="evaluate", detail=target)
        evaluation, answers = asyncio.run(work())
    if json:
        episodes = [
            {"task": task.metadata.get("row", task.id), "prompt": task.prompt, "answer": text, "reward": reward}
            for task, text, reward in answers
        ]
        print_json({"schema_version": 1, "model": path, **msgspec.to_builtins(evaluation), "episodes": episodes})
        return 0
    typer.echo(
        f"{target}: pass rate {evaluation.pass_rate:.2f}, mean reward {evaluation.mean_reward:.2f} "
        f"on {evaluation.num_tasks} held-out tasks in {evaluation.seconds:.1f} s"
    )
    rows = [(task.prompt[-1].content[:60], text[:40], f"{reward}") for task, text, reward in answers[:SHOWN_ANSWERS]]
    print_rows("the first answers", ("prompt", "answer", "reward"), rows)
    return 0


def _model(path: str, job: tree.Job | None) -> tree.Model:
    if job is None:
        return tree.Model(path=path)
    return msgspec.structs.replace(job.model, path=path)


def _inference(job: tree.Job | None) -> tree.Inference:
    return job.inference if job is not None else tree.Inference()


def _tasks(text: str, job: tree.Job | None) -> tuple[tree.Job, Path]:
    """The job whose held-out tasks are meant, and the folder that its paths start from."""
    if not text:
        if job is None:
            raise errors.Usage(
                "a model has no tasks of its own", fix="name some with --tasks JOB.yaml or --tasks arithmetic"
            )
        return job, Path.cwd()
    if Path(text).suffix in (".yaml", ".yml", ".json"):
        return load_job(Path(text), [], {}).job, Path(text).parent
    name, _, rest = text.partition(":")
    if name not in environment_names():
        raise errors.NotFound(
            f"no tasks are called {text!r}",
            expected=f"a job file or one of {', '.join(environment_names())}",
            fix=errors.nearest(name, environment_names()),
        )
    params = dict(pair.split("=", 1) for pair in rest.split(",") if "=" in pair)
    source = tree.Tasks(env=name, params={key: _value(value) for key, value in params.items()})
    rollout = tree.Rollout(max_new_tokens=64)
    return tree.Job(
        name="eval", model=tree.Model(path=""), data=tree.Data(sources=[source]), rollout=rollout
    ), Path.cwd()


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        return text
