"""Steps of the CTC recipe: units, records, training, decoding, time to accuracy, bundle."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from recipes.steps.bundle import write_detector
from recipes.steps.data import (
    check_audio,
    copies,
    cuts,
    extract_utterances,
    has_copies,
    lm_config,
    splits,
    texts,
    training_speech,
    transcripts_of,
)
from recipes.steps.networks import train_for_words
from toolkit.corpus.manifest import read_cuts, speaker_of, text_of
from toolkit.corpus.tags import is_event_tag
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
from toolkit.decode.ctc.evaluation import EvaluationPlan
from toolkit.decode.ctc.recogniser import CtcScorer
from toolkit.decode.ctc.search import WordsDecoder
from toolkit.decode.ctc.system import Posteriors, SplitData, decode_ctc, tune_beam, write_posteriors
from toolkit.decode.recogniser import recognise_alone
from toolkit.decode.rescore import (
    WEIGHTS,
    RescoringWeights,
    nbest_search_config,
    rescore_ctc,
    to_weights,
)
from toolkit.decode.system import write_ctc_word_times
from toolkit.decode.tune import ErrorCount
from toolkit.decode.words import CtcWordAligner
from toolkit.errors import ToolkitError
from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.normalise import estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.fsa.lattice import Weights
from toolkit.lang.arpa import read_arpa
from toolkit.lang.lm import lm_word_counts, prepare_lm
from toolkit.lang.ngram import BackoffModel
from toolkit.lang.text_policy import AS_GIVEN, UPPER_CASE, EnglishRules, TextPolicy
from toolkit.lang.units import load_units, make_units
from toolkit.models.ctc import CtcModel
from toolkit.models.neural_lm import NeuralLm
from toolkit.models.store import load_model
from toolkit.processes import ranks
from toolkit.score.results import Result, read_results
from toolkit.score.transcripts import read_transcripts
from toolkit.score.wer import score
from toolkit.stages.run import Run
from toolkit.storage.files import write_atomically
from toolkit.storage.lines import split_words
from toolkit.train.ctc.records import count_too_long, write_records
from toolkit.tta.figures import utterance_figure
from toolkit.tta.page import Extras, write_page
from toolkit.tta.runs import read_platforms
from toolkit.tta.sweep import stored_sweep
from toolkit.tta.tables import sweep_table
from toolkit.tta.training import TrainingPlan, train_by_plan

RESCORED = "decode/ctc_lstm_lm"
"""The folder of the results after rescoring with the LSTM language model."""

logger = logging.getLogger(__name__)

NAME = "ctc"

PLAIN = "words"
"""The search with the dictionary alone."""

STANDARD_ERRORS = 2.0
"""Smallest advantage, in standard errors of the difference in errors, at which the search without a
language model is chosen. On AN4 the dictionary alone has 43 errors on dev (3-grams: 45), but 38 on
test (3-grams: 32)."""


def transcript_policy(run: Run) -> TextPolicy:
    """Return the policy by which the recipe writes transcripts."""
    return TextPolicy(run.config.normaliser or UPPER_CASE, run.config.tags)


def lm_policy(run: Run) -> TextPolicy:
    """Return the policy of the language model's text."""
    return TextPolicy(run.config.normaliser or EnglishRules.id, run.config.tags)


def check_letters(run: Run) -> dict[str, float]:
    """Check the corpus, with the letters of the training words as their pronunciations.

    Words of held-out transcripts may be unknown.
    """
    train = read_cuts(run.need(f"data/{splits(run).train}.jsonl"))
    words = {word for cut in train for word in split_words(text_of(cut))}
    lexicon = {word: len(word) for word in sorted(words)}
    return check_audio(run, lexicon, run.config.normaliser == AS_GIVEN)


