"""`toolkit ctc`."""

from pathlib import Path

import click

from toolkit.config.parameters import FILE


@click.group()
def ctc() -> None:
    """Take part in CTC trainings.

    \b
    Example:
      toolkit ctc evaluate exp/ctc-full --device cuda
    """


@ctc.command()
@click.argument("run", metavar="RUN_DIR", type=FILE)
@click.option("--device", help="cpu, cuda, ...; default: a GPU if there is.")
def evaluate(run: Path, device: str | None) -> None:
    """Evaluate a training that goes on elsewhere (A23).

    RUN_DIR is the run directory of a CTC recipe that trains with train.machine.evaluator=elsewhere;
    this machine needs to see it too. Prints a line per epoch and ends with the training; one that
    was stopped is waited for.

    \b
    Example:
      toolkit ctc evaluate exp/ctc-full --device cuda
    """
    from toolkit.decode.ctc.evaluation import evaluate_run
    from toolkit.processes.devices import chosen_device

    def tell(epoch: int, result: dict[str, float]) -> None:
        click.echo(f"epoch {epoch}: CER {result['cer']:.2f} %, WER {result['wer']:.2f} %")

    number = evaluate_run(run, chosen_device(device), tell)
    click.echo(f"The training is over; {number} epochs were evaluated here.")
