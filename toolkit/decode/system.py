"""Decodes with a system: tunes weights, scores all splits, and writes word times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lhotse import MonoCut

from toolkit.align.ctm_textgrid import TimedToken, write_ctm
from toolkit.align.scorer import ScoredUtterance, Scorer, map_scored_shards, map_utterances
from toolkit.corpus.manifest import speaker_of, text_of
from toolkit.decode.config import NbestConfig
from toolkit.decode.ctc.dictionary import CtcDecodeError
from toolkit.decode.ctc.search import LogProbs
from toolkit.decode.decoded import (
    ListedUtterance,
    NbestList,
    nbest_path,
    read_nbest_shard,
    write_nbest_shard,
)
from toolkit.decode.search import (
    WEIGHTS,
    DecodedPass,
    DecoderFiles,
    SearchedUtterance,
    decode_store,
    first_axes,
    first_weights,
    real_time_factor,
    remove_lattices,
    search_folder,
    searched_shard,
    smallest_change,
    weight_axes,
    weights_to_keep,
)
from toolkit.decode.tune import (
    ErrorCount,
    Point,
    enough_words_to_tune,
    tune,
    write_tuning,
)
from toolkit.decode.words import (
    Calibration,
    CtcWordAligner,
    WordAligner,
    calibration_error,
    cross_entropy_gain,
)
from toolkit.fsa.lattice import Weights
from toolkit.fsa.lattice_store import WeightsUsed, WordCodec, write_lattices
from toolkit.fsa.nbest import n_best
from toolkit.fsa.word_lattice import WordLattice, word_lattice
from toolkit.hmm.senones import Senones
from toolkit.lang.tables import SymbolTable
from toolkit.lang.units import UnitsError
from toolkit.score.alignment import align
from toolkit.score.results import Result, can_be_scored, record_results, score_split, write_texts
from toolkit.score.transcripts import read_transcripts
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

Scorers = Mapping[str, Scorer]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Pass:
    """Name and output folder of a decoding pass."""

    lm: str
    """Name of its language model in the results."""
    out: Path
    """The folder that gets `tuned.json`, `grid.tsv` and, by split, hypotheses and reports."""


def decode_system(
    system: str,
    scorers: Scorers,
    tune_on: Sequence[str],
    decoder: DecoderFiles,
    passes: Sequence[Pass],
    lang: Path | None,
    senones: Senones,
    nbest: NbestConfig | None,
    jobs: int,
    command: str,
    progress: Progress = lambda done, total: None,
) -> dict[str, float]:
    """Tune, decode and score a system, and write the times of its words.

    Args:
      system, scorers, tune_on, decoder, passes, jobs, command, progress: see `decode_passes`.
      lang: the folder of the lexicon; None: write no word times.
      senones: the acoustic model's senones, to align the words.
      nbest: settings of n-best lists, which are then written with calibrated confidences and word
        lattices, see `write_nbest_and_ctm`; None: only word times, see `write_word_times`.

    Returns:
      The results of `decode_passes` and `write_nbest_and_ctm` together.
    """
    out = passes[-1].out
    headline = decode_passes(
        system, scorers, tune_on, decoder, passes, out, jobs, command, progress
    )
    weights = Weights.load(out / "tuned.json")
    decoder = decoder.at(weights.acoustic_scale)
    if nbest is not None:
        headline |= write_nbest_and_ctm(
            scorers, tune_on, decoder, weights, lang, senones, nbest, out, jobs
        )
    elif lang is not None:
        write_word_times(scorers, decoder, lang, senones, out, jobs)
    remove_lattices(out)
    return headline


def decode_passes(
    system: str,
    scorers: Scorers,
    tune_on: Sequence[str],
    decoder: DecoderFiles,
    passes: Sequence[Pass],
    out: Path,
    jobs: int,
    command: str,
    progress: Progress = lambda done, total: None,
) -> dict[str, float]:
    """Tune each pass's acoustic scale and word penalty, then decode and score every split.

    Args:
      system: name of the system in the results, such as mono.
      scorers: the acoustic model on each split to decode.
      tune_on: the splits whose pooled word errors decide on scale and penalty; the other splits
        are decoded with that choice.
      decoder: graph and search.
      passes: one for each pass of `decoder`.
      out: the folder that gets `rows.json` and, by split, lattices in `decoded/`, which
        `remove_lattices` removes.
      jobs: worker processes.
      command: the command line, for the results.
      progress: called with (splits decoded, splits).

    Returns:
      WER of the last pass in percent by split (`wer SPLIT`). Also, if not 0, the number of that
      pass's utterances without a path (`no path`), and of those with lattices that were cut at the
      memory limit (`cut in rescoring`). An entry `tuned to the SIDE of the grid` means that the
      weights lie at an edge.
    """
    config = decoder.config
    references = {split: references_of(scorer) for split, scorer in scorers.items()}
    speakers = {split: speakers_of(scorer) for split, scorer in scorers.items()}
    searches = _Searches(decoder, scorers, out, jobs)
    axes, keep = first_axes(config), weights_to_keep(config)
    first = first_weights(config)
    consequence = (
        f"acoustic scale {first.acoustic_scale:g} and word penalty {first.word_penalty:g} are kept"
    )
    if not enough_words_to_tune(words_of(references, tune_on), consequence):
        axes, keep = weight_axes([first.acoustic_scale], [first.word_penalty]), None
    # Each pass has its own weights, which are valid only if its lattices were searched at their
    # acoustic scale.
    tunings = []
    for number, decoding_pass in enumerate(passes):
        decoding_pass.out.mkdir(parents=True, exist_ok=True)
        errors = partial(_errors, searches, number, {s: references[s] for s in tune_on})
        tuning = tune(axes, errors, smallest_change, first_search=config.acoustic_scale, keep=keep)
        write_tuning(tuning, WEIGHTS, decoding_pass.out)
        tunings.append(tuning)

    rows: dict[str, list[Result]] = {decoding_pass.lm: [] for decoding_pass in passes}
    decoded: dict[str, list[list[DecodedPass]]] = {}
    for split in scorers:
        decoded[split] = [
            searches.best(split, number, [Weights(*t.best) for t in tunings])
            for number in range(len(passes))
        ]
        scored = can_be_scored(references[split], split)
        for decoding_pass, utterances in zip(passes, decoded[split], strict=True):
            of_split = references[split], speakers[split]
            if scored:
                row = _result(system, split, decoding_pass, utterances, *of_split, command)
                rows[decoding_pass.lm].append(row)
            else:
                texts = {d.utterance: d.hypotheses[0] for d in utterances}
                write_texts(texts, decoding_pass.out / split)
        progress(len(decoded), len(scorers))
    record_results(out / "rows.json", [row for of_pass in rows.values() for row in of_pass])
    last = [utterance for by_pass in decoded.values() for utterance in by_pass[-1]]
    counts = {
        "no path": sum(not utterance.beam for utterance in last),
        "cut in rescoring": sum(utterance.cut for utterance in last),
    }
    counts |= {f"tuned to the {side} of the grid": 1 for t in tunings for side in t.at_edge}
    errors = {f"wer {row.split}": row.wer for row in rows[passes[-1].lm]}
    return errors | {name: count for name, count in counts.items() if count}


def words_of(references: Mapping[str, Mapping[str, str]], splits: Sequence[str]) -> int:
    """Return the number of words in all transcripts of several splits."""
    return sum(len(text.split()) for split in splits for text in references[split].values())


def references_of(scorer: Scorer) -> dict[str, str]:
    """Return the transcripts of a scorer's utterances, including those without features."""
    return {cut.id: text_of(cut) for cut in _cuts(scorer)}


