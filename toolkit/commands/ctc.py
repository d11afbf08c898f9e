"""The command `toolkit ctc`."""

from pathlib import Path

import click

from toolkit.config.click_types import FILE


@click.group()
def ctc() -> None:
    """Help a CTC training that runs on another machine.

    \b
    Example:
      toolkit ctc evaluate exp/ctc-full --device cuda
    """


@ctc.command()
@click.argument("run", metavar="RUN_DIR", type=FILE)
@click.option(
    "--device", help="Device to compute on: cpu, cuda, ...; default: a GPU if there is one."
)
def evaluate(run: Path, device: str | None) -> None:
    """Evaluate the checkpoints of a CTC training on another machine.

    RUN_DIR is the run directory of a CTC recipe that trains with train.states.evaluator=elsewhere;
    it must be visible on this machine too. Prints a line per epoch and ends when the training ends;
    if the training is interrupted, waits for it to be resumed.

    \b
    Example:
      toolkit ctc evaluate exp/ctc-full --device cuda
    """
    from toolkit.decode.ctc.evaluation import evaluate_run
    from toolkit.processes.devices import choose_device

    def report(epoch: int, result: dict[str, float]) -> None:
        click.echo(f"epoch {epoch}: CER {result['cer']:.2f} %, WER {result['wer']:.2f} %")

    epochs = evaluate_run(run, choose_device(device), report)
    click.echo(f"The training is over; {epochs} epochs were evaluated here.")
