"""The test's side of a check: runs the test code, whose unknown names are the candidate's functions, by proxy.

No code of the candidate runs here: what it answers arrives as plain values. The outcome goes out on pipe 5, and only
a test that ran to its end says `passed`.
"""

import ast
import builtins


class CandidateRaised(Exception):  # noqa: N818
    """The candidate's function raised what is no builtin exception."""


class Gone(BaseException):
    """The candidate's process is no more."""


class Odd(BaseException):
    """The candidate answered with a value that is no plain builtin."""


def call(name, positional, keywords):
    try:
        arguments = encode((list(positional), keywords))
        send(4, [name, arguments])
        kind, *answer = receive(3)
    except (EOFError, BrokenPipeError, UnicodeDecodeError, json.JSONDecodeError):
        raise Gone from None
    if kind == "value":
        return decode(answer[0])
    if kind == "odd":
        raise Odd(answer[0])
    known = getattr(builtins, answer[0], None)
    if isinstance(known, type) and issubclass(known, Exception):
        raise known(answer[1])
    raise CandidateRaised(f"{answer[0]}: {answer[1]}")


def proxies(tree):
    """A stand-in for each name that the test uses and nobody defines."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | {"__name__"}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    unknown = {node.id for node in names} - bound - set(dir(builtins))
    return {name: (lambda *a, _name=name, **k: call(_name, a, k)) for name in unknown}


def main():
    with open("/work/check.py", encoding="utf-8") as file:
        source = file.read()
    tree = ast.parse(source, "check.py")
    namespace = {"__name__": "check", **proxies(tree)}
    code = compile(tree, "check.py", "exec")
    try:
        if receive(3) != ["ready"]:
            raise Gone
        exec(code, namespace)  # noqa: S102 - the data set's own test
    except (Gone, EOFError, UnicodeDecodeError, json.JSONDecodeError):
        outcome = ["gone", ""]
    except Odd as error:
        outcome = ["odd", str(error)]
    except AssertionError as error:
        outcome = ["failed", str(error)[:500]]
    except NotPlainError as error:
        outcome = ["weak", str(error)]
    except Exception as error:  # noqa: BLE001 - whatever it was, the test did not pass
        outcome = ["raised", f"{type(error).__name__}: {error}"[:500]]
    else:
        outcome = ["passed", ""]
    send(5, outcome)


main()