def speakers_of(scorer: Scorer) -> dict[str, str]:
    """Return the speakers of the utterances of `references_of`."""
    return {cut.id: speaker_of(cut) for cut in _cuts(scorer)}


def _cuts(scorer: Scorer) -> list[MonoCut]:
    """Return the cuts of a scorer's utterances."""
    return [*map(scorer.store.cut, scorer.store.ids), *scorer.store.failed_cuts]


def _result(
    system: str,
    split: str,
    decoding_pass: Pass,
    utterances: Sequence[DecodedPass],
    references: Mapping[str, str],
    speakers: Mapping[str, str],
    command: str,
) -> Result:
    """Score a split, and write its hypotheses and reports."""
    hypotheses = {d.utterance: d.hypotheses[0] for d in utterances}
    rtf = real_time_factor(utterances)
    named = {"system": system, "split": split, "lm": decoding_pass.lm, "command": command}
    out = decoding_pass.out / split
    return score_split(references, hypotheses, speakers, out, rtf=rtf, **named)


@dataclass
class _Searches:
    """Decoded splits by acoustic scale and weights; each split is searched once per scale."""

    decoder: DecoderFiles
    scorers: Scorers
    out: Path
    jobs: int
    _found: dict[tuple[str, float, tuple[Weights, ...]], list[list[DecodedPass]]] = field(
        default_factory=dict
    )

    def decoded(
        self, split: str, scale: float, weights: Sequence[Weights]
    ) -> list[list[DecodedPass]]:
        """Return a split's utterances by pass, with a hypothesis for each of `weights`."""
        key = (split, scale, tuple(weights))
        if key not in self._found:
            folder = search_folder(self.out, split, scale)
            for_each_pass = [weights] * self.decoder.passes
            decoder, scorer = self.decoder.at(scale), self.scorers[split]
            self._found[key] = decode_store(scorer, decoder, for_each_pass, folder, self.jobs)
        return self._found[key]

    def best(self, split: str, number: int, weights: Sequence[Weights]) -> list[DecodedPass]:
        """Return a split decoded by one pass with its tuned weights.

        Args:
          split: the split's name.
          number: number of the pass, from 0.
          weights: the tuned weights of all passes.
        """
        chosen = weights[number]
        scale = chosen.acoustic_scale
        # Passes with the same scale share a search, whose lattices give the words of each pass.
        shared = list(dict.fromkeys(w for w in weights if w.acoustic_scale == scale))
        decoded = self.decoded(split, scale, shared)[number]
        i = shared.index(chosen)
        return [replace(d, hypotheses=(d.hypotheses[i],)) for d in decoded]


