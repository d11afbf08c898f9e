import importlib
import re

import click
import pytest

from toolkit.cli import main
from toolkit.stages.recipe import Recipe

ITEM_CODE = re.compile(r"\b[ABC]\d{1,2}\b")
"""An item of the papers, such as C18: a source for docstrings, but a riddle in a terminal."""
RECIPES = (
    "recipes.librispeech.run",
    "recipes.librispeech.run_ctc",
    "recipes.farfield_ssl.run",
)


def commands(command, context):
    """Every command below one, with its context."""
    yield pytest.param(command, context, id=context.command_path)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from commands(below, click.Context(below, info_name=name, parent=context))


ALL = list(commands(main, click.Context(main, info_name="toolkit")))


@pytest.mark.parametrize(("command", "context"), ALL)
def test_help_has_an_example_that_names_the_command_and_its_own_options(command, context):
    help_text = command.get_help(context)
    example = help_text.partition("Example")[2]
    assert example, f"{context.command_path}: the help has no example"
    lines = example.partition("\n\n")[0].splitlines()[1:]
    assert lines[0].strip().startswith(context.command_path)
    words = " ".join(line.strip().removesuffix("\\") for line in lines).split()
    names = words[len(context.command_path.split()) :]
    while isinstance(command, click.Group) and names[0] in command.list_commands(context):
        command = command.get_command(context, names.pop(0))
    declared = {option for parameter in command.params for option in parameter.opts}
    used = {word for word in names if word.startswith("--")}
    assert used <= declared, f"{context.command_path}: no such options"


@pytest.mark.parametrize(("command", "context"), ALL)
def test_help_begins_with_a_sentence_and_lists_the_options(command, context):
    help_text = command.get_help(context)
    assert help_text.startswith(f"Usage: {context.command_path}")
    text = help_text.split("\n\n")[1].strip()
    assert text[0].isupper()
    assert "--help" in help_text


@pytest.mark.parametrize(("command", "context"), ALL)
def test_help_names_no_item_of_the_papers_by_its_code(command, context):
    short = command.get_short_help_str(limit=1000)  # as the help of the group lists it
    for text in (command.get_help(context), short):
        assert ITEM_CODE.findall(text) == []


@pytest.mark.parametrize("module", RECIPES)
def test_recipes_name_no_item_of_the_papers_by_its_code(module):
    recipe = importlib.import_module(module).recipe
    assert isinstance(recipe, Recipe)
    assert recipe.stages
    for text in (recipe.title, *(stage.title for stage in recipe.stages)):
        assert ITEM_CODE.findall(text) == []


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("beside the paper's table (A31)", ["A31"]),
        ("one of ibm (B4-B6)", ["B4", "B6"]),
        ("C6, C7", ["C6", "C7"]),
        ("A100, H100, AC3, B2x, an4, AH0, base_A1, k2, WSJ0, C++17", []),
    ],
)
def test_item_codes_are_distinguished_from_other_names(text, codes):
    assert ITEM_CODE.findall(text) == codes


@pytest.mark.parametrize("module", RECIPES)
def test_the_setting_in_a_recipes_help_exists(module, capsys):
    from toolkit.config.settings import all_keys

    recipe = importlib.import_module(module).recipe
    with pytest.raises(SystemExit):
        recipe.main(["--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    (key,) = re.findall(r"Change a setting, e\.g\. --set (\S+)=\S+;", help_text)
    for profile in recipe.profiles.values():
        assert key in all_keys(profile())
