"""The command `toolkit ctc`."""

from pathlib import Path

import click

from toolkit.config.click_types import FILE


@click.group()
def ctc() -> None:
    """Evaluate CTC training that runs on another machine.

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
    """Evaluate each epoch of CTC training.

    The training runs on another machine, with the setting train.states.evaluator=elsewhere. RUN_DIR
    is the run directory of the training, which must be accessible on this machine too. The command
    prints a line per epoch and ends when the training ends. If the training is interrupted, the
    command waits until the training continues.

    \b
    Example:
      toolkit ctc evaluate exp/ctc-full --device cuda
    """
    from toolkit.decode.ctc.evaluation import evaluate_run
    from toolkit.processes.devices import choose_device

    def report(epoch: int, result: dict[str, float]) -> None:
        click.echo(f"epoch {epoch}: CER {result['cer']:.2f} %, WER {result['wer']:.2f} %")

    epochs = evaluate_run(run, choose_device(device), report)
    click.echo(f"The training has ended. This process evaluated {epochs} epochs.")
