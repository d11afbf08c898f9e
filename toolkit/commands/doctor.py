"""`toolkit doctor`."""

import click


@click.command()
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Test the engines and the machine.

    Says how to mend what is broken. Exit status 1 when something that the recipes need does not
    work.

    \b
    Example:
      toolkit doctor
    """
    from toolkit.doctor.doctor import examine

    ctx.exit(0 if examine() else 1)