def prepare_units(run: Run) -> dict[str, float]:
    """Make the units, list the dictionary's words and estimate their n-grams."""
    # 1. Output units, trained on the training transcripts.
    transcripts, lm = texts(run), lm_config(run, run.config.lm)
    train = transcripts[splits(run).train]
    if run.config.units.model is not None:
        run.need(run.config.units.model)
    # A normaliser that is set is stored with the units, so that later texts are encoded alike.
    recorded = None if run.config.normaliser is None else transcript_policy(run)
    units = make_units(run.config.units, [text for _, text in sorted(train.items())], recorded)
    units.save(run.make("units"))
    words = {word for text in train.values() for word in split_words(text)}
    policy = lm_policy(run)
    if run.config.normaliser is None and lm.arpa is None:
        _log_words_that_are_not_english(words)
    # 2. The dictionary: all training words, and the most frequent ones of the LM's text.
    words |= most_frequent(lm_word_counts(lm, policy) or {}, run.config.dictionary_size)
    write_atomically(run.make("words.txt"), "".join(f"{word}\n" for word in sorted(words)))
    # 3. The n-grams of these words.
    headline = prepare_lm(
        lm, transcripts, words, run.make("lm"), tune=splits(run).tune, policy=policy
    )
    return {"units": units.size, "words": len(words)} | headline


def _log_words_that_are_not_english(words: Collection[str]) -> None:
    """Log which words the English language model cannot contain as they are written.

    Raises:
      ToolkitError: it can contain none of the words.
    """
    spoken = sorted(word for word in words if not is_event_tag(word))
    english = EnglishRules()
    lost = [word for word in spoken if english.words(word) != [word]]
    if not lost:
        return
    first = " ".join(english.words(lost[0])) or "nothing"
    remedy = (
        f"the English rules for its text turn {lost[0]} into {first}: for another language, set"
        " normaliser=letters-upper-1 and its letters in check.alphabet; for English, set"
        f" normaliser={EnglishRules.id} to write transcripts by these rules, too"
    )
    if len(lost) == len(spoken):
        raise ToolkitError(
            "the language model would contain no word of the training transcripts, because "
            + remedy
        )
    logger.warning(
        "the language model lacks %d of %d words of the training transcripts, because %s",
        len(lost),
        len(spoken),
        remedy,
    )


def most_frequent(weights: Mapping[str, float], number: int) -> set[str]:
    """Return the `number` words with the highest weights; ties are broken alphabetically."""
    return set(sorted(weights, key=lambda word: (-weights[word], word))[:number])


def extract_features(run: Run) -> dict[str, float]:
    """Extract the features of every split; augmented copies are added to the training split."""
    out, hours = run.make("features"), {}
    for split in splits(run).all:
        utterances = cuts(run, split)
        if split == splits(run).train and has_copies(run):
            utterances += copies(run)
        hours[f"hours {split}"] = extract_utterances(
            run, utterances, run.config.features, out, split
        )
    store = FeatureStore(out / splits(run).train)
    normaliser = estimate_normaliser(store, run.config.prior_frames, run.config.scope)
    normaliser.save(out / "normaliser.json")
    return hours


def write_all_records(run: Run) -> dict[str, float]:
    """Write the records for training and evaluation, of utterances up to `records.max_seconds`.

    The other splits need no records: they are decoded from their features, including long
    utterances. The paper leaves long utterances out of its test sets (A6). The headline therefore
    has their number.
    """
    out, units, config = run.make("records"), load_units(run.need("units")), run.config.records
    headline = {}
    for split in (splits(run).train, splits(run).tune[0]):
        store = run.need(f"features/{split}")
        counts = write_records(
            store, transcripts_of(run, split), units, config, out / split, run.jobs
        )
        headline |= {f"{name} {split}": value for name, value in counts.items()}
    # The first decoded split is the first tuning split, which has records.
    for split in splits(run).decoded[1:]:
        headline[f"too_long {split}"] = count_too_long(run.need(f"features/{split}"), config)
    return headline


