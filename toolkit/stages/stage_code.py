"""The code of each stage: its function and the modules that it imports, found without running them.

Modules are those of the project (`recipes`, `local`, `toolkit`) and the files beside the recipe.
Names of modules in strings, such as those of `import_module`, count as imports.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from toolkit.environment import project_root
from toolkit.storage.digest import digest_bytes, stamp

TREES = ("recipes", "local", "toolkit")
DIGITS = 12
"""Of a digest that are recorded."""
_IMPORT = re.compile(
    rb"""
    (?: ^ | [:;] ) [ \t]*
    (?: from [ \t]+ ( \w [\w.]* ) [ \t]+ )?
    import (?= [ \t(\\] ) [ \t]* ( \( (?: \#[^\n]* | [^)\#] )* \) | (?: [^\n;\\] | \\. )* )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_STRING = re.compile(rf"""["']((?:{"|".join(TREES)})\.[\w.]*)""".encode())
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class StageCode:
    """The code that a stage's outputs depend on."""

    function: str
    """Digest of the source of the stage's function and of what it uses in its own file."""
    modules: dict[str, str]
    """Digests of the modules that it imports, and those that these import, by dotted name."""

    def changes(self, new: "StageCode") -> list[str]:
        """Return in words what is different in `new`, in the order of names."""
        found = ["its function changed"] if self.function != new.function else []
        for name in sorted(self.modules.keys() | new.modules.keys()):
            old, now = self.modules.get(name), new.modules.get(name)
            if old != now:
                verb = "is new" if old is None else "changed" if now else "is no longer imported"
                found.append(f"{name} {verb}")
        return found


class Sources:
    """The Python files of the project and of a recipe's folder, as they are when this is made.

    Args:
      folder: the recipe's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._texts, self._names = folder, {}, {}
        self._stamps: dict[Path, list[int] | None] = {}
        root = project_root()
        for tree in TREES:
            for path in (root / tree).rglob("*.py"):
                parts = path.relative_to(root).with_suffix("").parts
                if "exp" not in parts:
                    self._add(".".join(parts).removesuffix(".__init__"), path)
        for path in folder.glob("*.py"):
            if path.stem not in self._texts:  # as a script beside it imports it
                self._add(path.stem, path)

    def changes(self, body: Callable) -> list[str]:
        """Return in words what of a stage's code has changed on disk since."""
        if all(_stamp(path) == before for path, before in self._stamps.items()):
            return []
        old, new = self.stage(body), Sources(self._folder).stage(body)
        return old.changes(new) if old and new else []

    def stage(self, body: Callable) -> StageCode | None:
        """Return the code of a stage's function; None where its file is not one of these."""
        body = inspect.unwrap(body)
        path = inspect.getsourcefile(body) if inspect.isfunction(body) else None
        name = self._names.get(Path(path).resolve()) if path else None
        if name is None:
            return None
        text = self._texts[name]
        used, imported = _used(text, body.__name__)
        modules = sorted(self._closure(self._known(imported)))
        return StageCode(used, {name: self._digests[name] for name in modules})

    def imports(self, module: str) -> set[str]:
        """Return the modules of the project that a module imports or names in strings."""
        return self._known(imported_names(self._texts[module]))

    def _add(self, name: str, path: Path) -> None:
        if not path.name.startswith(".") and path.is_file():
            self._stamps[path] = _stamp(path)
            self._texts[name] = path.read_bytes()
            self._names.setdefault(path.resolve(), name)

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: digest_bytes(text)[:DIGITS] for name, text in self._texts.items()}

    def _known(self, named: Iterable[str]) -> set[str]:
        """Return the modules among names."""
        found = {name for name in named if name in self._texts}
        for prefix in (name for name in named if name.endswith(".")):
            found |= {name for name in self._texts if name.startswith(prefix)}
        return found

    def _closure(self, names: set[str]) -> set[str]:
        found: set[str] = set()
        waiting = sorted(names)
        while waiting:
            if (name := waiting.pop()) not in found:
                found.add(name)
                waiting += self.imports(name)
        return found


def _stamp(path: Path) -> list[int] | None:
    try:
        return stamp(path.stat())
    except OSError:
        return None


@cache
def present_sources(folder: Path) -> Sources:
    """Return the sources that a recipe in `folder` runs with, as they are at the first call."""
    return Sources(folder)


@cache
def imported_names(text: bytes) -> frozenset[str]:
    """Return the modules, and names in them, that code imports, inside functions too, or names.

    A name that ends in a dot stands for all modules below it, as in `import_module` of an f-string.
    Code is searched by patterns, in a tenth of the time of parsing it, which took a second of each
    command. What looks like an import in a text of several lines counts too.
    """
    named = {name.decode() for name in _STRING.findall(text)}
    for match in _IMPORT.finditer(text):
        module, names = (part.decode(errors="replace") for part in match.groups(b""))
        listed = _listed(names.strip("()"))
        named |= {module, *(f"{module}.{name}" for name in listed)} if module else listed
    return frozenset(named)


def _listed(names: str) -> set[str]:
    """Return the names of a list such as `a, b as c`, which may have comments."""
    without = " ".join(line.partition("#")[0].rstrip("\\") for line in names.splitlines())
    return {words[0].rstrip(".") for name in without.split(",") if (words := name.split())}


def _statements(text: bytes) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError):  # somebody is editing it
        return []


def _used(text: bytes, function: str) -> tuple[str, set[str]]:
    """Return a digest of a function and of what it uses of its file, and what these import.

    What declares it as a stage does not count. All of the file does where the function is not at
    its top level.
    """
    bound: dict[str, list[ast.stmt]] = {}
    for statement in _statements(text):
        for name in _bound(statement):
            bound.setdefault(name, []).append(statement)
    if function not in bound:
        return digest_bytes(text)[:DIGITS], set(imported_names(text))
    lines = text.splitlines(keepends=True)
    chosen: dict[int, list[bytes]] = {}
    waiting, imported = [function], set[str]()
    while waiting:
        for statement in bound.pop(name := waiting.pop(), ()):
            source = lines[statement.lineno - 1 : statement.end_lineno]
            imported |= imported_names(b"".join(source))
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                decorators = getattr(statement, "decorator_list", [])
                parts = [node for node in ast.iter_child_nodes(statement) if node not in decorators]
                parts += decorators if name != function else []
                waiting += [n.id for part in parts for n in ast.walk(part) if _is_name(n)]
                chosen |= {statement.lineno: source}
    everything = b"".join(line for number in sorted(chosen) for line in chosen[number])
    return digest_bytes(everything)[:DIGITS], imported


def _bound(statement: ast.stmt) -> list[str]:
    """Return the names that a statement at the top level of a file binds."""
    if isinstance(statement, _DEFINITIONS):
        return [statement.name]
    names = []
    for part in ast.walk(statement):
        if isinstance(part, ast.Import | ast.ImportFrom):
            names += [(alias.asname or alias.name).split(".")[0] for alias in part.names]
        elif isinstance(part, _DEFINITIONS):
            names.append(part.name)
        elif _is_name(part) and isinstance(part.ctx, ast.Store):
            names.append(part.id)
    return names


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)
