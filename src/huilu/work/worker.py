"""A worker process: runs the functions that a job names, one at a time, until its peer is gone or kills it.

Started by `work.calls` as `python -m huilu.work.worker FD PARENT`; never imported by another module. Functions run
in the main thread, since some use signals. What they print goes to the captured standard output, never to the
channel, which is a socket of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import hashlib
import importlib
import importlib.util
import inspect
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from huilu import errors, wire

PR_SET_PDEATHSIG = 1
MAX_TOLD_CHARS = 2000


def main() -> None:
    """Answer `load` and `call` until the peer closes."""
    channel, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    channel.set_inheritable(False)  # what a function starts must not hold the channel open
    _die_with(parent)
    faulthandler.enable()
    server = wire.Server(channel)
    functions: dict[str, Callable[..., Any]] = {}
    while (calls := server.inbox.get()) is not None:
        for call in calls:
            _answer(server, call, functions)


def _answer(server: wire.Server, call: wire.Call, functions: dict[str, Callable[..., Any]]) -> None:
    target, kwargs = msgspec.msgpack.decode(call.body, type=tuple[str, dict[str, Any]])
    try:
        if call.method == "load":
            functions[target] = resolve(target, Path.cwd())
            server.answer(call.id, None)
        else:
            server.answer(call.id, plain(_run(functions[target], kwargs), target))
    except errors.HuiluError as error:
        server.fail(call.id, error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the worker's top; the caller counts it
        server.fail(call.id, errors.ExtensionFailed(f"{target}: {_told(error)}"))


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, even while a function hangs in C."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(1)


def _run(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    result = function(**kwargs)
    if inspect.isawaitable(result):
        return asyncio.run(_awaited(result))
    return result


async def _awaited(result: Any) -> Any:
    return await result


def resolve(target: str, folder: Path) -> Callable[..., Any]:
    """The function `module:function` or `path.py:function`; paths start at `folder`. Raises NotFound.

    `folder`, and the folder of `path.py`, are searched last for modules, so that a file of the job beside them can
    be imported and none can hide an installed package.
    """
    place, _, name = target.rpartition(":")
    module = _load_file(folder / place) if place.endswith(".py") else _load_module(place, folder)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [known for known in vars(found) if not known.startswith("_")]
            raise errors.NotFound(f"{place} has no {name!r}", fix=errors.nearest(part, known))
        found = getattr(found, part)
    if not callable(found):
        raise errors.NotFound(f"{target} is of type {type(found).__name__}", expected="a function")
    return found  # type: ignore[no-any-return]


def _load_module(name: str, folder: Path) -> ModuleType:
    _search_last(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it exists, and misses a module of its own
        raise errors.NotFound(
            f"no module is called {name!r}", fix="name a file beside the job file as path.py:function"
        ) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise errors.NotFound(f"{path} is no file", fix="a relative path starts at the job file's folder")
    _search_last(path.parent)
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise errors.NotFound(f"{path} cannot be loaded", expected="a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module


def _search_last(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def plain(value: Any, target: str) -> Any:
    """A result as plain values; numpy and torch scalars and arrays become numbers and lists."""
    try:
        return msgspec.to_builtins(value, enc_hook=_unwrapped)
    except (TypeError, NotImplementedError) as error:
        raise errors.ExtensionFailed(
            f"{target} returned {type(value).__name__}: {error}", expected="numbers, strings, lists, dicts or None"
        ) from error


def _unwrapped(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"a {type(value).__name__} cannot be sent")


def _told(error: BaseException) -> str:
    """What was raised, and where: the last frame of the function's own traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:MAX_TOLD_CHARS]}{where}"


if __name__ == "__main__":
    main()
