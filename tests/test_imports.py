"""Imports run one way: between packages as the documentation lists them, and between files."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TREES = ("benchmarks", "recipes", "local", "toolkit")
"""From the top; each may import those below it."""


def packages() -> list[str]:
    """Return the packages of the toolkit from the lowest up, as `docs/README.md` lists them."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^\| \[(\w+)\]\(packages/\1\.md\)", text, re.MULTILINE)


def modules(root: Path) -> dict[str, Path]:
    """The modules below `root` by their dotted names; packages count by what they define."""
    paths = {}
    for tree in TREES:
        for path in sorted((root / tree).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if "exp" not in parts:
                paths[".".join(parts).removesuffix(".__init__")] = path
    return paths


def imports(path: Path) -> set[str]:
    """Return the names in a module's imports, including those in functions and for types."""
    named = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return named


def module_names(path: Path) -> set[str]:
    """The names that a module binds outside functions and classes."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return names


def missing_names(root: Path) -> list[str]:
    """Imports, those inside functions included, of names that their module does not have."""
    paths = modules(root) | {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / "tests").rglob("*.py")
    }
    names = {module: module_names(path) for module, path in paths.items()}
    return [
        f"{importer}:{node.lineno}: {node.module} has no {alias.name}"
        for importer, path in paths.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module in names and not node.level
        for alias in node.names
        if alias.name != "*"
        and f"{node.module}.{alias.name}" not in paths
        and not {alias.name, "__getattr__"} & names[node.module]
    ]


def graph(root: Path) -> dict[str, set[str]]:
    """Which modules each module imports; of `a.b` and `a`, when both are modules, only `a.b`."""
    paths = modules(root)
    edges = {}
    for name, path in paths.items():
        used = {imported for imported in imports(path) if imported in paths and imported != name}
        edges[name] = {o for o in used if not any(u.startswith(f"{o}.") for u in used)}
    return edges


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """A path through the graph that ends where it begins; empty when there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for imported in sorted(edges[name]):
                if closed_path := visit(imported, [*path, name]):
                    return closed_path
            done.add(name)
        return []

    return next((closed_path for name in sorted(edges) if (closed_path := visit(name, []))), [])


def level(name: str, order: list[str]) -> int:
    """The level of a module: that of its package in `order`; errors and the like are below all."""
    tree, _, dotted = name.partition(".")
    package = dotted.partition(".")[0]
    if tree != "toolkit":
        return len(order) + 1 + len(TREES) - TREES.index(tree)
    if package in order:
        return order.index(package)
    if package == "doctor":  # tests the packages below the commands
        return len(order) - 1
    # toolkit/errors.py and the like are the lowest level
    return len(order) if package in ("cli", "__main__") else -1


def upwards(edges: dict[str, set[str]], order: list[str]) -> list[tuple[str, str]]:
    """Imports of modules of a higher level."""
    return [
        (name, imported)
        for name, used in edges.items()
        for imported in used
        if level(imported, order) > level(name, order)
    ]


def test_every_package_is_listed_once():
    assert sorted(packages()) == sorted(p.parent.name for p in ROOT.glob("toolkit/*/__init__.py"))


def test_packages_import_only_packages_listed_before_them():
    assert upwards(graph(ROOT), packages()) == []


def test_no_files_import_each_other_in_a_cycle():
    assert cycle(graph(ROOT)) == []


def test_every_imported_name_exists():
    """A type checker that ignores module attributes would miss a removed name."""
    assert missing_names(ROOT) == []


def test_an_import_of_a_name_that_has_gone_is_found(tmp_path):
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit/a.py").write_text("import os\nx, y = 1, 2\ndef f():\n    z = 3\n")
    (tmp_path / "toolkit/b.py").write_text(
        "from toolkit import a\ndef g():\n    from toolkit.a import f, os, x, y, z\n"
    )
    assert missing_names(tmp_path) == ["toolkit.b:3: toolkit.a has no z"]


@pytest.fixture
def import_graph(tmp_path):
    """Writes modules with the given texts and returns their import graph."""

    def write(**texts):
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return graph(tmp_path)

    return write


LAZY = "def f():\n    from toolkit.a import x\n"
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toolkit import a\n"


@pytest.mark.parametrize("back", ["import toolkit.a\n", LAZY, TYPES])
def test_an_import_cycle_is_found(import_graph, back):
    edges = import_graph(toolkit__a="from toolkit.b import y\n", toolkit__b=back, toolkit__c="")
    assert cycle(edges) == ["toolkit.a", "toolkit.b", "toolkit.a"]
    assert cycle(import_graph(toolkit__b="from toolkit import c\n")) == []


def test_an_import_cycle_through_three_packages_is_found(import_graph):
    names = ["stages__run", "train__loop", "tta__page"]
    for name, imported in pairwise([*names, names[0]]):
        dotted = imported.replace("__", ".")
        edges = import_graph(**{f"toolkit__{name}": f"from toolkit.{dotted} import x\n"})
    assert len(cycle(edges)) == 4


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("toolkit__stages__run", "toolkit.tta.page"),
        ("toolkit__errors", "toolkit.stages.run"),
        ("toolkit__tta__page", "toolkit.cli"),
        ("toolkit__cli", "local.an4"),
        ("local__an4", "recipes.steps.data"),
        ("toolkit__tta__page", "benchmarks.train"),
    ],
)
def test_an_upward_import_is_found(import_graph, low, high):
    name = low.replace("__", ".")
    edges = import_graph(**{low: f"def f():\n    import {high}\n", high.replace(".", "__"): ""})
    assert upwards(edges, ["stages", "tta"]) == [(name, high)]


def test_k2_and_pyspark_are_imported_only_in_their_modules():
    owners = {"k2": ROOT / "toolkit" / "fsa", "pyspark": ROOT / "toolkit" / "pipeline"}
    for path in modules(ROOT).values():
        for name in {used.split(".")[0] for used in imports(path)} & owners.keys():
            assert path.is_relative_to(owners[name]), path


@pytest.mark.parametrize("name", ["wer", "results", "report", "compare"])
def test_the_core_of_scoring_imports_no_nist_formats(name):
    edges, todo, reachable = graph(ROOT), [f"toolkit.score.{name}"], set()
    while todo:
        module = todo.pop()
        if module not in reachable:
            reachable.add(module)
            todo += edges[module]
    assert len(reachable) > 5
    assert [module for module in reachable if ".nist" in module] == []
