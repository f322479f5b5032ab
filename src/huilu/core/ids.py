"""Ids are names derived from what they name, so that a restart makes the same ones again.

Called wherever a record is made. Random ids exist only for owners (a process's life), never for records.
"""

from __future__ import annotations

import hashlib
import uuid


def task_id(draw: int) -> str:
    """The id of the task drawn as number `draw` of its run."""
    return f"t{draw:06d}"


def episode_id(task: str, index: int) -> str:
    """The id of the attempt number `index` at a task."""
    return f"{task}.e{index}"


def claim_id(round_: int, lineage: int = 0) -> str:
    """The id of the claim of one round."""
    return f"c{round_:05d}" if lineage == 0 else f"c{round_:05d}.{lineage}"


def feedback_key(episode: str, source: str) -> str:
    """The idempotency key of what `source` says of an episode."""
    return f"{episode}:{source}"


def owner_id() -> str:
    """A fresh name for one life of one process."""
    return uuid.uuid4().hex


def seed_for(*parts: object) -> int:
    """A 63-bit seed that depends on every part, and on nothing else (no process, no hash randomisation)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
