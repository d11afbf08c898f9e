"""The command `toolkit doctor`."""

import click

from toolkit.config.click_types import AS_JSON


@click.command()
@AS_JSON
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check the machine and the installed packages.

    For each problem, prints a command that repairs it. The exit status is 1 if something that the
    recipes need does not work.

    \b
    Example:
      toolkit doctor
    """
    from toolkit.doctor import run_checks

    ctx.exit(0 if run_checks(as_json=as_json) else 1)
