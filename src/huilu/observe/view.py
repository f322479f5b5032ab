"""What the terminal shows of a run: pure functions from a journal to lines of text. Called by `live`.

Every function returns rich Texts that are one line each; text from outside (names, prompts, warnings) is made
printable first, and widths are measured in terminal cells, so that wide characters keep the columns straight.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from huilu.core.nouns import ReleaseName
from huilu.observe.curve import bar, line_chart, sparkline
from huilu.observe.events import EvaluationEnded, Event, RoundEnded, StageBegan, WarningGiven
from huilu.observe.figures import decimal, duration, interval, one_line, percent, points, significant, whole
from huilu.observe.journal import Journal, before_after, num_rounds, time_left_s

_STAGES = {
    "preflight": "checking the machine",
    "load": "loading the model",
    "evaluate": "evaluating",
    "round": "round",
    "save": "saving",
    "gate": "judging the release",
    "done": "done",
}
_COLUMNS = (("round", 7), ("reward", 7), ("pass rate", 18), ("KL", 8), ("tokens", 7), ("tok/s", 7), ("time", 10))
_GAP = "  "
_BAR_WIDTH = 12
_CURVE_WIDTH = 16
_NARROWEST_BAR = 10


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of a run points to: its folder, a prompt to try, and tasks to evaluate on (else the job's own)."""

    run_dir: str
    prompt: str = ""
    tasks: str = ""


def heading() -> Text:
    """The names of the columns of `row`."""
    cells = [name.ljust(width) if name == "pass rate" else name.rjust(width) for name, width in _COLUMNS]
    return Text(_GAP.join(cells), style="dim")


def row(ended: RoundEnded) -> Text:
    """One round as a row under `heading`, at most 78 cells wide."""
    rate = f"{percent(ended.pass_rate):>5} "
    cells = (
        (f"{ended.round}/{ended.rounds}", "bold"),
        (decimal(ended.reward_mean), "bold cyan"),
        (rate + bar(ended.pass_rate, _BAR_WIDTH), "green"),
        (significant(ended.kl_start), ""),
        (decimal(ended.response_tokens, 1), ""),
        (whole(ended.generated_tokens_per_s), ""),
        (duration(sum(ended.seconds.values())), "dim"),
    )
    line = Text()
    for (text, style), (_, width) in zip(cells, _COLUMNS, strict=True):
        if line:
            line.append(_GAP)
        line.append(text.rjust(width), style=style)
    return line


def status(journal: Journal, now: float, width: int) -> list[Text]:
    """The lines that change in place: the stage with its bar and the time left, then the curves so far."""
    lines = [_stage_line(journal, now, width)] if journal.stage and journal.stage.name != "done" else []
    rewards = [ended.reward_mean for ended in journal.rounds.values()]
    if len(rewards) > 1:
        rates = [ended.pass_rate for ended in journal.rounds.values()]
        line = Text().append(" reward ", style="dim")
        line.append(f"{decimal(rewards[0])} ").append(sparkline(rewards, _CURVE_WIDTH), style="cyan")
        line.append(f" {decimal(rewards[-1])}", style="bold cyan").append("   pass rate ", style="dim")
        line.append(f"{percent(rates[0])} ").append(sparkline(rates, _CURVE_WIDTH, 0.0, 1.0), style="green")
        line.append(f" {percent(rates[-1])}", style="bold green")
        lines.append(line)
    return lines


def plain_line(event: Event, journal: Journal) -> str | None:
    """One event as one line of a log; `journal` includes it. None for what a log need not tell."""
    match event:
        case StageBegan(name="round") | StageBegan(name="done"):
            return None
        case StageBegan():
            return f"{_STAGES[event.name]}{_detail(event)}"
        case RoundEnded():
            parts = [
                f"round {event.round}/{event.rounds}",
                f"reward {decimal(event.reward_mean)}",
                f"pass {percent(event.pass_rate)}",
                f"KL {significant(event.kl_start)}",
                f"{decimal(event.response_tokens, 1)} tokens",
                f"{whole(event.generated_tokens_per_s)} tok/s",
                duration(sum(event.seconds.values())),
            ]
            left = time_left_s(journal, event.at)
            return "  ".join([*parts, f"{duration(left)} left"] if left is not None else parts)
        case EvaluationEnded():
            return evaluated(event).plain
        case WarningGiven():
            return warned(event).plain
    return None


def evaluated(event: EvaluationEnded) -> Text:
    """A finished evaluation in one line."""
    text = (
        f"evaluated v{event.version}: {percent(event.pass_rate, 1)} of {event.num_tasks} {one_line(event.split)} tasks"
    )
    return Text(f"{text} pass, mean reward {decimal(event.mean_reward)}, {duration(event.seconds)}")


def warned(event: WarningGiven) -> Text:
    """A warning in one line."""
    return Text(f"warning: {one_line(event.message)}", style="yellow")


