"""The tokeniser inside a GGUF file, written as the files that a Hugging Face folder has. No torch in here.

Called by `gguf` alone. Byte-level BPE only; how text is cut before merging is known by the name in
`tokenizer.ggml.pre`, and a name that is not in the table is refused: a guess would give other ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from huilu.errors import BadWeights

_CONTROL, _USER_DEFINED = 3, 4  # gguf.TokenType

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "gpt2": (_GPT2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "smollm": (r"\p{N}", _GPT2),
    "qwen2": (_WORDS.replace("DIGITS", "1"),),
    "llama-bpe": (_WORDS.replace("DIGITS", "3"),),
}
"""How text is cut, one pattern after the other: llama.cpp's own patterns for these names (src/llama-vocab.cpp)."""

_NFC = ("qwen2",)
_WHOLE_WORDS_FIRST = ("llama-bpe",)
_BOS_BY_DEFAULT = ("llama-bpe",)


def write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json from GGUF metadata. Raises BadWeights for an unknown kind."""
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in _SPLITS:
        raise BadWeights(
            f"a tokeniser of kind {kind!r}, pre-tokeniser {pre!r}",
            expected=f"byte-level BPE (gpt2) with one of {', '.join(_SPLITS)}",
            fix="use the Hugging Face folder of this model instead",
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    named = _named_tokens(fields, tokens)
    backend = _backend(pre, tokens, fields)
    if fields.get("tokenizer.ggml.add_bos_token", pre in _BOS_BY_DEFAULT) and "bos_token" in named:
        bos = named["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens.index(bos))]
        )
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields[f"{fields['general.architecture']}.context_length"],
        "clean_up_tokenization_spaces": False,
        **named,
    }
    if template := fields.get("tokenizer.chat_template"):
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def special_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    """The ids that the metadata names: any of `bos`, `eos`, `eot`, `pad`, `unk`."""
    names = {"bos": "bos", "eos": "eos", "eot": "eot", "pad": "padding", "unk": "unknown"}
    keys = {short: f"tokenizer.ggml.{long}_token_id" for short, long in names.items()}
    return {short: int(fields[key]) for short, key in keys.items() if fields.get(key) is not None}


def _named_tokens(fields: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    return {f"{short}_token": tokens[id_] for short, id_ in special_ids(fields).items() if short != "eot"}


def _backend(pre: str, tokens: Sequence[str], fields: Mapping[str, Any]) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: id_ for id_, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    if pre in _NFC:
        backend.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in _SPLITS[pre]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    kinds = fields.get("tokenizer.ggml.token_type", [])
    by_kind = {
        kind: [AddedToken(token, normalized=False) for token, its in zip(tokens, kinds, strict=False) if its == kind]
        for kind in (_CONTROL, _USER_DEFINED)
    }
    backend.add_special_tokens(by_kind[_CONTROL])
    backend.add_tokens(by_kind[_USER_DEFINED])
    return backend
