"""Values between the two jails of a check: exact builtin types only, as tagged JSON; frames on two pipes.

Put in front of `serve` and `examine`. What is decoded is always a plain builtin: a subclass that lies when it is
compared cannot cross.
"""

import collections
import json
import os

DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
"""What crosses as a plain dict."""
MAX_BYTES = 64 << 20
"""A longer frame is garbage."""


class NotPlainError(TypeError):
    """A value that is no plain builtin."""


def encode(value):
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return {"i": hex(value)}
    if kind is float:
        return {"f": value.hex()}
    if kind is complex:
        return {"c": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"b": value.hex()}
    for name, container in (("l", list), ("t", tuple), ("s", set), ("z", frozenset)):
        if kind is container:
            return {name: [encode(item) for item in value]}
    if kind in DICTS:
        return {"d": [[encode(key), encode(item)] for key, item in dict.items(value)]}
    raise NotPlainError(f"a {kind.__name__} is no plain value")


def decode(tagged):
    if not isinstance(tagged, dict):
        return tagged
    ((name, inner),) = tagged.items()
    if name == "d":
        return {decode(key): decode(item) for key, item in inner}
    if name in "ltsz":
        return {"l": list, "t": tuple, "s": set, "z": frozenset}[name](decode(item) for item in inner)
    if name == "c":
        return complex(float.fromhex(inner[0]), float.fromhex(inner[1]))
    return {"i": lambda text: int(text, 16), "f": float.fromhex, "b": bytes.fromhex}[name](inner)


def send(descriptor, message):
    data = json.dumps(message).encode()
    data = memoryview(len(data).to_bytes(4, "big") + data)
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor):
    def exactly(size):
        data = bytearray()
        while len(data) < size:
            part = os.read(descriptor, size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    size = int.from_bytes(exactly(4), "big")
    if size > MAX_BYTES:
        raise EOFError
    return json.loads(exactly(size))