def closing(journal: Journal, ending: Ending, width: int) -> list[Text]:
    """The end of a run: the reward's curve, before and after, the verdict and why, the folder, what to try next."""
    lines = [Text()]
    rewards = [ended.reward_mean for ended in journal.rounds.values()]
    if len(rewards) > 2:
        lines.append(Text(f" mean reward by round, 1 to {next(reversed(journal.rounds))}", style="dim"))
        chart = line_chart(rewards, min(56, width - 12), 5)
        lines += [Text(f" {line}", style="cyan") for line in chart]
        lines.append(Text())
    lines += [*_comparison(journal), *_decision(journal)]
    lines.append(_field("run", one_line(ending.run_dir), "bold"))
    for i, command in enumerate(next_commands(ending)):
        lines.append(_field("next" if i == 0 else "", command, "cyan"))
    return lines


def next_commands(ending: Ending) -> Sequence[str]:
    """Three commands that show what the run made."""
    run = shlex.quote(ending.run_dir)
    prompt = " ".join(ending.prompt.split())
    if cell_len(prompt) > 60:
        prompt = set_cell_size(prompt, 60).rstrip()
    quoted = shlex.quote(one_line(prompt)) if prompt else '"..."'
    tasks = f" --tasks {shlex.quote(ending.tasks)}" if ending.tasks else ""
    return (f"huilu report {run}", f"huilu generate {run} {quoted}", f"huilu eval {run}{tasks}")


def _stage_line(journal: Journal, now: float, width: int) -> Text:
    stage, progress = journal.stage, journal.progress
    assert stage is not None
    done = progress.done / progress.total if progress and progress.total else None
    name = _STAGES[stage.name]
    if stage.name == "round" and stage.number is not None:
        total = num_rounds(journal) or stage.number
        name = f"round {stage.number} of {total}"
        done = (stage.number - 1 + (done or 0.0)) / total
    left = time_left_s(journal, now)
    tail = _GAP + (f"{duration(left)} left" if left is not None else duration(max(0.0, now - stage.at)))
    if progress and progress.total:
        tail = f"{_GAP}{progress.done}/{progress.total} {one_line(progress.name)}{tail}"
    room = width - cell_len(tail) - 3
    if done is None:
        name = set_cell_size(name + _detail(stage), max(0, room)).rstrip()
        return Text.assemble((f" {name}", "bold"), (tail, "dim"))
    name = set_cell_size(name, min(cell_len(name), max(0, room)))
    length = min(40, room - cell_len(name) - 1)
    line = Text.assemble((f" {name}", "bold"))
    if length >= _NARROWEST_BAR:
        filled = round(max(0.0, min(1.0, done)) * length)
        line.append(_GAP).append("━" * filled, style="green").append("─" * (length - filled), style="dim")
    return line.append(tail, style="dim")


def _detail(stage: StageBegan) -> str:
    return f": {one_line(stage.detail)}" if stage.detail else ""


def _comparison(journal: Journal) -> list[Text]:
    """Before and after on held-out tasks, with the 95 % intervals of the pass rates."""
    compared = before_after(journal)
    if compared is None:
        return [evaluated(evaluation) for evaluation in journal.evaluations.values()]
    before, after = compared
    bounds = [interval(e.pass_rate, e.num_tasks) for e in compared]
    spans = [f"{100 * low:.0f} to {100 * high:.0f} %" for low, high in bounds]
    rate, reward = after.pass_rate - before.pass_rate, after.mean_reward - before.mean_reward
    table = [
        ("", "before", "after", ""),
        ("pass rate", percent(before.pass_rate, 1), percent(after.pass_rate, 1), points(rate)),
        ("95 % interval", spans[0], spans[1], ""),
        ("mean reward", decimal(before.mean_reward), decimal(after.mean_reward), f"{reward:+.2f}"),
    ]
    lines = [Text(f" {after.num_tasks} held-out tasks, never trained on", style="dim")]
    for i, (name, old, new, change) in enumerate(table):
        better = "bold green" if change.startswith("+") else "bold red"
        quiet = i in (0, 2)
        line = Text().append(f" {name:<14}{old:>14} {'→' if i else ' '} ", style="dim" if quiet else "")
        line.append(f"{new:>14}", style="dim" if quiet else "bold")
        lines.append(line.append(f"   {change}", style=better) if change else line)
    return [*lines, Text()]


def _decision(journal: Journal) -> list[Text]:
    """The last verdict with its reasons, and where `production` points."""
    if not journal.verdicts:
        return []
    verdict = journal.verdicts[-1]
    named = [moved.version for moved in journal.releases if moved.name == ReleaseName.PRODUCTION]
    if verdict.promote:
        first = _field("released", f"v{verdict.version} is {ReleaseName.PRODUCTION} now", "bold green")
    else:
        kept = f"{ReleaseName.PRODUCTION} stays v{named[-1]}" if named else f"nothing is {ReleaseName.PRODUCTION}"
        first = _field("held", f"v{verdict.version}; {kept}", "bold yellow")
    return [first, *(_field("", one_line(reason), "") for reason in verdict.reasons)]


def _field(name: str, value: str, style: str) -> Text:
    return Text.assemble((f" {name:<10}", "dim"), (value, style))
