"""The program in an answer: fences, whole functions, bodies, prose around them."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from huilu.envs.code.extract import extract_program

PROMPT = '''from typing import List

LIMIT = 3

def double(x: int) -> int:
    """ Twice x
    >>> double(2)
    4
    """
'''


def defined(answer: str, prompt: str = PROMPT) -> Any:
    """`double` as the extracted program defines it. The answers here are ours, so they may run here."""
    source = extract_program(answer, prompt, "double")
    assert source is not None
    namespace: dict[str, Any] = {}
    exec(compile(source, "answer", "exec"), namespace)
    return namespace["double"]


@pytest.mark.parametrize(
    "answer",
    [
        "```python\ndef double(x: int) -> int:\n    return 2 * x\n```",
        "Sure! Here it is:\n\n```python\ndef double(x):\n    return 2 * x\n```\nIt doubles x.",
        "```\ndef double(x):\n    return 2 * x\n```",
        "```Python3 title=a.py\r\ndef double(x):\r\n    return 2 * x\r\n```\r\n",
        "~~~py\ndef double(x):\n    return 2 * x\n~~~",
        "````python\ndef double(x):\n    '''```'''\n    return 2 * x\n````",
        "```python\ndef double(x):\n    return 2 * x",
        "1. First:\n\n   ```python\n   def double(x):\n       return 2 * x\n   ```\n",
        "```python\ndef double(x):\n    return 0\n```\nNo, better:\n```python\ndef double(x):\n    return 2 * x\n```",
        "```python\ndef double(x):\n    return 2 * x\n```\nUse it so:\n```python\nprint(double(2))\n```",
        "```bash\npip install x\n```\n```python\ndef double(x):\n    return 2 * x\n```",
        "```python\nimport math\n```python\ndef double(x):\n    return 2 * x\n```",
        "def double(x: int) -> int:\n    return 2 * x\n",
        "Here is the function:\ndef double(x):\n    return 2 * x\n\nThis function returns twice its argument.",
        "def double(x):\n\treturn 2 * x",
        "    return 2 * x\n",
        "return 2 * x",
        "\n\n    return 2 * x\n\n",
        "        return 2 * x",
        "\treturn 2 * x",
        "y = x\nreturn 2 * y",
        "y = x\n    return 2 * y",
        "if x:\n        return 2 * x\n    return 0",
        "if x:\n    return 2 * x\nreturn 0",
        "if x:\n    return 2 * x",
        "    return 2 * x\n\ndef other():\n    pass\n",
        "    return 2 * x\n\nAnd that is all.",
        "```python\nreturn 2 * x\n```",
        "```python\n    return 2 * x\n```",
        "    def twice(y):\n        return 2 * y\n\n    return twice(x)",
        "double_it = 2\nreturn double_it * x",
    ],
)
def test_the_function_is_found(answer: str) -> None:
    assert defined(answer)(21) == 42


def test_the_prompts_imports_and_helpers_are_kept_for_an_answer_that_leaves_them_out() -> None:
    double = defined("```python\ndef double(x: List[int]) -> int:\n    return min(LIMIT, 2 * len(x))\n```")
    assert double([1, 2]) == 3


def test_future_imports_come_first() -> None:
    answer = "```python\nfrom __future__ import annotations\n\ndef double(x: Unknown) -> int:\n    return 2 * x\n```"
    assert defined(answer)(21) == 42


def test_a_class_may_be_the_entry_point() -> None:
    assert defined("```python\nclass double(int):\n    pass\n```")(4) == 4


@pytest.mark.parametrize("answer", ["", "   \n\t\n", "```python\n```", "```python\n\n\n```"])
def test_an_answer_without_code_has_no_program(answer: str) -> None:
    assert extract_program(answer, PROMPT, "double") is None


def test_text_inside_strings_keeps_its_columns() -> None:
    answer = '    text = """a\n  b\nc"""\n    return text\n'
    assert defined(answer)(0) == "a\n  b\nc"


def test_a_name_that_only_begins_like_the_function_is_not_it() -> None:
    source = extract_program("```python\ndef doubled(x):\n    return x\n```", PROMPT, "double")
    assert source is not None
    assert source.startswith(PROMPT)


@given(st.text(alphabet=st.sampled_from("`~ \n\tdef double(x):return#'\"py"), max_size=200))
def test_any_answer_gives_a_program_or_none(answer: str) -> None:
    source = extract_program(answer, PROMPT, "double")
    assert source is None or source.strip()


def test_a_blank_first_line_of_a_body_is_no_obstacle() -> None:
    # HumanEval/81 and /134 have such canonical solutions
    assert (
        defined(
            textwrap.dedent("""\

       \n    y = x
        return 2 * y
    """).replace("\n\n", "\n   \n")
        )(21)
        == 42
    )
