"""Which code each stage depends on, and what `--dry-run --code` says of its changes."""

import json

import pytest

from tests.test_imports import ROOT, graph, modules
from toolkit.stages import stage_code
from toolkit.stages.stage_code import Sources, imported_names, present_sources

STEPS = "from toolkit import deep\n\ndef count(run):\n    return helper\n\nhelper = 1\nother = 2\n"
RUN = """\
from pathlib import Path
import steps
from steps import other as renamed
from toolkit import wide, unused as kept

LIMIT = 3

def declare(number):
    return lambda body: body

def small(x: int):
    if x:
        from local import reader
    return LIMIT

@declare(kept)
def first(run):
    return small(steps.count(run))

@declare(2)
def second(run):
    return import_module("toolkit.named:Name")

third = lambda run: wide
"""
FILES = {
    "toolkit/deep.py": "import toolkit.deeper\n",
    "toolkit/deeper.py": "def f():\n    from toolkit.deep import x\n",
    **dict.fromkeys(("toolkit/wide.py", "toolkit/unused.py", "toolkit/named.py"), "x = 1\n"),
    "toolkit/far.py": "y = f'local.{x}'\n",
    "local/reader.py": "x = 1\n",
    "local/table.py": "x = 1\n",
    "recipe/steps.py": STEPS,
    "recipe/run.py": RUN,
}


class Project:
    """A project of a few files, of which the recipe's are loaded."""

    def __init__(self, root):
        self.root = root
        for name, text in FILES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    def edit(self, name, old, new):
        text = (self.root / name).read_text()
        assert old in text
        (self.root / name).write_text(text.replace(old, new))

    def code(self, stage):
        """The code of a function, of which no more than name and file are loaded."""
        text = "f = lambda run: 0" if stage == "third" else f"def {stage}(run): ..."
        loaded = {}
        exec(compile(text, self.root / "recipe" / "run.py", "exec"), loaded)
        return Sources(self.root / "recipe").stage(loaded.get(stage) or loaded["f"])


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(stage_code, "project_root", lambda: tmp_path)
    return Project(tmp_path)


def test_a_stage_has_the_modules_that_its_function_uses_and_those_that_these_import(project):
    used = project.code("first").modules
    assert list(used) == ["local.reader", "steps", "toolkit.deep", "toolkit.deeper"]
    assert list(project.code("second").modules) == ["toolkit.named"]


def test_of_a_stage_that_is_no_plain_function_the_whole_file_counts(project):
    modules = {"local.reader", "steps", "toolkit.deep", "toolkit.deeper", "toolkit.named"}
    assert project.code("third").modules.keys() == modules | {"toolkit.unused", "toolkit.wide"}
    assert Sources(project.root / "recipe").stage(json.dumps) is None
    assert Sources(project.root / "recipe").stage(print) is None


@pytest.mark.parametrize(
    ("name", "old", "new", "first", "second"),
    [
        ("recipe/run.py", "LIMIT = 3", "LIMIT = 4", ["its function changed"], []),
        ("recipe/run.py", "return small", "return 0 + small", ["its function changed"], []),
        ("recipe/run.py", "@declare(2)", "@declare(4)", [], []),
        ("recipe/run.py", "import wide", "import far, wide", [], []),
        ("toolkit/deeper.py", "x", "z", ["toolkit.deeper changed"], []),
        ("toolkit/named.py", "1", "2", [], ["toolkit.named changed"]),
        ("toolkit/unused.py", "1", "2", [], []),
        (
            "toolkit/deeper.py",
            "toolkit.deep ",
            "toolkit.far ",
            ["local.table is new", "toolkit.deeper changed", "toolkit.far is new"],
            [],
        ),
        (
            "recipe/run.py",
            "from local",
            "from elsewhere",
            ["its function changed", "local.reader is no longer imported"],
            [],
        ),
    ],
)
def test_an_edit_concerns_the_stages_that_use_it(project, name, old, new, first, second):
    before = [project.code(stage) for stage in ("first", "second")]
    project.edit(name, old, new)
    after = [project.code(stage) for stage in ("first", "second")]
    changes = [old.changes(new) for old, new in zip(before, after, strict=True)]
    assert changes == [first, second]


def test_files_that_are_being_edited_count_without_their_imports(project):
    before = project.code("first")
    project.edit("toolkit/deep.py", "import toolkit.deeper", "import toolkit.")
    changes = ["toolkit.deep changed", "toolkit.deeper is no longer imported"]
    assert before.changes(project.code("first")) == changes


