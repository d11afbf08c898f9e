"""The bundle of a CTC network for `toolkit transcribe` and `toolkit align`."""

import logging
from dataclasses import replace

from recipes.steps.ctc import (
    RESCORED,
    ngram_search,
    rescored_search,
    result_rows,
    split_data,
    tuned_search,
)
from recipes.steps.data import splits
from toolkit.decode.bundle.ctc.scorer import CtcScorer
from toolkit.decode.bundle.ctc.writing import CtcFiles, write_ctc_bundle
from toolkit.decode.bundle.folder import BundledSystem, write_systems
from toolkit.decode.ctc.lists import listing, weights_of
from toolkit.decode.ctc.tune_beam import tune_beam
from toolkit.decode.ctc.words import WordsConfig, WordsDecoder
from toolkit.decode.rescoring.rescorer import WEIGHTS, RescoringWeights
from toolkit.fsa.lattice import Weights
from toolkit.lang.units.factory import load_units
from toolkit.score.results import Result
from toolkit.stages.run import Run

NAME = "ctc"
logger = logging.getLogger(__name__)


def write_bundle(run: Run) -> dict[str, float]:
    """Write the bundle with the dictionary search that has the fewest errors on development data.

    Of equals the simplest. Its beam is tuned on the same data, the narrowest with no more errors
    than the widest; lists that the LSTM language model rescores have that of the results.
    """
    out, tuned_on, rows = run.make("final"), splits(run).tune, result_rows(run)
    (decoder, _), weights = tuned_search(run), None
    names = ["words", ngram_search(run)]
    if run.config.neural:
        weights = RescoringWeights.load(run.need(RESCORED) / WEIGHTS)
        names += [rescored_search(run)] * (weights.neural > 0)
    best = min(names, key=lambda name: _errors(rows, name, tuned_on))
    search, fast, neural = _with_narrow_beam(run, decoder, best != "words"), None, None
    if weights is not None and best == rescored_search(run):
        neural = run.need("lstm_lm"), run.need(RESCORED) / WEIGHTS
        search, fast = _for_lists(run, decoder, weights.acoustic_scale), search
    files = CtcFiles(
        run.need("ctc"),
        run.need("features/normaliser.json"),
        load_units(run.need("units")),
        run.need("words.txt").read_text(encoding="utf-8").split(),
        run.need("lm/lm.arpa"),
        neural,
    )
    write_ctc_bundle(files, search, run.config.features.frontend, out / NAME, fast)
    reached = {row.split: row.wer for row in rows if row.lm == best}
    streams = CtcScorer(out / NAME).can_stream
    system = BundledSystem(NAME, best, streams, reached)
    write_systems(out, [system])
    logger.info("the bundle: %s", system)
    return {
        "width": search.width,
        "margin": search.margin,
        "errors": _errors(rows, best, tuned_on),
    }


def _with_narrow_beam(run: Run, decoder: WordsDecoder, with_ngrams: bool) -> WordsConfig:
    """The search with or without n-grams, with the narrowest beam that loses nothing."""
    if not with_ngrams:
        config = replace(run.config.decode.words, mode="words")
        units = load_units(run.need("units"))
        decoder = WordsDecoder(units, decoder.dictionary, None, config)
    posteriors, references = {}, {}
    for split in splits(run).tune:
        data = split_data(run, split, run.need(f"posteriors/{split}"))
        posteriors |= data.posteriors
        references |= data.references
    out = run.make("final") / NAME
    beam = tune_beam(decoder, posteriors, references, run.config.bundle, out, run.jobs)
    return replace(decoder.config, width=beam.width, margin=beam.margin, nbest=1)


def _for_lists(run: Run, decoder: WordsDecoder, scale: float) -> WordsConfig:
    """The search for the lists that are rescored, as for the results."""
    weights = Weights(scale, weights_of(decoder.config).word_penalty)
    return listing(decoder.config, weights, run.config.lstm_rescoring.count)


def _errors(rows: list[Result], lm: str, tuned_on: tuple[str, ...]) -> int:
    chosen = [row for row in rows if row.lm == lm and row.split in tuned_on]
    return sum(row.insertions + row.deletions + row.substitutions for row in chosen)
