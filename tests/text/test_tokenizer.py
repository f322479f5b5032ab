"""Ids and text equal transformers' on the same folder; broken folders are named errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from huilu.errors import BadWeights
from huilu.text.tokenizer import Tokenizer

TEXTS = (
    "",
    " ",
    "What is 13 + 1274? Answer with just the number.",
    "1234567890 3.14159 1e-5 ½ ٣",
    "def f(x):\n\treturn x ** 2  # doubled\n\n\n",
    "回炉 means “back to the furnace” 🔥👩‍👩‍👧 é vs é",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_end|><|endoftext|><jupyter_code>",
    "I'll, you'RE, it's — don't\u00a0\u3000 x\r\n",
    "\x00\x07\ufffd",
)


@pytest.fixture
def folder(smollm_dir: Path, tmp_path: Path) -> Path:
    """A copy without the weights, to be changed."""
    ignore = shutil.ignore_patterns("*.safetensors")
    return Path(shutil.copytree(smollm_dir, tmp_path / "model", ignore=ignore))


def _edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_equal_those_of_transformers(tokenizer: Tokenizer, theirs: Any, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text, special=True) == theirs.encode(text)
    assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert tokenizer.decode(ids, special=True) == theirs.decode(ids) == text


def test_digits_are_split_one_by_one(tokenizer: Tokenizer) -> None:
    assert [tokenizer.decode([id_]) for id_ in tokenizer.encode("1234")] == ["1", "2", "3", "4"]


def test_special_ids_are_those_of_the_model(tokenizer: Tokenizer, theirs: Any) -> None:
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pad_id) == (1, (2,), 2)
    assert theirs.bos_token_id == tokenizer.bos_id
    assert theirs.pad_token_id == tokenizer.pad_id
    assert tokenizer.vocab_size == len(theirs) == 49152


# SmolLM2's vocabulary has no tokens for some control characters, nor for planes in which Unicode has assigned nothing.
KNOWN = st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t", max_codepoint=0x3FFFF)


@settings(max_examples=200, deadline=None)
@given(text=st.text(KNOWN))
def test_any_text_survives_a_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text), special=True) == text


def test_eos_ids_are_gathered_from_every_file(folder: Path) -> None:
    _edit(folder / "config.json", eos_token_id=[7, 2])
    _edit(folder / "generation_config.json", eos_token_id=9)
    assert Tokenizer.load(folder).eos_ids == (2, 9, 7)


def test_a_padding_id_is_found_in_the_config_when_no_token_is_named(folder: Path) -> None:
    _edit(folder / "tokenizer_config.json", pad_token=None)
    _edit(folder / "generation_config.json", pad_token_id=None)
    _edit(folder / "config.json", pad_token_id=11)
    assert Tokenizer.load(folder).pad_id == 11


def test_special_tokens_written_as_records_are_read(folder: Path) -> None:
    _edit(folder / "tokenizer_config.json", bos_token={"content": "<|im_start|>", "special": True})
    assert Tokenizer.load(folder).bos_id == 1


def test_a_template_file_wins_and_a_list_means_its_default(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    _edit(folder / "tokenizer_config.json", chat_template=named)
    assert Tokenizer.load(folder).template == "plain"
    (folder / "chat_template.jinja").write_text("file")
    assert Tokenizer.load(folder).template == "file"


def test_the_digest_follows_vocabulary_and_template_only(tokenizer: Tokenizer, folder: Path) -> None:
    assert Tokenizer.load(folder).digest == tokenizer.digest
    _edit(folder / "config.json", eos_token_id=[7])
    assert Tokenizer.load(folder).digest == tokenizer.digest
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    changed_template = Tokenizer.load(folder).digest
    assert changed_template != tokenizer.digest
    with (folder / "tokenizer.json").open("a") as handle:
        handle.write("\n")
    assert Tokenizer.load(folder).digest not in (tokenizer.digest, changed_template)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"model": {}}', b"\xff\xfe"])
def test_a_missing_or_broken_tokenizer_file_is_a_named_error(folder: Path, content: bytes | None) -> None:
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(BadWeights, match=r"tokenizer\.json"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_tokenizer_config_is_a_named_error(folder: Path, content: str) -> None:
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(BadWeights, match=r"tokenizer_config\.json"):
        Tokenizer.load(folder)
