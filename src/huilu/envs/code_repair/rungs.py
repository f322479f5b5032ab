"""The ladder's rungs: families of small functions, from one operation on two numbers to several steps over a list.

Called by `ladder`, which fills in names and constants. Text alone: a family is a sentence, the kinds of its arguments
and a body, with {a} and {b} for the arguments, {k} for a whole number, {d} for a small one
and {c} for a letter.
"""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """Functions that differ in names and constants. `kinds` has a letter an argument.

    i: a whole number, negative too · n: a natural number · s: a word · l: a list of whole numbers · w: a list of words
    """

    says: str
    kinds: str
    body: str


RUNGS: dict[str, tuple[Family, ...]] = {
    "sums": (
        Family("{a} plus {b}", "ii", "return {a} + {b}"),
        Family("{a} minus {b}", "ii", "return {a} - {b}"),
        Family("{a} times {b}", "ii", "return {a} * {b}"),
        Family("{a} plus {k}", "i", "return {a} + {k}"),
        Family("{a} minus {k}", "i", "return {a} - {k}"),
        Family("{k} times {a}", "i", "return {k} * {a}"),
        Family("{k} minus {a}", "i", "return {k} - {a}"),
        Family("the square of {a}", "i", "return {a} * {a}"),
    ),
    "formulas": (
        Family("{k} times {a}, plus {b}", "ii", "return {k} * {a} + {b}"),
        Family("{a} minus {k} times {b}", "ii", "return {a} - {k} * {b}"),
        Family("{k} times the sum of {a} and {b}", "ii", "return {k} * ({a} + {b})"),
        Family("the product of {a} and {b}, plus {k}", "ii", "return {a} * {b} + {k}"),
        Family("the square of {a}, minus {b}", "ii", "return {a} * {a} - {b}"),
        Family("the square of {a}, plus {k}", "i", "return {a} * {a} + {k}"),
        Family("the remainder of {a} divided by {k}", "n", "return {a} % {k}"),
        Family("how often {k} goes into {a}, rounded down", "n", "return {a} // {k}"),
    ),
    "choices": (
        Family("the larger of {a} and {b}", "ii", "return max({a}, {b})"),
        Family("the smaller of {a} and {b}", "ii", "return min({a}, {b})"),
        Family("the distance between {a} and {b}", "ii", "return abs({a} - {b})"),
        Family("True if {a} is greater than {k}, else False", "i", "return {a} > {k}"),
        Family("True if {a} is divisible by {k}, else False", "n", "return {a} % {k} == 0"),
        Family("{a}, but at most {k}", "i", "return min({a}, {k})"),
        Family("{a}, but at least {k}", "i", "return max({a}, {k})"),
        Family("{a} if {b} is positive, else {k}", "ii", "return {a} if {b} > 0 else {k}"),
    ),
    "strings": (
        Family("{a} reversed", "s", "return {a}[::-1]"),
        Family("{a} in capitals", "s", "return {a}.upper()"),
        Family("the first {d} letters of {a}", "s", "return {a}[:{d}]"),
        Family("the last {d} letters of {a}", "s", "return {a}[-{d}:]"),
        Family("{a} repeated {d} times", "s", "return {a} * {d}"),
        Family('the number of times "{c}" occurs in {a}', "s", 'return {a}.count("{c}")'),
        Family('{a} with every "{c}" removed', "s", 'return {a}.replace("{c}", "")'),
        Family('{a} and {b} joined with a "-" between them', "ss", 'return {a} + "-" + {b}'),
        Family("the length of {a} plus {k}", "s", "return len({a}) + {k}"),
        Family('True if {a} starts with "{c}", else False', "s", 'return {a}.startswith("{c}")'),
    ),
    "lists": (
        Family("the sum of {a}", "l", "return sum({a})"),
        Family("the largest number in {a}", "l", "return max({a})"),
        Family("the first {d} items of {a}", "l", "return {a}[:{d}]"),
        Family("{a} in reverse order", "l", "return {a}[::-1]"),
        Family("{a} sorted from the largest to the smallest", "l", "return sorted({a}, reverse=True)"),
        Family("the difference of the largest and the smallest number in {a}", "l", "return max({a}) - min({a})"),
        Family("a list of the numbers in {a}, each times {k}", "l", "return [{k} * x for x in {a}]"),
        Family("a list of the numbers in {a} that are greater than {k}", "l", "return [x for x in {a} if x > {k}]"),
        Family("a list of the lengths of the words in {a}", "w", "return [len(x) for x in {a}]"),
        Family('the words of {a} joined with "{c}"', "w", 'return "{c}".join({a})'),
    ),
    "loops": (
        Family("the sum of the whole numbers from 1 to {a}", "n", "return sum(range(1, {a} + 1))"),
        Family("the sum of the squares from 1 to {a}", "n", "return sum(x * x for x in range(1, {a} + 1))"),
        Family(
            "the product of the whole numbers from 1 to {a}",
            "n",
            "result = 1\nfor x in range(1, {a} + 1):\n    result *= x\nreturn result",
        ),
        Family(
            "a list of the multiples of {k} from {k} to {k} times {a}",
            "n",
            "return [{k} * x for x in range(1, {a} + 1)]",
        ),
        Family("the sum of the digits of {a} times {k}", "n", "return sum(int(x) for x in str({a} * {k}))"),
        Family("how many numbers in {a} are divisible by {k}", "l", "return sum(x % {k} == 0 for x in {a})"),
        Family("the sum of the numbers in {a} that are greater than {k}", "l", "return sum(x for x in {a} if x > {k})"),
        Family("the position of the largest number in {a}", "l", "return {a}.index(max({a}))"),
        Family('how many words in {a} contain "{c}"', "w", 'return sum("{c}" in x for x in {a})'),
        Family("the longest word in {a}; of several, the first", "w", "return max({a}, key=len)"),
    ),
}
