"""Every `run.py` and `toolkit` command that a page shows has options and settings that exist.

The blocks of `sh` of new-corpus.md, own-language.md, cluster.md, first-run.md and
reading-the-report.md are also run, by tests/guide and tests/recipes. Those of `console` (with `$`)
and `bash` need hours, a cluster or a microphone, and are only read here.
"""

import importlib.util
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest

from toolkit.cli import main
from toolkit.config.settings import all_keys, apply_overrides
from toolkit.stages.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "recipes").glob("[lf]*/*.md"))
RUN_OPTIONS = {"--list", "--dry-run", "--json", "--stale-code", "--accept-code-change"}
RUN_OPTIONS |= {"--quiet", "--verbose"}
WITH_VALUE = {"--stage", "--stop-stage", "--force", "--profile", "--set", "--config", "--exp"}
WITH_VALUE |= {"--device", "--jobs", "--profile-stage"}
LOCAL = "recipes/librispeech/run.py"
"""Recipes that a page makes have the stages and settings of this one."""


def commands(text):
    """Return the words of every command in a page's blocks and backticks that runs a recipe."""
    blocks = re.findall(r"```(?:sh|console|bash)\n(.*?)```", text, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`((?:torchrun |recipes/|run\.py )[^`]*)`", text)
    for line in lines:
        line = line.removeprefix("$ ").strip()
        if re.search(r"run(_ctc)?\.py( |$)", line) and not line.startswith(("#", "cat ")):
            yield shlex.split(line, comments=True)


@cache
def recipe(path):
    return load_recipe(ROOT / path if (ROOT / path).is_file() else ROOT / LOCAL)


def check(words, folder):
    """Read a command as the recipe does: options, stages, profile, settings.

    Args:
      words: of the command.
      folder: where a recipe without a folder of its own lies.
    """
    position = next(i for i, word in enumerate(words) if re.search(r"run(_ctc)?\.py$", word))
    path = re.sub(r".*/(?=recipes/)", "", words[position])
    if not path.startswith("recipes/"):
        path = f"{folder}/{Path(path).name}"
    checked, arguments = recipe(path), words[position + 1 :]
    if words[position - 1] == "--entrypoint":
        arguments = arguments[1:]  # the image
    numbers = {str(stage.number) for stage in checked.stages}
    values = {option: [] for option in WITH_VALUE}
    while arguments:
        option = arguments.pop(0)
        if option in ("|", "&&", ";"):
            break
        if option in WITH_VALUE:
            values[option].append(arguments.pop(0))
        elif not option.startswith("$"):  # a variable of the shell, for more options
            assert option in RUN_OPTIONS, words
    for option in ("--stage", "--stop-stage", "--force", "--profile-stage"):
        assert {v for v in values[option] if v.isdigit()} <= numbers, words
    if not (ROOT / path).is_file():
        profile = "mini"  # a recipe that a page makes
    else:
        profile = (values["--profile"] or [next(iter(checked.profiles))])[0]
    if profile in checked.profiles:  # else one that a page adds
        config, keys = checked.profiles[profile](), None
        for setting in values["--set"]:
            key = setting.partition("=")[0]
            keys = set(all_keys(config)) if keys is None else keys
            made_by_page = key.split(".")[0] in {"SECTION", "KEY"}
            assert made_by_page or key in keys or any(k.startswith(f"{key}.") for k in keys), words
        apply_overrides(config, [v for v in values["--set"] if plain(v)], ROOT)


def plain(setting):
    """Whether the value is one that the page means, not a word in capitals that stands for one."""
    return not re.search(r"=[A-Z]+$|\.\.\.", setting)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_of_recipes_have_options_and_settings_that_exist(page):
    parent = page.parent.relative_to(ROOT).as_posix()
    folder = parent if parent.startswith("recipes/") else "recipes/librispeech"
    for words in commands(page.read_text(encoding="utf-8")):
        check(words, folder)


def test_the_cluster_page_names_the_parallel_stages():
    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    match = re.search(
        r"Stages ([\d, ]+) and (\d+) of the hybrid recipe and stages (\d+) and (\d+)", page
    )
    hybrid = [s.number for s in recipe(LOCAL).stages if s.distributed]
    ctc = [s.number for s in recipe("recipes/librispeech/run_ctc.py").stages if s.distributed]
    assert [*map(int, match[1].split(", ")), int(match[2])] == hybrid
    assert [int(match[3]), int(match[4])] == ctc


def test_every_backticked_kaldi_counterpart_exists():
    page = (ROOT / "docs/kaldi.md").read_text(encoding="utf-8")
    section = page.split("## Script by script")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    stages = {str(stage.number) for stage in recipe(LOCAL).stages}
    keys = set(all_keys(recipe(LOCAL).profiles["mini"]()))
    for _, here in rows:
        for name in re.findall(r"`(toolkit(?:\.\w+)+)`", here):
            assert importlib.util.find_spec(name), name
        for numbers in re.findall(r"stages? ([\d, ]+)", here):
            assert {n for n in numbers.replace(",", " ").split()} <= stages, here
        for key in re.findall(r"`([a-z_]+\.[a-z_]+|[a-z_]+(?==true))(?:=\w+)?`", here):
            assert key in keys or key in {"results.md", "phones.ctm"}, key
        for name in re.findall(r"`toolkit ([a-z]+)", here):
            assert name in main.list_commands(click.Context(main)), name
