"""Frames, calls, faults, heartbeats and dead peers on a real socket pair."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import msgspec
import pytest

from huilu import errors, wire


def served(handle: Callable[[wire.Server, wire.Call], None]) -> socket.socket:
    """Our end of a pair whose other end answers calls in a thread until closed."""
    ours, theirs = socket.socketpair()

    def loop() -> None:
        server = wire.Server(theirs)
        while (calls := server.inbox.get()) is not None:
            for call in calls:
                handle(server, call)
        theirs.close()

    threading.Thread(target=loop, daemon=True).start()
    ours.setblocking(False)
    return ours


def echo(server: wire.Server, call: wire.Call) -> None:
    server.answer(call.id, msgspec.msgpack.decode(call.body))


def test_an_answer_comes_back_as_the_type_that_was_asked_for() -> None:
    async def scenario() -> list[int]:
        peer = await wire.Peer.over(served(echo), "peer")
        try:
            return await peer.call("echo", [1, 2, 3], list[int], 10)
        finally:
            await peer.close()

    assert asyncio.run(scenario()) == [1, 2, 3]


def test_many_calls_may_be_under_way_and_large_ones_arrive_whole() -> None:
    async def scenario() -> list[str]:
        peer = await wire.Peer.over(served(echo), "peer")
        try:
            return await asyncio.gather(*(peer.call("echo", str(n) * 200_000, str, 30) for n in range(8)))
        finally:
            await peer.close()

    assert asyncio.run(scenario()) == [str(n) * 200_000 for n in range(8)]


def test_a_fault_arrives_as_the_error_that_was_raised_over_there() -> None:
    def refuse(server: wire.Server, call: wire.Call) -> None:
        server.fail(call.id, errors.BadWeights("a short file", expected="a whole one", fix="copy it again"))

    async def scenario() -> None:
        peer = await wire.Peer.over(served(refuse), "peer")
        try:
            await peer.call("load", None, str, 10)
        finally:
            await peer.close()

    with pytest.raises(errors.BadWeights, match="a short file; expected a whole one") as caught:
        asyncio.run(scenario())
    assert caught.value.fix == "copy it again"


def test_a_peer_that_closes_fails_every_waiting_and_every_later_call() -> None:
    async def scenario() -> tuple[BaseException, BaseException]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        peer = await wire.Peer.over(ours, "the model process")
        waiting = asyncio.create_task(peer.call("step", None, str))
        await asyncio.sleep(0)
        theirs.close()
        first = (await asyncio.gather(waiting, return_exceptions=True))[0]
        second = (await asyncio.gather(peer.call("step", None, str), return_exceptions=True))[0]
        await peer.close()
        assert isinstance(first, BaseException)
        assert isinstance(second, BaseException)
        return first, second

    for error in asyncio.run(scenario()):
        assert isinstance(error, errors.ProcessDied)
        assert "the model process closed its connection" in str(error)


def test_a_peer_that_beats_without_progress_is_given_up_by_name() -> None:
    async def scenario() -> None:
        peer = await wire.Peer.over(served(lambda server, call: None), "peer", stall_s=0.5)
        try:
            await peer.call("step", None, str)
        finally:
            await peer.close()

    with pytest.raises(errors.TimedOut, match="made no progress"):
        asyncio.run(scenario())


def test_a_peer_that_falls_silent_is_given_up_by_name() -> None:
    async def scenario() -> None:
        ours, _theirs = socket.socketpair()
        ours.setblocking(False)
        peer = await wire.Peer.over(ours, "peer", silence_s=0.5)
        try:
            await peer.call("step", None, str)
        finally:
            await peer.close()
            _theirs.close()

    with pytest.raises(errors.TimedOut, match="no heartbeat"):
        asyncio.run(scenario())


def test_a_call_past_its_own_deadline_is_a_named_time_out() -> None:
    async def scenario() -> None:
        peer = await wire.Peer.over(served(lambda server, call: None), "peer")
        try:
            await peer.call("step", None, str, 0.05)
        finally:
            await peer.close()

    with pytest.raises(errors.TimedOut, match="did not answer step"):
        asyncio.run(scenario())


def test_a_frame_announced_too_long_is_refused_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(errors.Invariant, match="announced"):
        wire.receive(theirs)
    ours.close()
    theirs.close()


def test_calls_made_in_the_same_instant_arrive_together_and_in_order() -> None:
    arrived: list[list[int]] = []

    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        server = wire.Server(theirs)
        ours.setblocking(False)
        peer = await wire.Peer.over(ours, "peer")
        waiting = [asyncio.create_task(peer.call("echo", n, int, 10)) for n in range(5)]
        calls = await asyncio.to_thread(server.inbox.get)
        assert calls is not None
        arrived.append([msgspec.msgpack.decode(call.body) for call in calls])
        for call in calls:
            echo(server, call)
        assert await asyncio.gather(*waiting) == list(range(5))
        await peer.close()
        theirs.close()

    asyncio.run(scenario())
    assert arrived == [[0, 1, 2, 3, 4]]
