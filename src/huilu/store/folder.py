"""A run's folder: which file is where. Called by assembly and the CLI; opens nothing itself.

job.json        the resolved job              events.jsonl   everything that was told
run.db          tasks, episodes, feedback...  metrics.jsonl  one line a round
versions/vN/    a Hugging Face folder         report.html    the report
states/vN       the learner's state           model.log      the model process's stderr
lock            who runs it
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from huilu import errors
from huilu.config.tree import Job


class RunFolder(msgspec.Struct, frozen=True):
    """The folder of one run."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def job(self) -> Path:
        return self.path / "job.json"

    @property
    def database(self) -> Path:
        return self.path / "run.db"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def model_log(self) -> Path:
        return self.path / "model.log"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def versions(self) -> Path:
        return self.path / "versions"

    @property
    def states(self) -> Path:
        return self.path / "states"

    def weights(self, version_id: str) -> Path:
        return self.versions / version_id

    def state(self, version_id: str) -> Path:
        return self.states / version_id

    def create(self) -> None:
        """Make the folders. Raises NotWritable or DiskFull by name."""
        try:
            for folder in (self.path, self.versions, self.states):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.from_os(error, f"creating {self.path}") from error

    def write_job(self, job: Job) -> None:
        """Record the resolved job: what a resume continues with."""
        try:
            self.job.write_bytes(msgspec.json.format(msgspec.json.encode(job), indent=2) + b"\n")
        except OSError as error:
            raise errors.from_os(error, f"writing {self.job}") from error

    def read_job(self) -> Job:
        """The job that this run was started with."""
        try:
            return msgspec.json.decode(self.job.read_bytes(), type=Job)
        except FileNotFoundError as error:
            raise errors.NotFound(
                f"{self.path} is no run folder", expected="a folder with job.json", fix="huilu runs lists the runs"
            ) from error
        except msgspec.ValidationError as error:
            raise errors.BadConfig(f"{self.job}: {error}", fix="start a new run with this version of Huilu") from error


def runs_in(root: Path) -> Iterator[RunFolder]:
    """The runs below `root`, newest first."""
    if not root.is_dir():
        return
    folders = [path for path in root.iterdir() if (path / "job.json").is_file()]
    yield from (RunFolder(path) for path in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True))
