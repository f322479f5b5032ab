"""The supervisor's end of the connection to its client. Called by `daemon`; never waits for the client.

A frame that has come in part, or that the client is too busy to take, stays here: deadlines of jails are kept while
the rest is outstanding.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from huilu import errors, wire

CHUNK_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")


class Link:
    """A connected socket, the bytes of a frame that is not yet whole, and those that could not be sent yet."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._came, self._waiting = bytearray(), bytearray()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def behind(self) -> bool:
        """Whether something waits for the client to read."""
        return bool(self._waiting)

    def receive(self) -> list[wire.Call] | None:
        """The calls that are whole by now; None once the client is gone. Raises Invariant for a frame too long."""
        try:
            data = self._sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        if not data:
            return None
        self._came += data
        calls: list[wire.Call] = []
        while (body := self._next_body()) is not None:
            calls += wire.calls_in(body)
        return calls

    def send(self, frame: msgspec.Struct) -> None:
        """Send what the client takes now; the rest waits for `flush`."""
        self._waiting += wire.pack(frame)
        self.flush()

    def flush(self) -> None:
        """Send on what waits, as far as the client takes it."""
        while self._waiting:
            try:
                sent = self._sock.send(memoryview(self._waiting)[:CHUNK_BYTES])
            except BlockingIOError:
                return
            except OSError:  # a client that is gone is seen by the next read
                self._waiting.clear()
                return
            del self._waiting[:sent]

    def _next_body(self) -> bytes | None:
        if len(self._came) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._came)
        if size > wire.MAX_FRAME_BYTES:
            raise errors.Invariant(f"a frame announced with {size} bytes", expected=f"at most {wire.MAX_FRAME_BYTES}")
        end = _LENGTH.size + size
        if len(self._came) < end:
            return None
        body = bytes(memoryview(self._came)[_LENGTH.size : end])
        del self._came[:end]
        return body
