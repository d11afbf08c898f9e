"""`toolkit export`."""

from pathlib import Path

import click

from toolkit.config.parameters import FILE


@click.command()
@click.option(
    "--model",
    type=FILE,
    required=True,
    help="A bundle (final/), or a model's folder in its run directory (lstm_ce, ctc).",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("torchscript", "onnx")),
    default="onnx",
    show_default=True,
)
@click.option("--out", type=FILE, required=True, help="The folder that is written.")
def export(model: Path, form: str, out: Path) -> None:
    """Write an acoustic model for other programs.

    The folder OUT gets the model (model.onnx or model.pt), metadata.json (how it is called, front
    end, priors, output units) and normaliser.json. Unidirectional models take and give their
    states, for streams. What was written is run on made-up input, whole and in pieces, and must
    give what our model gives; ONNX needs the packages onnx and, for that, onnxruntime.

    \b
    Example:
      toolkit export --model exp/demo/final --format onnx --out exported
    """
    from toolkit.models.export.export import export_model
    from toolkit.models.export.parts import find_parts

    checked = export_model(find_parts(model), form, out)
    if checked.largest_difference is None:
        told = "not compared: `pip install onnxruntime` and export again"
    else:
        told = f"log-posteriors within {checked.largest_difference:.1e} by {checked.against}"
    click.echo(f"{out}: {told}")
