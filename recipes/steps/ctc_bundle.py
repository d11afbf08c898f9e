"""The bundle of a CTC network for `toolkit transcribe` and `toolkit align`."""

import json
import logging
from dataclasses import replace

from recipes.steps.data import splits, texts
from toolkit.decode.bundle.ctc.scorer import CtcScorer
from toolkit.decode.bundle.ctc.writing import CtcFiles, write_ctc_bundle
from toolkit.decode.bundle.folder import BundledSystem, write_systems
from toolkit.decode.ctc.posteriors import Posteriors
from toolkit.decode.ctc.tune_beam import tune_beam
from toolkit.decode.ctc.words import WordsConfig, WordsDecoder
from toolkit.lang.ngram.arpa import read_arpa
from toolkit.lang.units.factory import load_units
from toolkit.score.results import Result, read_results
from toolkit.stages.run import Run

NAME = "ctc"
logger = logging.getLogger(__name__)


def write_bundle(run: Run) -> dict[str, float]:
    """Write the bundle with the dictionary search that has the fewest errors on development data.

    That is the one with the language model, unless it does not help. Its beam is tuned on the same
    data: the narrowest with no more errors than the widest.
    """
    out, units = run.make("final"), load_units(run.need("units"))
    words = run.need("words.txt").read_text(encoding="utf-8").split()
    arpa, lm = run.need("lm/lm.arpa"), f"words+{run.config.lm.order}gram"
    rows = read_results(run.need("decode/ctc/rows.json"))
    tuned_on = splits(run).tune
    best = min(("words", lm), key=lambda name: _errors(rows, name, tuned_on))
    config, model = replace(run.config.decode.words, mode="words"), None
    if best == lm:
        tuned = json.loads(run.need(f"decode/ctc/{lm}/tuned.json").read_text(encoding="utf-8"))
        weights = {name: tuned[name] for name in ("lm_weight", "word_bonus")}
        config, model = replace(run.config.decode.words, **weights), read_arpa(arpa)
    decoder = WordsDecoder(units, words, model, config)
    posteriors, references = {}, {}
    for split in tuned_on:
        posteriors |= Posteriors(run.need(f"posteriors/{split}"))
        references |= texts(run)[split]
    beam = tune_beam(decoder, posteriors, references, run.config.bundle, out / NAME, run.jobs)
    _write(run, replace(config, width=beam.width, margin=beam.margin, nbest=1), words)
    reached = {row.split: row.wer for row in rows if row.lm == best}
    streams = CtcScorer(out / NAME).can_stream
    system = BundledSystem(NAME, best, streams, reached)
    write_systems(out, [system])
    logger.info("the bundle: %s", system)
    return {"width": beam.width, "margin": beam.margin, "errors": beam.errors}


def _write(run: Run, search: WordsConfig, words: list[str]) -> None:
    files = CtcFiles(
        run.need("ctc"),
        run.need("features/normaliser.json"),
        load_units(run.need("units")),
        words,
        run.need("lm/lm.arpa"),
    )
    write_ctc_bundle(files, search, run.config.features.frontend, run.make("final") / NAME)


def _errors(rows: list[Result], lm: str, tuned_on: tuple[str, ...]) -> int:
    chosen = [row for row in rows if row.lm == lm and row.split in tuned_on]
    return sum(row.insertions + row.deletions + row.substitutions for row in chosen)