def training_plan(run: Run) -> TrainingPlan:
    """Return the data and settings of the training, which repeated training runs need, too."""
    evaluation, names = run.config.evaluation, ["units", "features/normaliser.json"]
    dictionary = {"words": "words.txt", "arpa": "lm/lm.arpa"}
    if evaluation.search == "prefixes":
        dictionary = {}
    train, valid = (f"records/{split}" for split in (splits(run).train, splits(run).tune[0]))
    for name in (*names, *dictionary.values(), train, valid):
        run.need(name)
    plan = EvaluationPlan(
        *names,
        records=valid,
        batch=run.config.readers.utterances_per_batch,
        pad_to=run.config.readers.pad_to,
        width=run.config.evaluation_width,
        weight=run.config.train.loss_per,
        evaluation=evaluation,
        **dictionary,
    )
    return TrainingPlan(train, run.config.readers, plan, run.config.train)


def check_devices(num_processes: int | None) -> None:
    """Raise an error if the number of processes is not the one that the settings require.

    Raises:
      ToolkitError: the numbers differ; the message names both and the remedies.
    """
    if num_processes is not None and num_processes != ranks.world_size():
        raise ToolkitError(
            f"these settings need {num_processes} training processes, one per GPU, but there "
            f"{'is' if ranks.world_size() == 1 else 'are'} {ranks.world_size()}: start `torchrun "
            f"--nproc_per_node {num_processes} run_ctc.py ...`, or give `--set devices=none` to "
            "train with any number of processes and the same batch size per process"
        )


def train(run: Run) -> dict[str, float]:
    """Train through the states of the paper's figure (A22)."""
    check_devices(run.config.devices)
    plan, out = training_plan(run), run.make("ctc")
    plan.write(out)
    root = run.need("units").parent
    return train_by_plan(plan, root, out, run.device, run.jobs, run.command, run.progress)


def write_decoded_posteriors(run: Run, out: Path) -> dict[str, SplitData]:
    """Write the posteriors of the splits to decode; return them with references, by split."""
    data = {}
    for split in splits(run).decoded:
        features = run.need(f"features/{split}")
        model, normaliser = run.need("ctc"), run.need("features/normaliser.json")
        write_posteriors(model, normaliser, features, out / split, run.device)
        data[split] = split_data(run, split, out / split)
    return data


def split_data(run: Run, split: str, posteriors: Path) -> SplitData:
    """Return the posteriors of a split with the references of all its utterances.

    Utterances without features have no posteriors: all their words count as deletions.
    """
    utterances = cuts(run, split)
    return SplitData(
        Posteriors(posteriors),
        {cut.id: text_of(cut) for cut in utterances},
        {cut.id: speaker_of(cut) for cut in utterances},
        sum(cut.duration for cut in utterances),
    )


def decode(run: Run) -> dict[str, float]:
    """Write the posteriors of the splits to decode, and decode them by every search."""
    out, posteriors = run.make("decode/ctc"), run.make("posteriors")
    data, units = write_decoded_posteriors(run, posteriors), load_units(run.need("units"))
    headline = decode_ctc(
        data,
        splits(run).tune,
        units,
        split_words(run.need("words.txt").read_text(encoding="utf-8")),
        run.need("lm/lm.arpa"),
        f"{run.setting('lm.order')}gram",
        run.config.decode,
        out,
        run.jobs,
        run.command,
        run.progress,
    )
    write_times(run, data, sorted(out.glob("*/*/text")))
    return headline


def write_times(run: Run, data: Mapping[str, SplitData], texts: Sequence[Path]) -> None:
    """Write the word times of hypotheses, each in the folder of a split."""
    network = load_model(run.need("ctc")).config
    frame = run.setting("features.frontend.frame_shift_ms") / 1000
    # In input frames: an output frame depends on `frames_needed` input frames, and stands for the
    # `subsampling` frames in their middle.
    offset = (network.frames_needed - network.subsampling) / 2
    units = load_units(run.need("units"))
    aligner = CtcWordAligner(units, network.subsampling * frame, offset * frame)
    for text in texts:
        write_ctc_word_times(data[text.parent.name].posteriors, aligner, text.parent)


