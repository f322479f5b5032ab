"""The budget of rollout work, in groups: how many more tasks may be drawn now. Pure arithmetic.

Called by `draws`. With a batch of B groups a round and `max_lag` L, tasks may be out for the round that is next
to be learnt and for L more: at most B * (settled + 1 + L), never beyond the last round. A task that is lost
(dead, or filtered for equal rewards) may be replaced, at most `max_extra` times between two settlements.
"""

from __future__ import annotations


class Slots:
    """Counts groups. `settled` is the number of rounds whose fate is known and served.

    After a restart, the rounds up to `claimed` are replayed, and `extra` groups were replaced since the last of them.
    """

    def __init__(
        self,
        batch: int,
        rounds: int,
        max_lag: int,
        max_extra: int,
        *,
        settled: int = 0,
        used: int = 0,
        claimed: int = 0,
        extra: int = 0,
    ) -> None:
        self._batch, self._rounds, self._max_lag, self._max_extra = batch, rounds, max_lag, max_extra
        self._settled, self._used = settled, used
        self._claimed, self._extra = claimed, extra

    @property
    def settled(self) -> int:
        """Rounds whose fate is known and served."""
        return self._settled

    @property
    def free(self) -> int:
        """Groups that may be drawn now."""
        window = min(self._settled + 1 + self._max_lag, self._rounds)
        return max(0, self._batch * window - self._used)

    def take(self, num_groups: int) -> None:
        """These groups are out."""
        self._used += num_groups

    def lose(self) -> bool:
        """A group came to nothing. True when another may be drawn in its place."""
        if self._extra >= self._max_extra:
            return False
        self._extra += 1
        self._used -= 1
        return True

    def settle(self) -> None:
        """A round's fate is known."""
        self._settled += 1
        if self._settled > self._claimed:  # a replayed round took its replacements in its first life
            self._extra = 0
