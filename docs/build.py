#!/usr/bin/env python3
"""Write the API reference as HTML: signatures and docstrings of all of toolkit/, by pdoc.

docs/build.py --out api      # needs pdoc: python -m pip install pdoc
"""

import importlib
import pkgutil
import sys
import warnings
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import toolkit  # noqa: E402


def importable() -> tuple[list[str], dict[str, str]]:
    """Import every module below toolkit.

    Returns:
      The names of those that can be imported, and of the others what is missing.
    """
    found, missing = ["toolkit"], {}
    for module in pkgutil.walk_packages(toolkit.__path__, "toolkit."):
        try:
            importlib.import_module(module.name)
            found.append(module.name)
        except ImportError as error:
            missing[module.name] = str(error)
    return found, missing


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
def main(out: Path) -> None:
    """Write the API reference to a folder; open its index.html.

    \b
    Example:
      docs/build.py --out api
    """
    try:
        import pdoc
        import pdoc.render
    except ImportError as error:
        raise click.ClickException("needs pdoc: python -m pip install pdoc") from error
    found, missing = importable()
    for name, why in missing.items():
        click.echo(f"{name} is left out: {why}", err=True)
    warnings.filterwarnings("ignore", category=UserWarning, module="pdoc")
    version = f"toolkit {toolkit.__version__}"
    pdoc.render.configure(docformat="google", show_source=False, footer_text=version)
    pdoc.pdoc("toolkit", *(f"!{name}" for name in missing), output_directory=out)
    click.echo(f"{out / 'index.html'}: {len(found)} modules")


if __name__ == "__main__":
    main()