def tuned_search(run: Run, width: int | None = None) -> tuple[WordsDecoder, BackoffModel]:
    """Return the search with dictionary and n-grams, with tuned decoding weights, and the n-grams.

    Args:
      run: the run of the stage.
      width: width of its beam; None: the width used for the results.
    """
    decoded, lm = f"decode/ctc/{ngram_search(run)}", read_arpa(run.need("lm/lm.arpa"))
    tuned = json.loads(run.need(f"{decoded}/tuned.json").read_text(encoding="utf-8"))
    if width is None:
        widths = run.need(f"{decoded}/widths.json").read_text(encoding="utf-8")
        width = json.loads(widths)[-1]["width"]
    words = split_words(run.need("words.txt").read_text(encoding="utf-8"))
    config = replace(run.setting("decode.words"), width=width)
    decoder = WordsDecoder(load_units(run.need("units")), words, lm, config)
    return decoder.tuned(tuned["lm_weight"], tuned["word_bonus"]), lm


def ngram_search(run: Run) -> str:
    """Return the name of the search with dictionary and n-grams."""
    return f"words+{run.setting('lm.order')}gram"


def rescored_search(run: Run) -> str:
    """Return the name, in the results, of the search after rescoring with the LSTM LM."""
    return f"{ngram_search(run)}+lstm"


def sweep_widths(run: Run) -> dict[str, float]:
    """Decode a development split at every beam width, with dictionary and n-grams (A31).

    The split is the first one with transcripts. For LibriSpeech this is dev-clean, since the
    paper's sweep is on clean validation data.
    """
    split = next(
        split
        for split in splits(run).decoded  # development splits come first
        if any(split_words(text_of(cut)) for cut in cuts(run, split))
    )
    decoder, _ = tuned_search(run, run.config.decode.words.width)
    data = split_data(run, split, run.need(f"posteriors/{split}"))
    rows = stored_sweep(
        decoder,
        data.posteriors,
        data.references,
        run.config.sweep,
        run.jobs,
        split,
        run.make("sweep.json"),
    )
    return {f"wer {split} {row.width}": round(row.wer, 2) for row in rows}


def decodes(run: Run) -> list[str]:
    """Return the names of the folders with results, below decode/."""
    return ["ctc", *["ctc_lstm_lm"] * run.config.neural]


def result_rows(run: Run) -> list[Result]:
    """Return the results of all searches."""
    rows_by_decode = [read_results(run.need(f"decode/{name}/rows.json")) for name in decodes(run)]
    return [row for rows in rows_by_decode for row in rows]


def write_tta_page(run: Run) -> dict[str, float]:
    """Write the time-to-accuracy page of this run."""
    example = cuts(run, splits(run).tune[0])[0]
    extras = Extras(
        final=result_rows(run),
        sweep=sweep_table(run.need("sweep.json")),
        dataset=run.config.dataset,
        features=utterance_figure(load_cut_audio(example), example.id),
    )
    platforms = read_platforms([str(run.need("ctc"))])
    return write_page(platforms, run.make("tta"), run.config.tta, extras)


def train_lstm_lm(run: Run) -> dict[str, float]:
    """Train an LSTM LM on the LM text and the training transcripts, for the dictionary's words."""
    words = split_words(run.need("words.txt").read_text(encoding="utf-8"))
    return train_for_words(run, words, lm_policy(run))


def rescore(run: Run) -> dict[str, float]:
    """Rescore, with the LSTM LM, the n-best lists of the search with dictionary and n-grams."""
    out, (decoder, lm) = run.make(RESCORED), tuned_search(run)
    data = {s: split_data(run, s, run.need(f"posteriors/{s}")) for s in splits(run).decoded}
    headline = rescore_ctc(
        data,
        splits(run).tune,
        decoder,
        lm,
        NeuralLm.load(run.need("lstm_lm"), run.device),
        run.config.lstm_rescoring,
        out,
        run.jobs,
        {"system": "ctc", "lm": rescored_search(run), "command": run.command},
        run.progress,
    )
    write_times(run, data, sorted(out.glob("*/text")))
    return headline


