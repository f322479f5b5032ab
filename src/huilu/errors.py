"""Every error a user can meet, in one hierarchy, and `boundary()`, which classifies what foreign code raises.

Called by every room; imports none. A class's docstring is its default message, `code` is its stable name in
logs, JSON and the docs, and `exit_status` is what the CLI ends with. Three families: the user's mistake
(`Usage`), the outside world (`Outside`), a broken promise of our own (`Invariant`).
"""

from __future__ import annotations

import contextlib
import difflib
import errno
from collections.abc import Iterable, Iterator
from typing import ClassVar


class HuiluError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1

    def __init__(self, observed: str = "", *, expected: str = "", fix: str = "") -> None:
        self.observed, self.expected, self.fix = observed, expected, fix
        super().__init__(observed, expected, fix)

    @property
    def title(self) -> str:
        return (type(self).__doc__ or "").strip().splitlines()[0].rstrip(".")

    def __str__(self) -> str:
        text = f"{self.title}: {self.observed}" if self.observed else self.title
        if self.expected:
            text += f"; expected {self.expected}"
        if self.fix:
            text += f"\n  next: {self.fix}"
        return text


class Usage(HuiluError):
    """The request cannot be understood."""

    code, exit_status = "usage", 2


class BadConfig(Usage):
    """The job file is wrong."""

    code = "bad_config"


class BadData(Usage):
    """The data set is wrong."""

    code = "bad_data"


class NotFound(Usage):
    """No such thing."""

    code = "not_found"


class Refused(HuiluError):
    """Refused by policy."""

    code, exit_status = "refused", 4


class PreflightFailed(Refused):
    """The machine or the job is not fit to start."""

    code = "preflight_failed"


class IsolationRefused(Refused):
    """This machine cannot isolate untrusted code as the job demands."""

    code = "isolation_refused"


class Outside(HuiluError):
    """The outside world failed."""

    code = "outside"


class DiskFull(Outside):
    """No space left on the disk."""

    code = "disk_full"


class NotWritable(Outside):
    """The folder cannot be written."""

    code = "not_writable"


class BadWeights(Outside):
    """The model's files are missing, short, corrupt or foreign."""

    code = "bad_weights"


class BadDatabase(Outside):
    """The run's database is damaged, or was made by another version of Huilu."""

    code = "bad_database"


class ProcessDied(Outside):
    """A process of the run ended unexpectedly."""

    code = "process_died"


class SandboxFailed(Outside):
    """The sandbox itself failed; the program in it is not to blame."""

    code = "sandbox_failed"


class ExtensionFailed(Outside):
    """Code that the job brought along raised."""

    code = "extension_failed"


class WorkerDied(Outside):
    """A worker process was killed from outside while it ran code that the job brought along."""

    code = "worker_died"


class QueueFull(Outside):
    """No room for more requests."""

    code = "queue_full"


class TimedOut(HuiluError):
    """A deadline passed."""

    code, exit_status = "timed_out", 5


class Locked(HuiluError):
    """Somebody else holds it."""

    code, exit_status = "locked", 6


class Undetermined(HuiluError):
    """Could not be determined."""

    code, exit_status = "undetermined", 3


class TrainingUnhealthy(HuiluError):
    """Training was stopped because its steps are sick."""

    code = "training_unhealthy"


class Invariant(HuiluError):
    """A promise of Huilu's own is broken; this is a bug."""

    code = "invariant"


@contextlib.contextmanager
def boundary(what: str) -> Iterator[None]:
    """Classify what foreign code raises: ours passes, failed system calls get a name, the rest is the extension's."""
    try:
        yield
    except HuiluError:
        raise
    except OSError as error:
        raise from_os(error, what) from error
    except TimeoutError as error:
        raise TimedOut(what) from error
    except Exception as error:
        raise ExtensionFailed(f"{what}: {type(error).__name__}: {error}") from error


def from_os(error: OSError, what: str) -> HuiluError:
    """The named error of a failed system call. `what` says what was being done, with the path."""
    if isinstance(error, TimeoutError):
        return TimedOut(f"{what}: {error}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(what, fix="free space or choose another folder, then run again with --resume")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return NotWritable(f"{what}: {error.strerror}", fix="choose a folder you may write with --run-dir")
    return Outside(f"{what}: {error}")


def nearest(word: str, known: Iterable[str]) -> str:
    """The `fix` of an unknown word: "did you mean 'x'?", or nothing when no known word is like it."""
    matches = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {matches[0]!r}?" if matches else ""


def from_code(code: str, observed: str, expected: str = "", fix: str = "") -> HuiluError:
    """The error that another process named by its code; an unknown code is its nearest family, `HuiluError`."""
    return _BY_CODE.get(code, HuiluError)(observed, expected=expected, fix=fix)


def _family(root: type[HuiluError]) -> Iterator[type[HuiluError]]:
    yield root
    for child in root.__subclasses__():
        yield from _family(child)


_BY_CODE = {kind.code: kind for kind in _family(HuiluError)}
