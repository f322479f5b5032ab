"""The candidate's side of a check: runs its source, then answers calls of its functions until nobody asks.

Never sees a test or an expected value: only arguments, one call at a time, on pipe 3; results go out on pipe 4.
"""


def main():
    import sys

    sys.setrecursionlimit(20_000)
    with open("/work/candidate.py", encoding="utf-8", errors="surrogateescape") as file:
        source = file.read()
    namespace = {"__name__": "candidate"}
    exec(compile(source, "candidate.py", "exec"), namespace)  # noqa: S102 - that is what the jail is for
    send(4, ["ready"])
    while True:
        try:
            name, arguments = receive(3)
        except EOFError:
            return
        try:
            positional, keywords = decode(arguments)
            answer = ["value", encode(namespace[name](*positional, **keywords))]
        except NotPlainError as error:
            answer = ["odd", str(error)]
        except Exception as error:  # noqa: BLE001 - the test may expect it
            answer = ["raised", [type(error).__name__, str(error)[:500]]]
        send(4, answer)


main()
