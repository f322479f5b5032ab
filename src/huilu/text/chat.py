"""Conversations to token ids by the model's own chat template, and longer conversations without re-tokenising.

Called by the rollouts, evaluation and the servers. The template is a program that came with the model: it runs in
jinja's immutable sandbox, with the helpers that transformers gives it and no others. Ids that were sampled stay as
they are: a later turn is the ids so far, plus the ids of what the template puts after them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from huilu.core.nouns import Message
from huilu.errors import BadWeights, Refused, boundary
from huilu.text.tokenizer import Tokenizer

# Stands for a message's content to find the text that the template puts around it; in no language's text.
_PROBE = "huilu0probe0"
# Stands in what an environment says where the text of a special token is cut in two, and is itself never encoded.
_CUT = "huilu0cut0"


class Chat:
    """A tokeniser with its compiled chat template. Raises BadWeights when there is none, or it does not compile."""

    def __init__(self, tokenizer: Tokenizer, now: Callable[[], datetime] = datetime.now) -> None:
        if tokenizer.template is None:
            raise BadWeights(
                "the model has no chat template",
                expected="chat_template in tokenizer_config.json or chat_template.jinja",
                fix="choose an instruction-tuned model, or add a template",
            )
        self._tokenizer = tokenizer
        try:
            self._template = _environment(now).from_string(tokenizer.template)
        except jinja2.TemplateSyntaxError as error:
            raise BadWeights(
                f"the chat template, line {error.lineno}: {error.message}",
                expected="a jinja template",
                fix="copy or download the tokeniser's files again",
            ) from error

    def render_text(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation, as transformers' `apply_chat_template` renders it.

        Raises Refused when the template refuses the conversation (roles that do not alternate, say), and
        ExtensionFailed when it is broken.
        """
        with boundary("the chat template"):
            try:
                return self._template.render(
                    messages=[{"role": message.role, "content": message.content} for message in messages],
                    tools=None,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    **self._tokenizer.special_tokens,
                )
            except jinja2.TemplateError as error:
                roles = ", ".join(message.role for message in messages)
                raise Refused(
                    f"the chat template refuses a conversation of {roles}: {error}",
                    fix="change the roles of the messages, or the template",
                ) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The ids of `render_text`."""
        return self._tokenizer.encode(self.render_text(messages, add_generation_prompt=add_generation_prompt))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, without special tokens."""
        return self._tokenizer.decode(ids)

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """The ids to append to `ids`, which end with a sampled answer, for `messages` and the next answer's prompt.

        They close the answer if the policy did not (no EOS, when it was cut), and are computed as the difference
        of two renderings that hold this very answer. The text of a special token within `messages` (a program may
        have printed it) stays text: it ends no turn and begins none. Raises Refused when the template would rewrite
        what stands already (as those do that drop reasoning from earlier answers): the ids could not follow it.
        """
        question = Message("user", _PROBE)
        opening = self.render_text([question])
        answer = self._answer(ids, opening.rpartition(_PROBE)[2])
        answered = [question, Message("assistant", answer)]
        before = self.render_text(answered, add_generation_prompt=False)
        after = self.render_text([*answered, *map(self._cut, messages)])
        if not (before.startswith(opening) and after.startswith(before)):
            raise Refused(
                "the chat template rewrites earlier turns when a message is added",
                expected="template(messages + new) to start with template(messages)",
                fix="use a template that keeps the history as it was sampled, or single-turn tasks",
            )
        probed = self.render_text([question, Message("assistant", _PROBE)], add_generation_prompt=False)
        closing = probed.rpartition(_PROBE)[2]
        parts = (closing + after[len(before) :]).split(_CUT)
        added = [id_ for part in parts for id_ in self._tokenizer.encode(part)]
        closed = bool(ids) and ids[-1] in self._tokenizer.eos_ids and added[:1] == [ids[-1]]
        return added[1:] if closed else added

    def _cut(self, message: Message) -> Message:
        """The message with a cut within the text of each special token."""
        content = message.content.replace(_CUT, "")
        for text in self._tokenizer.special_texts:
            content = content.replace(text, text[:1] + _CUT + text[1:])
        return Message(message.role, content)

    def _answer(self, ids: Sequence[int], marker: str) -> str:
        """The text after the last place where the template asks for an answer, without the EOS that ended it."""
        ended = bool(ids) and ids[-1] in self._tokenizer.eos_ids
        text = self._tokenizer.decode(ids[:-1] if ended else ids, special=True)
        _, found, answer = text.rpartition(marker)
        if not found:
            raise Refused(
                "the ids to extend hold no place where the template asks for an answer",
                expected=f"{marker!r} before the answer",
                fix="extend only ids that began with `render`",
            )
        return answer


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text in some templates; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own way to declare it)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """The environment that transformers compiles chat templates in."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML; templates expect plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
