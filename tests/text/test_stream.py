"""Text that grows token by token equals the text of all tokens, and ends where a stop string begins."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from huilu.text.stream import TextStream
from huilu.text.tokenizer import Tokenizer


def _feed_singly(stream: TextStream, ids: list[int]) -> list[str]:
    return [stream.feed([id_]) for id_ in ids]


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), data=st.data())
def test_pieces_add_up_to_the_decoded_text_for_any_ids(
    tokenizer: Tokenizer, ids: list[int], data: st.DataObject
) -> None:
    stream = TextStream(tokenizer)
    pieces, rest = [], list(ids)
    while rest:
        take = data.draw(st.integers(1, len(rest)))
        pieces.append(stream.feed(rest[:take]))
        rest = rest[take:]
    pieces.append(stream.finish())
    assert "".join(pieces) == stream.text == tokenizer.decode(ids)
    assert stream.text_end == len(ids)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="ab \n回é🙂", max_size=30),
    stop=st.lists(st.text(alphabet="ab \n回🙂", min_size=1, max_size=4), max_size=3),
)
def test_the_text_ends_where_the_stop_string_that_is_complete_first_begins(
    tokenizer: Tokenizer, text: str, stop: list[str]
) -> None:
    stream = TextStream(tokenizer, stop)
    given_out = "".join([*_feed_singly(stream, tokenizer.encode(text)), stream.finish()])
    hits = [(text.find(word) + len(word), text.find(word)) for word in stop if word in text]
    assert given_out == stream.text == (text[: min(hits)[1]] if hits else text)
    assert (stream.stopped is not None) == bool(hits)


def test_a_character_appears_only_when_all_its_bytes_are_there(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🫠")
    assert len(ids) > 1
    assert _feed_singly(TextStream(tokenizer), ids) == [""] * (len(ids) - 1) + ["🫠"]


def test_bytes_that_never_become_a_character_come_out_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🫠")[:-1]
    stream = TextStream(tokenizer)
    assert stream.feed(ids) == ""
    assert stream.finish() == tokenizer.decode(ids) != ""


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_decided(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["\n\nQ:"])
    assert stream.feed(tokenizer.encode("yes\n\n")) == "yes"
    assert stream.feed(tokenizer.encode("and")) == "\n\nand"
    assert stream.feed(tokenizer.encode("\n\nQ: more")) == ""
    assert stream.stopped == "\n\nQ:"
    assert stream.text == "yes\n\nand"


def test_a_stop_string_across_tokens_is_found_and_its_tokens_are_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two") + tokenizer.encode("##") + tokenizer.encode("#END tail")
    stream = TextStream(tokenizer, ["###END"])
    stream.feed(ids)
    assert stream.text == "one two"
    assert stream.text_end == len(tokenizer.encode("one two"))
    assert tokenizer.decode(ids[: stream.text_end]) == "one two"


def test_a_token_that_holds_text_and_the_beginning_of_a_stop_is_not_counted_as_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the number")
    assert len(ids) == 2
    stream = TextStream(tokenizer, ["umber"])
    stream.feed(ids)
    assert (stream.text, stream.text_end) == ("the n", 1)


def test_ids_after_a_stop_are_ignored(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["."])
    stream.feed(tokenizer.encode("Yes. No."))
    assert stream.feed(tokenizer.encode(" More.")) == stream.finish() == ""
    assert stream.text == "Yes"


def test_special_tokens_are_no_text(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["<|im_end|>"])
    assert stream.feed([*tokenizer.encode("done"), 2]) + stream.finish() == "done"
    assert stream.stopped is None
