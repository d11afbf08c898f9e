"""The command `toolkit export`."""

from pathlib import Path

import click

from toolkit.config.click_types import FILE, FOLDER


@click.command()
@click.option(
    "--model",
    type=FILE,
    required=True,
    help="A model bundle (final/), or the folder of a model in a run directory, such as lstm_ce or "
    "ctc.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("torchscript", "onnx")),
    default="onnx",
    show_default=True,
)
@click.option("--out", type=FOLDER, required=True, help="The folder to write.")
def export(model: Path, form: str, out: Path) -> None:
    """Export an acoustic model to ONNX or TorchScript.

    From a bundle of several systems, exports the CTC network. If no system is a CTC network,
    exports the best network that supports streaming. Writes the model (model.onnx or model.pt),
    metadata.json (its inputs and outputs, front end, priors, output units) and normaliser.json to
    the folder --out. If the network reads the features of a GMM system, metadata.json contains no
    front end. For streaming, the recurrent states of a unidirectional model are additional inputs
    and outputs. The command compares the exported model with the original on random input, as a
    whole and in pieces, and fails if the outputs differ. Export to ONNX needs the package onnx and,
    for this comparison, onnxruntime.

    \b
    Example:
      toolkit export --model exp/demo/final --format onnx --out exported
    """
    from toolkit.decode.bundle import Bundle
    from toolkit.models.export import export_model, find_export_source

    source = find_export_source(Bundle(model).network())
    checked = export_model(source, form, out)
    # `export_model` raises an error if the models differ; None: no onnxruntime to compare with.
    if checked.largest_difference is None:
        outcome = "not compared with the original: `pip install onnxruntime` and export again"
    else:
        difference = f"{checked.largest_difference:.1e}"
        outcome = f"log-posteriors within {difference} of the original's ({checked.against})"
    click.echo(f"{out}: {outcome}")
    if source.note:
        click.echo(f"Note: {source.note}.", err=True)
