"""Whether two mathematical expressions are equal, by `math-verify`. Runs in a worker process, under a deadline.

Called by name through `Tools.calls`; never in control: sympy may compute for ever on what a model wrote. The
package's own time-outs are off, since they use signals, count as "not equal", and cannot stop a loop in C.
"""

from __future__ import annotations

from huilu import errors


def math_equal(expected: str, answer: str) -> bool | None:
    """Does the last expression in `answer` equal `expected` (LaTeX or plain)? None: `expected` cannot be read."""
    try:
        # Pulls in sympy and an ANTLR parser: only jobs that compare mathematics should pay.
        import math_verify  # noqa: PLC0415
    except ImportError as error:
        raise errors.BadConfig(
            f"equality `math` needs the package math-verify: {error}", fix="pip install 'huilu[tasks]'"
        ) from error
    if answer.strip() == expected.strip():
        return True
    anchored = expected if "$" in expected or "\\boxed" in expected else f"${expected}$"
    gold = math_verify.parse(anchored, parsing_timeout=None)
    if not gold:
        return None
    found = math_verify.parse(answer, parsing_timeout=None)
    return bool(math_verify.verify(gold, found, timeout_seconds=None))
