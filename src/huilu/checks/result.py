"""The one result type of every check, and what a list of them means.

Called by preflight and the CLI. `unknown` never outranks a real result; warnings let a run start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from huilu import errors

Status = Literal["ok", "warn", "fail", "unknown", "skip"]
MARKS: dict[Status, str] = {"ok": "✓", "warn": "!", "fail": "✗", "unknown": "?", "skip": "–"}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What one check saw. `code` is stable: tickets and scripts may name it."""

    id: str
    code: str
    title: str
    component: str
    status: Status
    observed: str = ""
    expected: str = ""
    unit: str = ""
    evidence: tuple[str, ...] = ()
    cause: str = ""
    fix: str = ""
    node: str = "local"

    def line(self) -> str:
        """One line for people."""
        text = f"{MARKS[self.status]} {self.title:<10} {self.observed}"
        if self.status in ("warn", "fail") and self.expected:
            text += f" (expected {self.expected})"
        if self.status in ("warn", "fail") and self.fix:
            text += f"   fix: {self.fix}"
        return text


def refuse_failures(checks: Sequence[Check]) -> None:
    """Raise PreflightFailed, naming every failed check, if there is one."""
    failed = [check for check in checks if check.status == "fail"]
    if failed:
        raise errors.PreflightFailed(
            "; ".join(f"{check.code} {check.title}: {check.observed}" for check in failed),
            expected="; ".join(check.expected for check in failed if check.expected),
            fix=next((check.fix for check in failed if check.fix), ""),
        )
