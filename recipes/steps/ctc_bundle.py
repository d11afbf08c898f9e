"""The bundle of a CTC network for `toolkit transcribe` and `toolkit align`."""

import logging
from dataclasses import replace

from recipes.steps.ctc import RESCORED, decodes, ngram_search, tuned_search
from recipes.steps.data import splits, texts
from toolkit.decode.bundle.ctc.scorer import CtcScorer
from toolkit.decode.bundle.ctc.writing import CtcFiles, write_ctc_bundle
from toolkit.decode.bundle.folder import BundledSystem, write_systems
from toolkit.decode.ctc.lists import listing, weights_of
from toolkit.decode.ctc.posteriors import Posteriors
from toolkit.decode.ctc.tune_beam import tune_beam
from toolkit.decode.ctc.words import WordsConfig, WordsDecoder
from toolkit.decode.rescoring.rescorer import WEIGHTS, RescoringWeights
from toolkit.fsa.lattice import Weights
from toolkit.lang.units.factory import load_units
from toolkit.score.results import Result, read_results
from toolkit.stages.run import Run

NAME = "ctc"
logger = logging.getLogger(__name__)


def write_bundle(run: Run) -> dict[str, float]:
    """Write the bundle with the dictionary search that has the fewest errors on development data.

    Of equals the simplest. Its beam is tuned on the same data, the narrowest with no more errors
    than the widest; lists that the LSTM language model rescores have that of the results.
    """
    out, tuned_on, lm = run.make("final"), splits(run).tune, ngram_search(run)
    rows = [row for name in decodes(run) for row in read_results(run.need(f"{name}/rows.json"))]
    rescored = f"{lm}+lstm"
    names = ["words", lm, *[rescored] * _helps(run)]
    best = min(names, key=lambda name: _errors(rows, name, tuned_on))
    search, fast, neural = _tuned_search(run, best != "words"), None, None
    if best == rescored:
        neural = run.need("lstm_lm"), run.need(RESCORED) / WEIGHTS
        search, fast = _rescored_search(run), search
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


def _helps(run: Run) -> bool:
    """Whether the LSTM language model has a weight."""
    return run.config.neural and RescoringWeights.load(run.need(RESCORED) / WEIGHTS).neural > 0


def _tuned_search(run: Run, with_ngrams: bool) -> WordsConfig:
    """The search with or without n-grams, with the narrowest beam that loses nothing."""
    decoder, _ = tuned_search(run)
    if not with_ngrams:
        config = replace(run.config.decode.words, mode="words")
        units = load_units(run.need("units"))
        decoder = WordsDecoder(units, decoder.dictionary, None, config)
    posteriors, references = {}, {}
    for split in splits(run).tune:
        posteriors |= Posteriors(run.need(f"posteriors/{split}"))
        references |= texts(run)[split]
    out = run.make("final") / NAME
    beam = tune_beam(decoder, posteriors, references, run.config.bundle, out, run.jobs)
    return replace(decoder.config, width=beam.width, margin=beam.margin, nbest=1)


def _rescored_search(run: Run) -> WordsConfig:
    """The search for the lists that are rescored, as for the results."""
    decoder, _ = tuned_search(run)
    scale = RescoringWeights.load(run.need(RESCORED) / WEIGHTS).acoustic_scale
    weights = Weights(scale, weights_of(decoder.config).word_penalty)
    return listing(decoder.config, weights, run.config.lstm_rescoring.count)


def _errors(rows: list[Result], lm: str, tuned_on: tuple[str, ...]) -> int:
    chosen = [row for row in rows if row.lm == lm and row.split in tuned_on]
    return sum(row.insertions + row.deletions + row.substitutions for row in chosen)