def _errors(
    searches: _Searches,
    number: int,
    references: Mapping[str, Mapping[str, str]],
    scale: float,
    points: Sequence[Point],
) -> list[ErrorCount]:
    """Return a pass's word errors on all splits of `references`, for each point of a grid."""
    pairs = [Weights(*point) for point in points]
    decoded = {split: searches.decoded(split, scale, pairs)[number] for split in references}
    # Ids are unique within a split only.
    pooled = {
        f"{s}/{u}": text for s, of_split in references.items() for u, text in of_split.items()
    }
    if not any(text.split() for text in pooled.values()):
        return [ErrorCount.of([], 0)] * len(pairs)
    counts = []
    for i in range(len(pairs)):
        texts = {
            f"{s}/{d.utterance}": d.hypotheses[i]
            for s, of_split in decoded.items()
            for d in of_split
        }
        counted = score(pooled, texts)
        errors = [utterance.errors for utterance in counted.utterances]
        counts.append(ErrorCount.of(errors, counted.ref_units))
    return counts


def write_confidences(
    listed: Mapping[str, Sequence[ListedUtterance]],
    references: Mapping[str, Mapping[str, str]],
    tune_on: Sequence[str],
    out: Path,
) -> dict[str, float]:
    """Calibrate word posteriors on some splits; write CTM files and calibration errors.

    Args:
      listed: the utterances of each split.
      references: transcripts by split and utterance.
      tune_on: the splits on which the calibration is fitted.
      out: the folder to write, see `write_nbest_and_ctm`.

    Returns:
      The expected calibration error by split (`ece SPLIT`).
    """
    scored = {split: _correctness(listed[split], references[split]) for split in listed}
    posteriors = [p for split in tune_on for p in scored[split][0]]
    correct = [correct_of_split for split in tune_on for correct_of_split in scored[split][1]]
    # One calibration for all splits, fitted on the words of the development splits.
    calibration = Calibration.fit(posteriors, correct)
    calibration.save(out / "calibration.json")
    lines = ["split\twords\tcorrect\tposterior_ece\tposterior_nce\tece\tnce\tcalibrated_on"]
    errors = {}
    for split, (raw, correct_of_split) in scored.items():
        calibrated = calibration(raw)
        errors[f"ece {split}"] = calibration_error(calibrated, correct_of_split)
        numbers = [sum(correct_of_split) / max(len(correct_of_split), 1)]
        for values in (raw, calibrated):
            numbers += [
                calibration_error(values, correct_of_split),
                cross_entropy_gain(values, correct_of_split),
            ]
        columns = [split, str(len(correct_of_split)), *(f"{number:.4f}" for number in numbers)]
        lines.append("\t".join([*columns, "+".join(tune_on)]))
        rows = (
            (utterance.utterance, "1", _calibrated(utterance.words, calibration))
            for utterance in listed[split]
        )
        write_ctm(rows, out / split / "words.ctm")
    write_atomically(out / "confidence.tsv", "\n".join(lines) + "\n")
    return errors


def _calibrated(words: Sequence[TimedToken], calibration: Calibration) -> list[TimedToken]:
    """Return words with calibrated confidences."""
    confidences = calibration([word.confidence for word in words])
    return [
        word._replace(confidence=confidence)
        for word, confidence in zip(words, confidences, strict=True)
    ]


