"""Text that grows token by token: what may be shown already, and whether a stop string has appeared.

Called by the engine (stop strings) and the servers (streaming); one object a sequence. It decides nothing about
stop ids: those are the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence

from huilu.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


class TextStream:
    """The text of one sequence as ids are fed, cut at the first stop string.

    A character whose bytes are spread over several tokens appears when it is whole; text that could be the beginning
    of a stop string is held back until it is decided. `text` is what was given out so far, `stopped` the stop string
    that ended it (None: none yet), and `text_end` the number of fed tokens that lie entirely before it. After
    `finish`, `text` equals `tokenizer.decode(ids)`, cut.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(word for word in stop if word)
        self._ids: list[int] = []
        # Decoding is not additive over tokens, so each piece is decoded together with those just before it.
        self._context, self._settled = 0, 0
        self._decoded = ""
        self._ends: list[int] = []  # where in the text each settled token ends
        self.text = ""
        self.stopped: str | None = None

    @property
    def text_end(self) -> int:
        """How many leading tokens are text: all, or those that end before the stop string begins."""
        if self.stopped is None:
            return len(self._ids)
        return sum(end <= len(self.text) for end in self._ends)

    def feed(self, ids: Sequence[int]) -> str:
        """Take the next ids; the text that is certain now and was not before. Ids after a stop are ignored."""
        before = len(self.text)
        for id_ in ids:
            if self.stopped is not None:
                break
            self._ids.append(id_)
            self._decode(final=False)
            self._search(final=False)
        return self.text[before:]

    def finish(self) -> str:
        """No more ids will come: the text that was held back."""
        before = len(self.text)
        if self.stopped is None:
            self._decode(final=True)
            self._search(final=True)
        return self.text[before:]

    def _decode(self, *, final: bool) -> None:
        known = self._tokenizer.decode(self._ids[self._context : self._settled])
        window = self._tokenizer.decode(self._ids[self._context :])
        # A U+FFFD at the end may be the first bytes of a character that the next tokens complete.
        if final or not window.endswith(_REPLACEMENT):
            self._decoded += window[len(known) :]
            self._context, self._settled = self._settled, len(self._ids)
            self._ends += [len(self._decoded)] * (len(self._ids) - len(self._ends))

    def _search(self, *, final: bool) -> None:
        found = [(at, word) for word in self._stop if (at := self._decoded.find(word, len(self.text))) >= 0]
        if found:
            # The one that is complete first, whatever its beginning: how text is cut into tokens must not matter.
            at, self.stopped = min(found, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            self.text = self._decoded[:at]
        else:
            held = 0 if final else self._undecided()
            self.text = self._decoded[: len(self._decoded) - held]

    def _undecided(self) -> int:
        """Length of the longest tail of the text that begins some stop string."""
        longest = max(map(len, self._stop), default=1)
        for length in range(min(longest - 1, len(self._decoded)), 0, -1):
            tail = self._decoded[-length:]
            if any(word.startswith(tail) for word in self._stop):
                return length
        return 0
