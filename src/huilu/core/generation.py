"""What is asked of an engine and what it answers; plain records shared by engine, clients and environments.

Called by `engine`, `serving`, `loop` and `envs`; does nothing.
"""

from __future__ import annotations

import msgspec


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample. `temperature` 0 is greedy. Sample `i` of `n` has a stream of its own, from (seed, i) alone.

    The reported log-probability of a token is that of the full distribution at `temperature` (at 1.0 when
    greedy), before top-p, top-k and min-p cut it: what the learner computes.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    n: int = 1
    samples: tuple[int, ...] = ()
    """Which samples of the group these `n` are; empty for 0..n-1. Sample i is the same whoever asks with it."""
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_top_logprobs: int = 0


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled continuation. `token_ids` includes the EOS or stop token that ended it.

    `finish_reason`: `stop` (EOS, stop id or stop string), `length`, `timeout`, `cancelled`, `aborted`.
    `versions` has the policy version's number per token. `text_end` is the number of leading tokens that are
    text (an EOS or stop id is not).
    """

    index: int
    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: str
    text_end: int
    num_cached_tokens: int = 0
    top_logprobs: list[dict[int, float]] = []


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file, folder or link of a work folder, by its mode; a link's content is its target."""

    mode: int
    content: bytes = b""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One program for the sandbox."""

    source: str
    command: tuple[str, ...] = ()
    """What is run in the work folder in place of the source, such as ("python", "main.py", "-v")."""
    stdin: str = ""
    files: dict[str, bytes] = {}
    tree: dict[str, File] = {}
    """Further files, with their modes."""
    keep: tuple[str, ...] = ()
    """Paths in the work folder whose files come back with the result; "." is all of it."""
    profile: str = "auto"
    """What is loaded already: bare, stdlib, numpy; auto takes the smallest that has what the source imports."""
    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 1 << 20
    disk_bytes: int = 64 << 20
    inodes: int = 4096
    open_files: int = 64
    processes: int = 16


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandboxed run did. `verdict`: AC, WA, RE, TLE, MLE, OLE, PLE, DLE, INC, SBX (the sandbox failed).

    For a plain run AC says only that the program ended by itself with status 0; for a checked run it says
    that the check reported success over its private channel.
    """

    verdict: str
    exit_code: int | None = None
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    isolation: str = ""
    profile: str = ""
    """The profile and the start of its digest."""
    note: str = ""
    hack_suspected: str = ""
    """Why this looks like an attempt to be rewarded without solving the task; empty where nothing does."""
    kept: bytes = b""
    """The files that were kept, packed; `files` reads them."""

    @property
    def files(self) -> dict[str, File]:
        """The files that were kept, by path in the work folder."""
        return msgspec.msgpack.decode(self.kept, type=dict[str, File]) if self.kept else {}


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """How good an answer is. `reward` None: not judged (masked, never 0)."""

    reward: float | None
    passed: bool
    note: str = ""
    metrics: dict[str, float] = {}
