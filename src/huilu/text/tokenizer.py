"""Text to token ids and back, for one model folder.

Called by `chat`, the engine, the rollouts and the servers. A thin layer over `tokenizers`, with the special ids and
the template that a Hugging Face folder spreads over several files. It must not import transformers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from huilu.errors import BadWeights, ExtensionFailed, boundary


class Tokenizer:
    """One folder's tokeniser; owns the compiled vocabulary. Thread-safe.

    `eos_ids` are all ids that end an answer (tokenizer_config.json, config.json and generation_config.json agree on
    fewer than one would think); `special_tokens` maps names such as `bos_token` to their text, for the template.
    `digest` is SHA-256 over tokenizer.json and the template: ids mean the same under the same digest.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        eos_ids: Sequence[int],
        pad_id: int | None,
        template: str | None,
        digest: str,
    ) -> None:
        self._backend = backend
        self.special_tokens = dict(special_tokens)
        self.eos_ids = tuple(eos_ids)
        self.bos_id = self._id_of(special_tokens.get("bos_token"))
        self.pad_id = pad_id
        self.template = template
        self.digest = digest

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokeniser of a Hugging Face folder. Raises BadWeights when a file is missing or unreadable."""
        content = _read_bytes(folder / "tokenizer.json")
        try:
            # The library raises plain Exception for whatever is wrong with the file.
            with boundary("reading it"):
                backend = tokenizers.Tokenizer.from_buffer(content)
        except ExtensionFailed as error:
            raise _unreadable(folder / "tokenizer.json", error.observed) from error
        config = _read_json(folder / "tokenizer_config.json")
        template = _template(folder, config)
        special_tokens = _special_tokens(config)
        eos_ids, pad_id = _special_ids(folder, backend, special_tokens)
        return cls(
            backend,
            special_tokens=special_tokens,
            eos_ids=eos_ids,
            pad_id=pad_id,
            template=template,
            digest=hashlib.sha256(content + b"\0" + (template or "").encode()).hexdigest(),
        )

    @property
    def vocab_size(self) -> int:
        """Ids are below it; a model's embedding may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def special_texts(self) -> tuple[str, ...]:
        """The texts that `encode` reads as special tokens, the longest first."""
        added = self._backend.get_added_tokens_decoder().values()
        return tuple(sorted((token.content for token in added if token.special), key=len, reverse=True))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of `text`. `special` adds what the tokeniser puts around a text by itself (a BOS, say)."""
        return self._backend.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids; special tokens are left out unless `special`. Bytes that are no UTF-8 become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=not special)

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._backend.token_to_id(token)


def _special_ids(
    folder: Path, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]
) -> tuple[tuple[int, ...], int | None]:
    """Every EOS id that the folder's files name, and the padding id."""
    named = [backend.token_to_id(special_tokens["eos_token"])] if "eos_token" in special_tokens else []
    pad_id = backend.token_to_id(special_tokens["pad_token"]) if "pad_token" in special_tokens else None
    for name in ("generation_config.json", "config.json"):
        config = _read_json(folder / name)
        eos_ids = config.get("eos_token_id")
        named += eos_ids if isinstance(eos_ids, list) else [eos_ids]
        pad_id = config.get("pad_token_id") if pad_id is None else pad_id
    return tuple(dict.fromkeys(id_ for id_ in named if id_ is not None)), pad_id


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token` and the like; each is written as a string or as a record with `content`."""
    found = {}
    for name, value in config.items():
        if name.endswith("_token") and value is not None and not isinstance(value, bool):
            found[name] = value["content"] if isinstance(value, dict) else str(value)
    return found


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own wins; several named ones are a list, where `default` is meant."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return _read_bytes(path).decode()
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object, empty where the (optional) file is missing."""
    if not path.exists():
        return {}
    try:
        content = json.loads(_read_bytes(path))
    except ValueError as error:
        raise _unreadable(path, error) from error
    if not isinstance(content, dict):
        raise _unreadable(path, f"holds a {type(content).__name__}")
    return content


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error.strerror) from error


def _unreadable(path: Path, why: object) -> BadWeights:
    return BadWeights(
        f"{path}: {why}", expected="a tokeniser as Hugging Face writes it", fix="copy or download the file again"
    )
