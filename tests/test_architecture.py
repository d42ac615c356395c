"""Imports point one way, and light things stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCE = ROOT / "src" / "statetrack"

# what each part may import besides itself
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "allocator": {"errors"},
    "config": {"errors"},
    "devices": {"errors"},
    "files": {"errors"},
    "memory": {"errors"},
    "plugins": {"errors"},
    "requirements": set(),
    "terminal": {"errors", "files"},
    "kernels": {"errors", "requirements"},
    "ops": {"errors", "devices", "kernels"},
    "automata": {"errors", "files"},
    "layers": {"errors", "config", "kernels", "ops", "plugins"},
    "models": {"errors", "config", "files", "layers", "memory", "ops"},
    "integrations": {"errors", "layers", "ops"},
    "testing": {"errors", "config"},  # no pytest, and no layers of ours: it is for any layer
    "selftest": {"errors", "kernels", "layers", "ops", "testing"},
    "tasks": {"errors", "config", "files", "automata", "memory", "plugins"},
    "training": {
        "errors", "config", "files", "layers", "memory", "models", "ops", "plugins", "tasks",
        "devices",
    },
    "compiler": {
        "errors", "config", "files", "terminal", "automata", "kernels", "layers", "models", "ops",
        "tasks", "training", "devices",
    },
    "explanation": {"errors", "files", "terminal", "automata", "compiler", "layers"},
    "diagnosis": {
        "errors", "config", "files", "terminal", "automata", "compiler", "explanation", "layers",
        "models", "ops", "tasks", "training", "devices",
    },
    "hardening": {
        "errors", "config", "files", "terminal", "automata", "compiler", "diagnosis", "layers",
        "models", "ops", "tasks", "training", "devices",
    },
    "sweep": {
        "allocator", "errors", "config", "files", "terminal", "compiler", "diagnosis", "hardening",
        "models", "tasks", "training", "devices",
    },
    "report": {
        "errors", "config", "files", "terminal", "compiler", "diagnosis", "sweep", "training",
        "devices",
    },
    "lm": {
        "errors", "allocator", "config", "files", "memory", "terminal", "diagnosis", "integrations",
        "layers", "models", "ops", "plugins", "report", "requirements", "sweep", "tasks",
        "training", "devices",
    },
    "recipes": {
        "errors", "allocator", "config", "files", "terminal", "automata", "compiler", "diagnosis",
        "hardening", "layers", "lm", "models", "report", "sweep", "tasks", "training", "devices",
    },
}  # fmt: skip


def imported_parts(file: Path) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("statetrack."):
            parts.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            parts |= {name.split(".")[1] for name in names if name.startswith("statetrack.")}
    return parts


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part: str) -> None:
    folder = SOURCE / part
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [SOURCE / f"{part}.py"]
    assert files
    for file in files:
        assert imported_parts(file) <= ALLOWED[part] | {part}, file


def test_every_part_has_a_rule() -> None:
    parts = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    top = {"__init__", "__main__", "__pycache__", "api", "cli"}
    assert parts - top == set(ALLOWED)


@pytest.mark.parametrize("module", ["statetrack", "statetrack.cli.main", "statetrack.automata"])
def test_light_imports_do_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ops_do_not_load_the_compiler() -> None:
    """torch._dynamo takes longer to import than all of the ops, and few calls need it."""
    code = "import sys, statetrack.ops; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_exist() -> None:
    import statetrack

    for name in statetrack.__all__:
        assert getattr(statetrack, name) is not None
    assert set(statetrack.layers.__all__) <= set(statetrack.__all__)
    assert not set(statetrack.layers.__all__) & set(statetrack.ops.__all__)
    with pytest.raises(AttributeError):
        _ = statetrack.no_such_thing


def test_types_of_public_names_are_known(tmp_path: Path) -> None:
    """mypy sees them although they load on first use."""
    file = tmp_path / "file.py"
    file.write_text("import statetrack as st\nst.compile('a*').prove()\nst.DeltaNet(8)\nst.nope\n")
    command = [sys.executable, "-m", "mypy", str(file)]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout
    assert '"nope"' in out
    assert out.count("error:") == 1