@pytest.mark.parametrize(
    ("code", "imported"),
    [
        ("import toolkit.a as b, local.c", {"toolkit.a", "local.c"}),
        ("from toolkit import a as b, c  # d", {"toolkit", "toolkit.a", "toolkit.c"}),
        (
            "from local.a import (\n  b,  # (c, d)\n  e as f,\n)",
            {"local.a", "local.a.b", "local.a.e"},
        ),
        ("from local.a import b, \\\n  c", {"local.a", "local.a.b", "local.a.c"}),
        (
            "try: import toolkit.a\nfinally: x = 1; from local import b",
            {"toolkit.a", "local", "local.b"},
        ),
        ("import_module('toolkit.a:B')", {"toolkit.a"}),
        ('import_module(f"local.{name}")', {"local."}),
        ("from . import a\nfrom .b import c\nimported = a  # from local\n'recipe.a'", set()),
        ("important = 1\nraise E from a\n", set()),
        (b"import toolkit.\xff", {"toolkit.\ufffd"}),
    ],
)
def test_imports_of_every_form_are_found(code, imported):
    code = code if isinstance(code, bytes) else code.encode()
    assert imported_names(code) == imported


NAMED_IN_STRINGS = {
    "local",
    "toolkit.bench.suite.measure",
    "toolkit.cli",
    "toolkit.commands.bench",
    "toolkit.doctor.processes",
    "toolkit.new_corpus.templates",
    "toolkit.parallel.strategy",
    "toolkit.processes.context",
}
"""Files with names of modules in strings."""


def test_imports_are_those_that_the_test_of_the_architecture_finds():
    """And in some files there are names of modules in strings; packages may be named besides."""
    sources, more = Sources(ROOT), set()
    packages = {name for name, path in modules(ROOT).items() if path.stem == "__init__"}
    for name, used in graph(ROOT).items():
        found = sources.imports(name) - {name}
        assert used <= found
        more |= {name} if found - used - packages else set()
    assert more == NAMED_IN_STRINGS


def run(sample, *arguments):
    present_sources.cache_clear()
    result = sample.main(*arguments)
    assert result.status == 0, result.output
    return result.output


def code_of(output):
    """{stage: what the dry run says of its code}."""
    lines = [line.strip() for line in output.splitlines()]
    return {
        int(line.split()[0]): after.removeprefix("code ")
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if line[:1].isdigit() and after.startswith("code ")
    }


def test_a_dry_run_says_which_stages_a_change_of_code_touches(sample):
    run(sample, "--stop-stage", 3)
    assert code_of(run(sample, "--dry-run", "--code")) == dict.fromkeys((1, 2, 3), "unchanged")
    assert code_of(run(sample, "--dry-run")) == {}
    text = sample.script.read_text()
    sample.script.write_text(text.replace("epochs: int = 4", "epochs: int = 5"))
    assert code_of(run(sample, "--dry-run", "--code")) == dict.fromkeys((1, 2, 3), "unchanged")
    sample.script.write_text(text.replace("word.upper()", "word.title()"))
    changed = dict.fromkeys((1, 2, 3), "unchanged") | {2: "changed: its function changed"}
    assert code_of(run(sample, "--dry-run", "--code")) == changed


def test_markers_from_before_and_of_several_codes_have_none(sample):
    run(sample)
    path = sample.exp / "stages" / "03.json"
    plain = json.loads(path.read_text())
    assert plain["stage_code"]["modules"].keys() >= {"toolkit.storage.files", "toolkit.errors"}
    del plain["stage_code"]
    path.write_text(json.dumps(plain))
    assert code_of(run(sample, "--dry-run", "--code"))[3] == "unknown"
    assert run(sample).count("done, skipped") == 4
    assert run(sample, "--force", 3)
    assert code_of(run(sample, "--dry-run", "--code"))[3] == "unchanged"
    sample.main("--force", 3, env={"FAULT": "3:middle:kill"})
    record = sample.exp / ".partial" / "03.json"
    plain = json.loads(record.read_text())
    plain["attempts"][0]["code"]["versions"]["numpy"] = "1.0"
    record.write_text(json.dumps(plain))
    run(sample, "--force", 3, "--accept-code-change")
    unchanged = dict.fromkeys((1, 2, 5), "unchanged")
    assert code_of(run(sample, "--dry-run", "--code")) == unchanged | {3: "unknown"}


def test_code_is_shown_with_a_dry_run_alone(sample):
    result = sample.main("--code")
    assert result.status == 1
    assert "--dry-run" in result.output
    assert not sample.exp.exists()
