"""How a peer talks to the bench that started it: one JSON line in, one JSON line out. Standard library only.

Imported by the scripts beside it, each run by the Python of its own environment.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class Lines:
    """The two ends of the talk. What libraries print on stdout goes to stderr, so that only replies are replies."""

    def __init__(self) -> None:
        self._replies = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def read(self) -> Message | None:
        """The next message; None when the bench wants no more."""
        line = sys.stdin.readline()
        message: Message | None = json.loads(line) if line else None
        return message

    def reply(self, **fields: Any) -> None:
        """Answer, with the most memory that this process has had resident (VmHWM) so far."""
        status = Path("/proc/self/status").read_text()
        peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
        self._replies.write(json.dumps({**fields, "peak_bytes": peak}) + "\n")
        self._replies.flush()
