"""The last number in a text: what an arithmetic answer is judged by.

Called by `arithmetic` and `jsonl`. Exact: numbers are decimals of any length, never floats, so that no answer is
right by rounding and none makes `int()` refuse its length.
"""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = re.compile(
    r"""
    (?P<sign>(?<![\w)])[-\u2212])?                                # a minus, unless it subtracts: 5-3 ends in 3
    (?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)          # 1,234 or 1234
    (?P<rest>(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,4}(?![0-9]))?)      # .5, e-3; a full stop is no point
    """,
    re.VERBOSE,
)


def last_number(text: str) -> Decimal | None:
    """The last number of `text`, or None when it has none. Linear in its length."""
    last = None
    for last in _NUMBER.finditer(text):  # noqa: B007 - the last match is what is wanted
        pass
    if last is None:
        return None
    sign = "-" if last["sign"] else ""
    return Decimal(sign + last["digits"].replace(",", "") + last["rest"])
