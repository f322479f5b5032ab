"""The model process: one decoder, the engine on it and, in training, the learner on the same weights.

Started by `serving.client` as `python -m huilu.assembly.model FD`; never imported by another module. The main
thread computes; the wire's own threads read calls and send heartbeats, so that long tensor work never blocks one.

    calls ----> inbox ----> main loop: engine iterations while there are requests,
                                       an update when the requests in flight let it (`inference.on_update`)

Engine iterations and optimiser steps exclude each other, since they share the weights in place.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from huilu import errors, wire
from huilu.core.generation import Completion
from huilu.core.nouns import Claim
from huilu.engine.engine import Engine
from huilu.model import hf, resolve, weights
from huilu.model.decoder import Decoder
from huilu.serving import protocol
from huilu.telemetry import Telemetry
from huilu.text.tokenizer import Tokenizer
from huilu.train.learner import Learner


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What `start` made."""

    folder: Path
    decoder: Decoder
    engine: Engine
    on_update: str
    learner: Learner | None


def load(request: protocol.Start, telemetry: Telemetry) -> Loaded:
    """The model, checked before it is loaded, with its engine and, where a job is given, its learner."""
    torch.set_num_threads(request.model.threads or os.cpu_count() or 1)
    folder = resolve.resolve_model(request.model.path)
    device = _device(request.model.device)
    dtype = getattr(torch, request.model.dtype)
    decoder = hf.load_decoder(folder, dtype=dtype, device=device)
    engine = Engine(decoder, request.inference, Tokenizer.load(folder), telemetry)
    learner = None
    if request.learn is not None:
        job = request.learn
        kl = job.train.algorithm.kl
        reference = hf.load_decoder(folder, dtype=dtype, device=device) if kl is not None else None
        learner = Learner(decoder, job.train, job.rollout, job.rounds, telemetry, reference)
    return Loaded(folder=folder, decoder=decoder, engine=engine, on_update=request.inference.on_update, learner=learner)


def _device(wanted: str) -> str:
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise errors.PreflightFailed("model.device is cuda", expected="a GPU that torch can use", fix="set it to auto")
    return "cuda" if available and wanted in ("auto", "cuda") else "cpu"


