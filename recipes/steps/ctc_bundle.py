"""The bundle of a CTC network for `toolkit transcribe` and `toolkit align`."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recipes.steps.ctc import (
    RESCORED,
    ngram_search,
    rescored_search,
    result_rows,
    split_data,
    tuned_search,
)
from recipes.steps.data import cuts, splits, training_speech
from toolkit.corpus.manifest import text_of
from toolkit.decode.bundle import (
    BundledSystem,
    Card,
    CtcFiles,
    Role,
    write_card,
    write_ctc_bundle,
    write_systems,
)
from toolkit.decode.config import WordsConfig
from toolkit.decode.ctc.recogniser import CtcScorer
from toolkit.decode.ctc.search import WordsDecoder
from toolkit.decode.ctc.system import tune_beam
from toolkit.decode.recogniser import recognise_alone
from toolkit.decode.rescore import WEIGHTS, RescoringWeights, nbest_search_config, to_weights
from toolkit.decode.tune import ErrorCount
from toolkit.fsa.lattice import Weights
from toolkit.lang.units import load_units
from toolkit.models.ctc import CtcModel
from toolkit.models.store import load_model
from toolkit.score.results import Result
from toolkit.score.transcripts import read_transcripts
from toolkit.score.wer import score
from toolkit.stages.run import Run
from toolkit.storage.words import split_words

NAME = "ctc"
PLAIN = "words"
"""The search with the dictionary alone."""
STANDARD_ERRORS = 2.0
"""Of the difference, by which its errors have to be fewer. On AN4 it has 43 on dev, where the
3-grams have 45, and 38 on test, where they have 32."""
logger = logging.getLogger(__name__)


def write_bundle(run: Run) -> dict[str, float]:
    """Write the bundle with the best dictionary search.

    Its beam is tuned on the development data, the narrowest with no more errors than the widest;
    lists that the LSTM language model rescores have that of the results.
    """
    out, tuned_on, rows = run.make("final"), splits(run).tune, result_rows(run)
    (decoder, _), weights = tuned_search(run), None
    names = [ngram_search(run)]
    if run.config.neural:
        weights = RescoringWeights.load(run.need(RESCORED) / WEIGHTS)
        names += [rescored_search(run)] * (weights.neural > 0)
    best = best_search(run, names, rows)
    search, fast, neural = _with_narrow_beam(run, decoder, best != PLAIN), None, None
    if weights is not None and best == rescored_search(run):
        neural = run.need("lstm_lm"), run.need(RESCORED) / WEIGHTS
        search, fast = _for_lists(run, decoder, weights.acoustic_scale), search
    files = CtcFiles(
        run.need("ctc"),
        run.need("features/normaliser.json"),
        load_units(run.need("units")),
        split_words(run.need("words.txt").read_text(encoding="utf-8")),
        run.need("lm/lm.arpa"),
        neural,
    )
    write_ctc_bundle(files, search, run.config.features.frontend, out / NAME, fast)
    card = _card(run, out / NAME, best, {row.split: row.wer for row in rows if row.lm == best})
    write_card(out / NAME, card)
    roles: list[Role] = ["speaker_known", "speaker_unknown"]
    if streams := CtcScorer(out / NAME).can_stream:
        roles.append("stream")
    write_systems(out, [BundledSystem(NAME, best, streams, card.wer, tuple(roles))])
    logger.info("the bundle: %s", card)
    return {
        "width": search.width,
        "margin": search.margin,
        "errors": _errors(rows, best, tuned_on),
    }


def _card(run: Run, bundle: Path, lm: str, wer: dict[str, float]) -> Card:
    """Return the bundle's card; every utterance is recognised alone for it.

    Args:
      run: the run of the stage.
      bundle: the finished bundle.
      lm: name of its search.
      wer: in percent by split, with speakers known.
    """
    alone = {}
    for split in wer:
        texts = recognise_alone(bundle, run.need(f"features/{split}"), run.jobs)
        references = {cut.id: text_of(cut) for cut in cuts(run, split) if cut.id in texts}
        alone[split] = round(score(references, texts).percent, 2)
    model = load_model(run.need("ctc"))
    kind = "network"
    if isinstance(model, CtcModel):
        kind = "BLSTM" if model.config.bidirectional else "LSTM"
    return Card(
        NAME,
        f"CTC {kind}",
        words=len(split_words(run.need("words.txt").read_text(encoding="utf-8"))),
        **training_speech(run),
        lm=lm,
        wer=wer,
        wer_unknown_speaker=alone,
        tuned_on=splits(run).tune,
    )


def best_search(run: Run, names: Sequence[str], rows: Sequence[Result]) -> str:
    """Return the dictionary search with the fewest errors on the development data.

    Of equals the first; that without a language model only if its errors are significantly fewer.

    Args:
      run: the run of the stage.
      names: of the searches with language models, the simplest first.
      rows: the results of all searches.
    """
    tuned_on = splits(run).tune
    best = min(names, key=lambda name: _errors(rows, name, tuned_on))
    decoded = RESCORED if best == rescored_search(run) else f"decode/ctc/{best}"
    plain, chosen = _count(run, f"decode/ctc/{PLAIN}"), _count(run, decoded)
    return PLAIN if plain.significantly_below(chosen, STANDARD_ERRORS) else best


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
    weights = Weights(scale, to_weights(decoder.config).word_penalty)
    return nbest_search_config(decoder.config, weights, run.config.lstm_rescoring.count)


def _count(run: Run, decoded: str) -> ErrorCount:
    """The errors of a search by utterance of the development splits."""
    references, hypotheses = {}, {}
    for split in splits(run).tune:
        text = run.need(f"{decoded}/{split}/text")
        references |= {cut.id: text_of(cut) for cut in cuts(run, split)}
        hypotheses |= read_transcripts(text, "text").texts
    found = score(references, hypotheses)
    return ErrorCount.of([utterance.errors for utterance in found.utterances], found.ref_units)


def _errors(rows: Sequence[Result], lm: str, tuned_on: tuple[str, ...]) -> int:
    chosen = [row for row in rows if row.lm == lm and row.split in tuned_on]
    return sum(row.insertions + row.deletions + row.substitutions for row in chosen)
