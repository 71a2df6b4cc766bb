"""Imports point down: every import of every file, deferred and type-checking ones included."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "growthring"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

# From the bottom up. A name stands for growthring/<name>.py or everything under growthring/<name>/.
# A unit imports from itself and from lower levels, never from a neighbour on its own level.
# A new module has to be placed here.
LEVELS: list[set[str]] = [
    {"errors"},
    {"core", "files"},
    {"distributed"},
    {"graph", "optim", "zoo", "data", "checkpoint"},
    {"planning", "runs", "decoding"},
    {"methods", "streams"},
    {"growing"},
    {"train", "report", "integrations"},
    {"compare"},
    {"cli"},
    {"__init__", "__main__"},
]
ISOLATED = {"zoo"}  # plain models: they import nothing of growthring outside themselves


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name, e.g. 'growthring.core.rings'; a package loses its '__init__'."""
    parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """Return the name that LEVELS lists for a module of the package."""
    return module.split(".")[1] if "." in module else "__init__"


@functools.cache  # several tests look at all files
def nodes(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def imported_modules(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for every import of a module of the package in a file."""
    modules = {module_name(p, root) for p in root.rglob("*.py")}
    module = module_name(path, root)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def absolute(name: str, level: int) -> str:
        if level == 0:
            return name
        base = ".".join(package.split(".")[: len(package.split(".")) - level + 1])
        return f"{base}.{name}" if name else base

    for node in nodes(path.read_text(encoding="utf-8")):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node.module or "", node.level)
            # `from package import name` means the submodule where there is one.
            submodules = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in modules else base for name in submodules]
        elif isinstance(node, ast.Call) and node.args:  # import_module("..."), __import__("...")
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            value = getattr(node.args[0], "value", None)
            if called in {"import_module", "__import__"} and isinstance(value, str):
                name = value.lstrip(".")
                names = [absolute(name, len(value) - len(name))]
        for name in dict.fromkeys(names):
            if name == PACKAGE or name.startswith(f"{PACKAGE}."):
                yield node.lineno, name


def violations(root: Path) -> list[str]:
    """Return one line for each module without a level and for each import that does not go down."""
    level_of = {unit: level for level, units in enumerate(LEVELS) for unit in units}
    found = []
    for path in sorted(root.rglob("*.py")):
        module = module_name(path, root)
        where = path.relative_to(root).as_posix()
        unit = path.stem if path.parent == root else unit_of(module)
        if unit not in level_of:
            found.append(f"{where}: '{unit}' is in no layer; place it in LEVELS of {__file__}")
            continue
        for line, target in imported_modules(path, root):
            other = unit_of(target)
            if other == unit:
                continue
            if other not in level_of:
                reason = f"'{other}' is in no layer"
            elif unit in ISOLATED:
                reason = f"'{unit}' imports nothing of {PACKAGE}"
            elif level_of[other] == level_of[unit]:
                reason = f"'{unit}' and '{other}' are neighbours on level {level_of[unit]}"
            elif level_of[other] > level_of[unit]:
                reason = f"level {level_of[unit]} imports level {level_of[other]}"
            else:
                continue
            found.append(f"{where}:{line}: imports {target}: {reason}")
    return found


def test_imports_point_down():
    assert not violations(SOURCE), "\n" + "\n".join(violations(SOURCE))


def test_a_unit_has_one_level():
    assert sum(len(units) for units in LEVELS) == len(set().union(*LEVELS))
    assert set().union(*LEVELS) >= ISOLATED


def cycle(root: Path) -> list[str]:
    """Modules that import each other in a circle, the first one found; a package stands for its own file."""
    imports = {
        module_name(path, root): sorted({name for _, name in imported_modules(path, root)})
        for path in root.rglob("*.py")
    }
    done: set[str] = set()

    def follow(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return []
        for target in imports.get(module, ()):
            found = follow(target, [*trail, module])
            if found:
                return found
        done.add(module)
        return []

    return next((found for module in sorted(imports) if (found := follow(module, []))), [])


def test_no_module_imports_itself_in_a_circle():
    assert cycle(SOURCE) == []


def test_files_are_short():
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in SOURCE.rglob("*.py")}
    long = {str(path.relative_to(SOURCE)): count for path, count in lines.items() if count > 350}
    assert not long
    assert sorted(lines.values())[len(lines) // 2] < 150


# The checker itself, on a small tree.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package that obeys the rules."""
    files = {
        "__init__.py": "from .growing import Grower as Grower\nfrom growthring import errors\n",
        "__main__.py": "from growthring.cli import main\n",
        "errors.py": "import torch\n",
        "core/__init__.py": "from .rings import Ring as Ring\n",
        "core/rings.py": "from ..errors import GrowthError\nfrom .. import errors\n",
        "core/widen.py": "from . import rings\nfrom growthring.core import Ring\n",
        "graph/__init__.py": "",
        "graph/rules/conv.py": "from ..trace import trace\nfrom ...core.rings import Ring\n",
        "graph/trace.py": "import growthring.core.rings as rings, os\n",
        "data/batches.py": "from growthring import errors\n",
        "zoo/mlp.py": "import torch\nfrom .blocks import Block\n",
        "zoo/blocks.py": "",
        "planning/__init__.py": "from growthring.graph import trace\nfrom growthring import errors\n",
        "growing/__init__.py": "from growthring.planning import Plan\n",
        "cli.py": "def main():\n    from growthring.growing import Grower\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_tree_that_obeys_passes(tree: Path):
    assert violations(tree) == []


def test_a_circle_is_found(tree: Path):
    assert cycle(tree) == []
    (tree / "core" / "widen.py").write_text("from .rings import Ring\n")
    (tree / "core" / "rings.py").write_text("def f():\n    from .widen import widen\n")
    assert cycle(tree) == [f"growthring.core.{name}" for name in ("rings", "widen", "rings")]


UPWARD = {
    "plain": ("core/bad.py", "import growthring.planning\n"),
    "second name": ("core/bad.py", "import os, growthring.planning as p\n"),
    "from": ("core/bad.py", "from growthring.planning import Plan\n"),
    "from the package": ("core/bad.py", "from growthring import planning\n"),
    "from the top": ("core/bad.py", "from growthring import Grower\n"),
    "the top itself": ("core/bad.py", "import growthring as gr\n"),
    "star": ("core/bad.py", "from growthring.graph import *\n"),
    "relative": ("core/bad.py", "from ..planning import Plan\n"),
    "relative, no module": ("core/bad.py", "from .. import planning\n"),
    "relative, two up": ("graph/rules/bad.py", "from ...planning import Plan\n"),
    "relative, in a package": ("core/__init__.py", "from ..graph import trace\n"),
    "relative, top level": ("errors.py", "from .core import rings\n"),
    "deferred": ("core/bad.py", "def f():\n    from growthring.planning import Plan\n"),
    "type checking": (
        "core/bad.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..planning import Plan\n",
    ),
    "import_module": ("core/bad.py", "importlib.import_module('growthring.planning')\n"),
    "import_module, relative": ("core/bad.py", "import_module('..planning', __package__)\n"),
    "neighbour": ("data/batches.py", "from growthring.graph import trace\n"),
    "neighbour, relative": ("graph/bad.py", "from ..data import Batches\n"),
    "isolated": ("zoo/bad.py", "from growthring.errors import GrowthError\n"),
    "no such layer": ("cli.py", "from growthring.utils import helper\n"),
}


@pytest.mark.parametrize(("name", "text"), UPWARD.values(), ids=UPWARD.keys())
def test_an_upward_import_is_found(tree: Path, name: str, text: str):
    (tree / name).write_text(text)
    (found,) = violations(tree)
    assert found.startswith(f"{name}:{len(text.splitlines())}: imports growthring")


@pytest.mark.parametrize("name", ["utils.py", "mystery/loop.py", "mystery/__init__.py"])
def test_a_module_in_no_layer_is_found(tree: Path, name: str):
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text("import torch\n")
    (found,) = violations(tree)
    assert found.startswith(f"{name}: '{name.split('/')[0].removesuffix('.py')}' is in no layer")
