"""The command `toolkit config`."""

import json
import textwrap
from dataclasses import asdict
from pathlib import Path

import click

from toolkit.config.click_types import AS_JSON, FILE


@click.command()
@AS_JSON
@click.option("--profile", metavar="NAME", help="Profile of the recipe; default: the first one.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting, as the recipe's own option --set does; may be repeated.",
)
@click.argument("recipe", type=FILE)
@click.argument("key", required=False)
def config(
    as_json: bool, profile: str | None, overrides: tuple[str, ...], recipe: Path, key: str | None
) -> None:
    """Print the settings of a recipe.

    Prints each setting with its value, the source of the value, its default, its type and its
    description. With KEY, prints only this setting or the settings in this section. RECIPE is the
    recipe's folder or its run.py.

    \b
    Example:
      toolkit config recipes/librispeech lang --profile mini
    """
    from toolkit.stages.recipe import load_recipe, recipe_settings

    rows = recipe_settings(load_recipe(recipe), profile, overrides, key)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
        return
    for row in rows:
        # A setting that the profile or --set has changed is shown with its default.
        default = "" if row.value == row.default else f"; default {json.dumps(row.default)}"
        click.echo(f"{row.key} = {json.dumps(row.value, ensure_ascii=False)}")
        for line in (f"{row.source}{default}; {row.expects}", row.text):
            for part in textwrap.wrap(line, 96):
                click.echo(f"    {part}")
