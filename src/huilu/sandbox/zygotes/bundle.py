"""The script that a zygote runs: the modules of `warm` joined into one text, since its jail has none of our files.

Called by `profiles`. The profile's own modules are imported first, so that what is left in a program's `sys.modules`
is exactly the interpreter's and the profile's.
"""

from __future__ import annotations

from pathlib import Path

ROOM = Path(__file__).parents[1]
MODULES = (
    "kernel.linux",
    "kernel.landlock",
    "warm.files",
    "warm.order",
    "warm.jail",
    "warm.program",
    "warm.zygote",
)
"""In the order of their needs."""
_PACKAGE = "huilu.sandbox"

_HEAD = """\
import sys
for name in {imports!r}: __import__(name)
{then}before = set(sys.modules)
from types import ModuleType
for name in {packages!r}:
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = []
for name, text in {texts!r}:
    module = sys.modules[name] = ModuleType(name)
    setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    exec(compile(text, name, "exec", dont_inherit=True), vars(module))
sys.modules["{package}.warm.zygote"].main(before, {scripts!r})()
"""


def script(imports: tuple[str, ...], then: str = "") -> str:
    """The text of a zygote whose programs find these modules loaded; `then` runs after that."""
    packages = ("huilu", _PACKAGE, f"{_PACKAGE}.kernel", f"{_PACKAGE}.warm")
    texts = [(f"{_PACKAGE}.{name}", _text(name.replace(".", "/"))) for name in MODULES]
    values = _text("inside/values")
    scripts = {name: f"{values}\n\n{_text(f'inside/{name}')}" for name in ("serve", "examine")}
    return _HEAD.format(imports=imports, then=then, packages=packages, texts=texts, scripts=scripts, package=_PACKAGE)


def _text(name: str) -> str:
    return (ROOM / f"{name}.py").read_text(encoding="utf-8")
