import click
import pytest

from toolkit.cli import main

REFERENCE_ONLY = ("k2", "kaldifeat", "kaldilm", "torchaudio")
"""Packages without which some benchmarks cannot be imported."""


def commands(command, context):
    """Every command below one, with its context."""
    yield pytest.param(command, context, id=context.command_path)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            try:
                below = command.get_command(context, name)
            except ModuleNotFoundError as error:
                if error.name not in REFERENCE_ONLY:
                    raise
            else:
                yield from commands(below, click.Context(below, info_name=name, parent=context))


ALL = list(commands(main, click.Context(main, info_name="toolkit")))


@pytest.mark.parametrize(("command", "context"), ALL)
def test_help_has_an_example_that_names_the_command_and_its_own_options(command, context):
    shown = command.get_help(context)
    example = shown.partition("Example")[2]
    assert example, f"{context.command_path}: the help has no example"
    lines = example.partition("\n\n")[0].splitlines()[1:]
    assert lines[0].strip().startswith(context.command_path)
    words = " ".join(line.strip().removesuffix("\\") for line in lines).split()
    names = words[len(context.command_path.split()) :]
    while isinstance(command, click.Group) and names[0] in command.list_commands(context):
        command = command.get_command(context, names.pop(0))
    known = {option for parameter in command.params for option in parameter.opts}
    given = {word for word in names if word.startswith("--")}
    assert given <= known, f"{context.command_path}: no such options"


@pytest.mark.parametrize(("command", "context"), ALL)
def test_help_begins_with_a_sentence_and_lists_the_options(command, context):
    shown = command.get_help(context)
    assert shown.startswith(f"Usage: {context.command_path}")
    text = shown.split("\n\n")[1].strip()
    assert text[0].isupper()
    assert "--help" in shown