def write_bundle(run: Run) -> dict[str, float]:
    """Write the bundle with the best dictionary search.

    Its beam is the narrowest that makes no more errors on the development data than the widest.
    Lists for the LSTM language model to rescore are made with the beam of the results.
    """
    # 1. Choose the search: n-grams, n-grams and LSTM, or the dictionary alone.
    out, tuned_on, rows = run.make("final"), splits(run).tune, result_rows(run)
    (decoder, _), weights = tuned_search(run), None
    names = [ngram_search(run)]
    if run.config.neural:
        weights = RescoringWeights.load(run.need(RESCORED) / WEIGHTS)
        # Tuning may have given the LSTM the weight 0: then it only costs time.
        names += [rescored_search(run)] * (weights.neural > 0)
    best = best_search(run, names, rows)
    # 2. Tune its beam. `fast` is the search without the LSTM (`toolkit transcribe --fast`).
    search, fast, neural = _with_narrow_beam(run, decoder, best != PLAIN), None, None
    if weights is not None and best == rescored_search(run):
        neural = run.need("lstm_lm"), run.need(RESCORED) / WEIGHTS
        search, fast = _for_lists(run, decoder, weights.acoustic_scale), search
    # 3. Write the bundle, its card, and the roles that it can take.
    files = CtcFiles(
        run.need("ctc"),
        run.need("features/normaliser.json"),
        load_units(run.need("units")),
        split_words(run.need("words.txt").read_text(encoding="utf-8")),
        run.need("lm/lm.arpa"),
        neural,
    )
    write_ctc_bundle(files, search, run.config.features.frontend, out / NAME, fast)
    write_detector(run, run.config.features.frontend, out / NAME)
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
      wer: WER in percent by split, with known speakers.
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

    Among equals, the first is chosen. The search without a language model is chosen only if it has
    significantly fewer errors than the best search with a language model.

    Args:
      run: the run of the stage.
      names: names of the searches with language models, the simplest first.
      rows: the results of all searches.
    """
    tuned_on = splits(run).tune
    best = min(names, key=lambda name: _errors(rows, name, tuned_on))
    decoded = RESCORED if best == rescored_search(run) else f"decode/ctc/{best}"
    without_lm, chosen = _count(run, f"decode/ctc/{PLAIN}"), _count(run, decoded)
    return PLAIN if without_lm.significantly_below(chosen, STANDARD_ERRORS) else best


def _with_narrow_beam(run: Run, decoder: WordsDecoder, with_ngrams: bool) -> WordsConfig:
    """Return the search with or without n-grams, with the narrowest beam that loses nothing."""
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
    """Return the search that makes the lists to rescore, the same as for the results."""
    weights = Weights(scale, to_weights(decoder.config).word_penalty)
    return nbest_search_config(decoder.config, weights, run.config.lstm_rescoring.count)


def _count(run: Run, decoded: str) -> ErrorCount:
    """Count the errors of a search on the development splits, by utterance."""
    references, hypotheses = {}, {}
    for split in splits(run).tune:
        text = run.need(f"{decoded}/{split}/text")
        references |= {cut.id: text_of(cut) for cut in cuts(run, split)}
        hypotheses |= read_transcripts(text, "text").texts
    scores = score(references, hypotheses)
    return ErrorCount.of([utterance.errors for utterance in scores.utterances], scores.ref_units)


def _errors(rows: Sequence[Result], lm: str, tuned_on: tuple[str, ...]) -> int:
    """Return the word errors of the search `lm` on the tuning splits."""
    chosen = [row for row in rows if row.lm == lm and row.split in tuned_on]
    return sum(row.insertions + row.deletions + row.substitutions for row in chosen)
