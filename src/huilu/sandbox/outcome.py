"""The verdict of a check, from the examiner's word and what became of both jails. Pure; called by `daemon`."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from huilu.core.generation import RunResult


class Outcome(NamedTuple):
    """The examiner's word: passed, failed, raised, odd, weak or gone; and a text with it."""

    kind: str
    text: str


VERDICTS = {"passed": "AC", "failed": "WA", "raised": "RE", "odd": "WA", "weak": "INC"}
NOTES = {
    "odd": "the answer is no plain value, which only a trick needs",
    "weak": "the test hands over what cannot cross between jails",
}


def judge(results: list[RunResult], outcome: Outcome | None) -> RunResult:
    """The result of a check. `results` are the examiner's and the candidate's; only a positive word passes.

    A limit that the candidate met outranks what the examiner saw of it. Times and memory are the candidate's.
    """
    examiner, candidate = results
    verdict, note = _verdict(examiner, candidate, outcome)
    return msgspec.structs.replace(
        candidate,
        verdict=verdict,
        note=note,
        stderr=candidate.stderr or examiner.stderr,
        wall_s=max(examiner.wall_s, candidate.wall_s),
    )


def _verdict(examiner: RunResult, candidate: RunResult, outcome: Outcome | None) -> tuple[str, str]:
    if candidate.verdict == "OLE":
        return candidate.verdict, candidate.note
    if outcome is not None and outcome.kind in VERDICTS:
        return VERDICTS[outcome.kind], ": ".join(part for part in (NOTES.get(outcome.kind, ""), outcome.text) if part)
    if examiner.verdict in ("TLE", "SBX"):
        return examiner.verdict, examiner.note
    if candidate.verdict not in ("AC", "INC"):
        return candidate.verdict, candidate.note
    if outcome is None:
        return "INC", f"the test did not end: {examiner.note}"
    return "INC", outcome.text or "the program ended, or hung up, before the test did"