class ModelProcess:
    """Owns the decoder; answers calls until its peer is gone."""

    def __init__(self, server: wire.Server, telemetry: Telemetry) -> None:
        self._server, self._telemetry = server, telemetry
        self._loaded: Loaded | None = None
        self._requests: dict[str, int] = {}
        self._updates: list[wire.Call] = []
        self._digests: list[wire.Call] = []
        self._now: dict[str, Callable[[msgspec.Raw], Any]] = {
            "start": self._start,
            "cancel": self._cancel,
            "stats": self._stats,
            "drift": lambda _: self._learner.drift(),
        }
        self._exclusive: dict[str, Callable[[msgspec.Raw], Any]] = {
            "step": self._step,
            "sync": self._sync,
            "save": self._save,
            "load": self._load,
        }

    def run(self) -> None:
        """Serve until the peer closes."""
        while self._take_calls():
            if self._loaded is None:
                continue
            self._answer_digests()
            if self._updates and self._quiet():
                self._update(self._updates.pop(0))
            elif self._engine.has_work:
                self._iterate()

    @property
    def _engine(self) -> Engine:
        return self._ready().engine

    @property
    def _learner(self) -> Learner:
        learner = self._ready().learner
        if learner is None:
            raise errors.Usage("this model process only serves", expected="one started with a learner")
        return learner

    def _ready(self) -> Loaded:
        if self._loaded is None:
            raise errors.Usage("no model is loaded", expected="a start call first")
        return self._loaded

    def _take_calls(self) -> bool:
        """Handle what has arrived, waiting only when there is nothing to compute. False: the peer is gone."""
        wait = self._idle()
        while True:
            try:
                calls = self._server.inbox.get(block=wait, timeout=0.02 if self._digests else None)
            except queue.Empty:
                return True
            if calls is None:
                return False
            for call in calls:
                self._handle(call)
            wait = False

    def _idle(self) -> bool:
        if self._loaded is None:
            return True
        if self._updates and self._quiet():
            return False
        return not self._engine.has_work

    def _quiet(self) -> bool:
        """May the weights be touched now? Until they may, no request is admitted."""
        self._engine.pause()
        if self._ready().on_update == "abort":
            self._engine.abort_running()
        return not self._engine.has_work

    def _handle(self, call: wire.Call) -> None:
        if call.method in self._exclusive:
            self._updates.append(call)
        elif call.method == "digest":
            self._digests.append(call)
        elif call.method == "generate":
            self._answer(call, lambda body: self._submit(body, call.id), reply=False)
        else:
            self._answer(call, self._now.get(call.method, self._unknown))

    def _answer(self, call: wire.Call, handler: Callable[[msgspec.Raw], Any], reply: bool = True) -> None:
        try:
            with errors.boundary(f"the model process, {call.method}"):
                value = handler(call.body)
        except errors.HuiluError as error:
            self._telemetry.event("error", message=f"{call.method}: {error}", code=error.code)
            self._server.fail(call.id, error)
        else:
            if reply:
                self._server.answer(call.id, value)

    def _unknown(self, body: msgspec.Raw) -> Any:
        raise errors.Invariant("a call of an unknown method")

    def _start(self, body: msgspec.Raw) -> protocol.ModelInfo:
        self._loaded = load(msgspec.msgpack.decode(body, type=protocol.Start), self._telemetry)
        decoder = self._loaded.decoder
        return protocol.ModelInfo(
            folder=str(self._loaded.folder),
            family=decoder.spec.family,
            num_parameters=sum(parameter.numel() for parameter in decoder.parameters()),
            max_positions=decoder.spec.max_length,
            device=str(next(decoder.parameters()).device),
            threads=torch.get_num_threads(),
            digest=weights.digest(decoder),
        )

    def _submit(self, body: msgspec.Raw, call_id: int) -> None:
        request = msgspec.msgpack.decode(body, type=protocol.Generate)
        deadline = time.monotonic() + request.timeout_s
        self._engine.submit(request.request_id, request.prompt_ids, request.sampling, deadline)
        self._requests[request.request_id] = call_id

    def _cancel(self, body: msgspec.Raw) -> bool:
        request_id = msgspec.msgpack.decode(body, type=protocol.Cancel).request_id
        if request_id in self._requests:
            self._engine.cancel(request_id)
        return True

    def _iterate(self) -> None:
        self._finish(self._engine.step())
        self._server.advance()

    def _finish(self, finished: list[Any]) -> None:
        for request in finished:
            completions: list[Completion] = request.completions
            self._server.answer(self._requests.pop(request.request_id), completions)

    def _update(self, call: wire.Call) -> None:
        self._answer(call, self._exclusive[call.method])
        self._server.advance()
        if not self._updates:
            self._engine.resume()

    def _step(self, body: msgspec.Raw) -> Any:
        return self._learner.step(msgspec.msgpack.decode(body, type=Claim))

    def _sync(self, body: msgspec.Raw) -> bool:
        request = msgspec.msgpack.decode(body, type=protocol.Sync)
        self._engine.set_version(request.number, request.namespace)
        return True

    def _save(self, body: msgspec.Raw) -> int:
        request = msgspec.msgpack.decode(body, type=protocol.Save)
        num_bytes = hf.export(self._ready().decoder, Path(request.weights), source=self._ready().folder)
        if request.state:
            num_bytes += self._learner.save_state(Path(request.state))
        return num_bytes

    def _load(self, body: msgspec.Raw) -> str:
        request = msgspec.msgpack.decode(body, type=protocol.Load)
        hf.load_weights(self._ready().decoder, Path(request.weights))
        if request.state:
            self._learner.load_state(Path(request.state))
        elif self._ready().learner is not None:
            self._learner.restart_optimizer()
        return weights.digest(self._ready().decoder)

    def _answer_digests(self) -> None:
        """Answer once the background hash is there; the engine goes on meanwhile."""
        for call in list(self._digests):
            digest = self._learner.digest_if_ready()
            if digest is not None:
                self._digests.remove(call)
                self._server.answer(call.id, digest)

    def _stats(self, body: msgspec.Raw) -> protocol.Stats:
        values = {
            name + "".join(f"{{{key}={label}}}" for key, label in labels): value
            for (name, labels), (value, _) in self._telemetry.snapshot().items()
        }
        return protocol.Stats(values)


def main() -> None:
    """Serve the socket whose file descriptor is the only argument."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    telemetry = Telemetry(_log, kill_at=os.environ.get("HUILU_KILL_AT", ""))
    ModelProcess(wire.Server(sock), telemetry).run()
    os._exit(0)  # control is gone: nothing here is worth an orderly end


def _log(record: Any) -> None:
    sys.stderr.write(msgspec.json.encode(dict(record)).decode() + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
