"""The bundles for `toolkit transcribe` and `toolkit align`."""

from pathlib import Path

from recipes.steps.language import lang_config
from toolkit.align.recordings.bundle import write_aligner_bundle
from toolkit.decode.bundle import write_bundle
from toolkit.lang.lang import Lang
from toolkit.lang.prepare import source_lexicon
from toolkit.stages.run import Run


def write_bundles(run: Run, system: str, features: Path, out: Path) -> None:
    """Write the bundles of a network for recognition and of adapted GMMs for alignment."""
    write_bundle(
        model=run.need(system),
        normaliser=features / "normaliser.json",
        graph=run.need("graph.safetensors"),
        lang=run.need("lang"),
        frontend=run.config.fbank.frontend,
        config=run.config.decode,
        tuned=run.need(f"decode/{system}/first_pass/tuned.json"),
        out=out,
        senones=run.need("senones"),
        calibration=run.need(f"decode/{system}/calibration.json"),
    )
    lang = run.need("lang")
    write_aligner_bundle(
        system=run.need("sat"),
        independent=run.need("lda_mllt"),
        lang=lang,
        lexicon=source_lexicon(lang_config(run), Lang.load(lang).vocabulary),
        frontend=run.config.cepstra.frontend,
        out=out / "aligner",
    )