def _correctness(
    listed: Sequence[ListedUtterance], references: Mapping[str, str]
) -> tuple[list[float], list[bool]]:
    """Return every recognised word's posterior and whether the word is correct."""
    posteriors, correct = [], []
    for utterance in listed:
        posteriors += [word.confidence for word in utterance.words]
        correct += correct_words(
            references[utterance.utterance], [word.token for word in utterance.words]
        )
    return posteriors, correct


def correct_words(reference: str, words: Sequence[str]) -> list[bool]:
    """Return which recognised words are correct, by alignment with the reference."""
    pairs = align(reference.split(), list(words))
    return [ref == hyp for ref, hyp in pairs if hyp is not None]


def write_nbest_and_ctm(
    scorers: Scorers,
    tune_on: Sequence[str],
    decoder: DecoderFiles,
    weights: Weights,
    lang: Path,
    senones: Senones,
    config: NbestConfig,
    out: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Write n-best lists, word lattices, word times and confidences of every split.

    Splits are searched again if `decode_passes` has left no lattices at the weights' scale.

    Args:
      scorers: the acoustic model on each split.
      tune_on: the splits on which the confidences are calibrated.
      decoder: graph and search; the lattices of its last pass are used.
      weights: tuned weights of that pass; the decoder searches at their acoustic scale.
      lang: the folder of the lexicon.
      senones: the acoustic model's senones, to align the words.
      config: settings of the n-best lists.
      out: the folder that gets `calibration.json`, `confidence.tsv` and, by split, `nbest.tsv`,
        `words.ctm` and `word_lattices/`.
      jobs: worker processes, or threads if the network runs on a GPU.
      progress: called with (splits done, splits).

    Returns:
      The expected calibration error of each split's confidences (`ece SPLIT`).
    """
    listed: dict[str, list[ListedUtterance]] = {}
    for split, scorer in scorers.items():
        folder = out / split / "nbest"
        folder.mkdir(parents=True, exist_ok=True)
        searched = search_folder(out, split, weights.acoustic_scale)
        extract = _Extractor(decoder, weights, lang, senones, config, searched, folder)
        paths = map_scored_shards(extract, scorer, jobs, "n-best")
        listed[split] = [utterance for path in paths for utterance in read_nbest_shard(path)]
        write_atomically(out / split / "nbest.tsv", _nbest_table(listed[split], weights))
        progress(len(listed), len(scorers))
    references = {split: references_of(scorer) for split, scorer in scorers.items()}
    return write_confidences(listed, references, tune_on, out)


def _nbest_table(listed: Sequence[ListedUtterance], weights: Weights) -> str:
    """Format n-best lists as a table."""
    lines = ["utterance\trank\tscore\tacoustic\tlm\twords\n"]
    for utterance in listed:
        nbest = utterance.nbest
        columns = zip(nbest.totals(weights), nbest.acoustic, nbest.lm, nbest.texts, strict=True)
        lines += [
            f"{utterance.utterance}\t{rank}\t{score:.3f}\t{acoustic:.3f}\t{lm:.3f}\t{words}\n"
            for rank, (score, acoustic, lm, words) in enumerate(columns, 1)
        ]
    return "".join(lines)


@dataclass(frozen=True)
class _Extractor:
    """Extracts n-best lists, words and word lattices from a feature shard's lattices.

    It is passed to worker processes.
    """

    decoder: DecoderFiles
    weights: Weights
    lang: Path
    senones: Senones
    config: NbestConfig
    searched: Path
    """The folder of the lattices."""
    out: Path

    def __call__(self, scorer: Scorer, threads: int, shard: tuple[int, Sequence[str]]) -> Path:
        """Write a shard's results unless an earlier run has; return the n-best lists' path."""
        number, ids = shard
        path = nbest_path(self.out, number)
        lattices_path = WordCodec().path(self.out.parent / "word_lattices", number)
        if path.exists() and lattices_path.exists():
            return path
        aligner = WordAligner(
            self.lang,
            self.senones,
            calibration=None,
            frame_shift=scorer.frame_shift,
            beam=self.decoder.config.beam.search,
        )
        searched = searched_shard(self.decoder, self.searched, scorer, threads, shard)
        by_id = {utterance.utterance: utterance for utterance in searched}
        words = SymbolTable.read(self.decoder.words)

        def extract(scored: ScoredUtterance) -> tuple[ListedUtterance, WordLattice | None]:
            return self._extract(by_id[scored.utterance], scored, aligner, words)

        extracted = list(map_utterances(extract, scorer, ids, threads))
        lattices_path.parent.mkdir(exist_ok=True)
        weights = self.weights
        decoding = WeightsUsed(weights.acoustic_scale, weights.word_penalty, scorer.frame_shift)
        lattices = {listed.utterance: word_lattice for listed, word_lattice in extracted}
        write_lattices(lattices_path, lattices, WordCodec(symbol=words.symbol), decoding)
        write_nbest_shard(path, (listed for listed, _ in extracted))
        return path

    def _extract(
        self,
        searched: SearchedUtterance,
        scored: ScoredUtterance,
        aligner: WordAligner,
        words: SymbolTable,
    ) -> tuple[ListedUtterance, WordLattice | None]:
        """Return an utterance's n-best list with its words, and its word lattice.

        If no path survived the search, the list is empty and the lattice is None.
        """
        start = scored.clock()
        hypotheses = (
            n_best(searched.lattices[-1], self.weights, self.config.count)
            if searched.lattices
            else []
        )
        listed = ListedUtterance(
            searched.utterance,
            searched.audio_seconds,
            round(searched.seconds[-1] + scored.clock() - start, 6),
            NbestList.of(hypotheses, self.weights, words),
        )
        if not searched.lattices:
            return listed, None
        lattice, scale = searched.lattices[-1], self.weights.acoustic_scale
        tokens = aligner(lattice, self.weights, scored.log_likelihoods * scale, scale)
        output_beam = self.decoder.config.beam.output
        return (
            replace(listed, words=tuple(tokens)),
            word_lattice(lattice, scale, output_beam, aligner.frame_shift),
        )


TEXT, WORDS = "text", "words.ctm"


def write_word_times(
    scorers: Scorers, decoder: DecoderFiles, lang: Path, senones: Senones, out: Path, jobs: int
) -> None:
    """Write `words.ctm`, without confidences, beside the `text` of every split.

    Utterances for which no alignment survives the beam are left out.

    Args:
      scorers: the acoustic model on each split.
      decoder: the search that found the texts; its acoustic scale and beam are used.
      lang: the folder of the lexicon.
      senones: those of the acoustic model.
      out: the folder with a folder for each split.
      jobs: worker processes, or threads if the network runs on a GPU.
    """
    scale, beam = decoder.config.acoustic_scale, decoder.config.beam.search
    for split, scorer in scorers.items():
        texts = read_transcripts(out / split / TEXT, "text").texts
        align_shard = _Shard(texts, lang, senones, scale, beam)
        shards = map_scored_shards(align_shard, scorer, jobs, "word times")
        write_ctm((row for shard in shards for row in shard), out / split / WORDS)


@dataclass(frozen=True)
class _Shard:
    """Aligns the recognised texts of a feature shard; picklable."""

    texts: Mapping[str, str]
    lang: Path
    senones: Senones
    scale: float
    beam: float

    def __call__(
        self, scorer: Scorer, threads: int, shard: tuple[int, Sequence[str]]
    ) -> list[tuple[str, str, list[TimedToken]]]:
        shift = scorer.frame_shift
        aligner = WordAligner(self.lang, self.senones, None, shift, self.beam)

        def align(scored: ScoredUtterance) -> tuple[str, str, list[TimedToken]]:
            words, scores = self.texts[scored.utterance].split(), scored.log_likelihoods
            spans = aligner.spans(words, scores * self.scale, self.scale) or []
            tokens = [
                TimedToken(word, start * shift, end * shift)
                for word, (start, end) in zip(words, spans, strict=bool(spans))
            ]
            return scored.utterance, "1", tokens

        ids = [utterance for utterance in shard[1] if self.texts.get(utterance)]
        return list(map_utterances(align, scorer, ids, threads))


def write_ctc_word_times(
    posteriors: Mapping[str, LogProbs], aligner: CtcWordAligner, folder: Path
) -> None:
    """Write `words.ctm` beside the `text` of a split decoded by a CTC search.

    Texts that the units cannot write, or that are too long for the posteriors, are left out.

    Args:
      posteriors: [T, C] log-probabilities by utterance.
      aligner: the aligner for the network's units.
      folder: the split's folder.
    """
    texts = read_transcripts(folder / TEXT, "text").texts
    rows = []
    for utterance, log_probs in posteriors.items():
        try:
            words = aligner(texts.get(utterance, "").split(), log_probs).words
        except (CtcDecodeError, UnitsError):
            continue
        # The first stack of frames may begin before the audio.
        times = [TimedToken(w.token, max(0.0, w.start_s), w.end_s) for w in words]
        rows.append((utterance, "1", times))
    write_ctm(rows, folder / WORDS)
