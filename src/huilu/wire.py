"""How processes of one run talk: length-prefixed msgpack frames that carry calls, answers, faults and heartbeats.

Called by `serving`, `sandbox`, `work` and assembly. `Peer` is the asyncio side, which calls; `Server` is the
thread side, which answers from a process whose main thread computes. Knows no method's name.

    frame = 4 bytes big-endian length | msgpack of Call, Calls, Answer, Fault or Beat

A call waits while its peer makes progress: each beat says how often the peer has advanced, and a peer that
beats without advancing for `stall_s`, or does not beat for `silence_s`, is given up with a named error.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from huilu import errors

MAX_FRAME_BYTES = 1 << 30
BEAT_S = 1.0
_LENGTH = struct.Struct(">I")
T = TypeVar("T")


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A request; `body` is encoded msgpack."""

    id: int
    method: str
    body: msgspec.Raw


class Calls(msgspec.Struct, frozen=True, tag="calls"):
    """Requests made in the same instant: they arrive together, so that nothing depends on luck."""

    calls: list[Call]


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The result of call `id`."""

    id: int
    body: msgspec.Raw


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """Call `id` failed with the error of this code."""

    id: int
    code: str
    observed: str
    expected: str = ""
    fix: str = ""


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The peer lives; `progress` grows whenever its work advances."""

    progress: int


Frame = Call | Calls | Answer | Fault | Beat
_decoder = msgspec.msgpack.Decoder(Frame)


def pack(message: Any) -> bytes:
    """A message as one frame."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise errors.Invariant(f"a frame of {len(body)} bytes", expected=f"at most {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def raw(value: Any) -> msgspec.Raw:
    """A value as an encoded body."""
    return msgspec.Raw(msgspec.msgpack.encode(value))


def calls_in(body: bytes) -> list[Call]:
    """The calls that a frame's body holds; none when it is of another kind."""
    frame = _decoder.decode(body)
    if isinstance(frame, Calls):
        return frame.calls
    return [frame] if isinstance(frame, Call) else []


def receive(sock: socket.socket) -> bytes | None:
    """The next frame's body from a blocking socket, or None when the peer closed."""
    head = _receive_exactly(sock, _LENGTH.size)
    if head is None:
        return None
    return _receive_exactly(sock, _length(head))


def _length(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise errors.Invariant(f"a frame announced with {length} bytes", expected=f"at most {MAX_FRAME_BYTES}")
    return int(length)


def _receive_exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = sock.recv(min(size - len(parts), 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


async def receive_async(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame's body, or None when the peer closed."""
    try:
        return await reader.readexactly(_length(await reader.readexactly(_LENGTH.size)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class Peer:
    """The calling side of one connection; many calls may be under way at once."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        name: str,
        *,
        silence_s: float = 30.0,
        stall_s: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._reader, self._writer = reader, writer
        self._silence_s, self._stall_s, self._monotonic = silence_s, stall_s, monotonic
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._outbox: list[Call] = []
        self._error: errors.HuiluError | None = None
        self._progress, self._advanced_at, self._heard_at = -1, monotonic(), monotonic()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    @classmethod
    async def over(cls, sock: socket.socket, name: str, *, silence_s: float = 30.0, stall_s: float = 600.0) -> Peer:
        """A peer over a connected unix socket."""
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer, name, silence_s=silence_s, stall_s=stall_s)

    async def call(self, method: str, body: Any, result: type[T], timeout_s: float | None = None) -> T:
        """The answer as `result`. Raises the peer's own error, ProcessDied, or TimedOut past `timeout_s`."""
        if self._error is not None:
            raise self._error
        self._next_id += 1
        call_id = self._next_id
        if not self._waiting:  # an idle peer has nothing to advance
            self._advanced_at = self._monotonic()
        future = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = future
        try:
            self._send(Call(call_id, method, raw(body)))
            async with asyncio.timeout(timeout_s):
                return msgspec.msgpack.decode(await future, type=result)
        except TimeoutError as error:
            raise errors.TimedOut(f"{self.name} did not answer {method} within {timeout_s} s") from error
        finally:
            self._waiting.pop(call_id, None)

    async def close(self) -> None:
        """Stop reading and drop the connection; calls still waiting fail."""
        self._fail(errors.ProcessDied(f"the connection to {self.name} was closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _send(self, call: Call) -> None:
        """Queue a call; what is queued when the loop comes round goes out as one frame."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(call)

    def _flush(self) -> None:
        calls, self._outbox = self._outbox, []
        self._writer.write(pack(calls[0] if len(calls) == 1 else Calls(calls)))

    async def _read(self) -> None:
        while (body := await receive_async(self._reader)) is not None:
            self._heard_at = self._monotonic()
            self._take(_decoder.decode(body))
        self._fail(errors.ProcessDied(f"{self.name} closed its connection", fix="run again with --resume"))

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Call | Calls):
            return  # nobody calls this side
        if isinstance(frame, Beat):
            if frame.progress != self._progress:
                self._progress, self._advanced_at = frame.progress, self._monotonic()
            return
        future = self._waiting.get(frame.id)
        if future is None or future.done():
            return
        self._advanced_at = self._monotonic()
        if isinstance(frame, Answer):
            future.set_result(frame.body)
        else:
            future.set_exception(errors.from_code(frame.code, frame.observed, frame.expected, frame.fix))

    async def _watch(self) -> None:
        while self._error is None:
            await asyncio.sleep(BEAT_S)
            now = self._monotonic()
            if now - self._heard_at > self._silence_s:
                self._fail(errors.TimedOut(f"{self.name} sent no heartbeat for {self._silence_s:.0f} s"))
            elif self._waiting and now - self._advanced_at > self._stall_s:
                self._fail(errors.TimedOut(f"{self.name} made no progress for {self._stall_s:.0f} s"))

    def _fail(self, error: errors.HuiluError) -> None:
        self._error = self._error or error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._error)


class Server:
    """The answering side: a reader thread fills `inbox`, a beat thread says that the process lives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._send_lock = threading.Lock()
        self.inbox: queue.Queue[list[Call] | None] = queue.Queue()
        """Calls in order, those made together in one list; None once the peer is gone."""
        self.progress = 0
        for target in (self._read, self._beat):
            threading.Thread(target=target, daemon=True).start()

    def answer(self, call_id: int, value: Any) -> None:
        self._send(Answer(call_id, raw(value)))

    def fail(self, call_id: int, error: errors.HuiluError) -> None:
        observed = error.observed or error.title
        self._send(Fault(call_id, error.code, observed, error.expected, error.fix))

    def advance(self) -> None:
        """Work went forward; the next beat says so."""
        self.progress += 1

    def _send(self, frame: Frame) -> None:
        with self._send_lock, contextlib.suppress(OSError):  # the reader sees a closed peer
            self._sock.sendall(pack(frame))

    def _read(self) -> None:
        while (body := receive(self._sock)) is not None:
            self.inbox.put(calls_in(body))
        self.inbox.put(None)

    def _beat(self) -> None:
        while True:
            self._send(Beat(self.progress))
            time.sleep(BEAT_S)
