"""The repository keeps its own rules: sizes, light imports, no paths of a machine, no registry hosts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "huilu"
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_FOLDER_FILES = 400, 60, 15
CONTROL_PLANE = (
    *("cli", "cli.run", "cli.model", "cli.runs", "cli.config", "cli.data", "cli.bench"),
    *("assembly.control", "assembly.served", "assembly.bench"),
    *("loop", "release.chain", "release.gate", "release.releases", "checks.preflight", "observe.report"),
    *("envs.registry", "work.flow", "work.rollouts", "work.calls", "work.worker", "serving.client", "bus.claims"),
    *("sandbox.client", "sandbox.daemon", "store.database", "text.chat", "text.stream", "wire", "config.load", "core"),
)
MIGRATIONS = SOURCE / "store" / "migrations" / "versions"
"""Written by Alembic and frozen: a revision is as long as it is."""
INSIDE_JAILS = ("sandbox/inside", "sandbox/warm")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_files_stay_small() -> None:
    long = {path.name: count for path in sources() if (count := len(path.read_text().splitlines())) > MAX_FILE_LINES}
    assert long == {}


def test_functions_stay_small() -> None:
    long = []
    for path in sources():
        if MIGRATIONS in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                if count > MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {count}")
    assert long == []


def test_folders_stay_small() -> None:
    counts = {folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in sources()}}
    assert {str(folder): count for folder, count in counts.items() if count > MAX_FOLDER_FILES} == {}


@pytest.mark.parametrize("module", CONTROL_PLANE)
def test_the_control_plane_loads_no_torch(module: str) -> None:
    program = (
        f"import importlib, sys; importlib.import_module('huilu.{module}'); "
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_help_loads_no_database_no_template_and_no_tokeniser() -> None:
    program = (
        "import sys; from huilu.cli.app import build; build(['--help']); "
        "print(sorted({'sqlalchemy', 'alembic', 'jinja2', 'tokenizers', 'numpy'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_no_tracked_file_names_a_folder_of_this_machine_or_a_registry() -> None:
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "registry.npm" + "js", "deb.debian" + ".org"]
    words = re.compile(
        "|".join([*map(re.escape, hosts), *(rf"(?<![\w.]){re.escape(str(each))}/" for each in (ROOT, Path.home()))])
    )
    found = {path.relative_to(ROOT): words.findall(path.read_text(errors="ignore")) for path in tracked()}
    assert {path: named for path, named in found.items() if named} == {}


def test_broad_excepts_stand_only_where_foreign_code_is_classified() -> None:
    allowed = {"errors.py", "store/database.py", "work/worker.py"}
    found = set()
    for path in sources():
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(INSIDE_JAILS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                names = {each.id for each in caught if isinstance(each, ast.Name)}
                if node.type is None or names & {"Exception", "BaseException"}:
                    found.add(name)
    assert found - allowed - RE_RAISING == set()


RE_RAISING = {"model/folder.py", "train/state.py"}
"""Files that catch everything only to clean up and raise it again."""


def test_every_link_of_the_documents_leads_somewhere() -> None:
    links = [
        (path, target)
        for path in tracked("*.md")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
        if "://" not in target
    ]
    assert [f"{path.name}: {target}" for path, target in links if not (path.parent / target).exists()] == []
