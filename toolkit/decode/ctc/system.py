"""Decodes the splits with a CTC model, by several searches on the same posteriors (A21, A24)."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from toolkit.config.fields import ListLength, from_plain, read_plain
from toolkit.decode.config import (
    BeamTuneConfig,
    CtcDecodeConfig,
    GraphConfig,
    TuneConfig,
    WordsConfig,
)
from toolkit.decode.ctc.dictionary import CtcDecodeError, Dictionary
from toolkit.decode.ctc.graph import GRAPH, GraphDecoder, make_ctc_graph
from toolkit.decode.ctc.search import (
    CtcDecoder,
    CtcHypothesis,
    GreedyDecoder,
    LogProbs,
    PrefixDecoder,
    WordsDecoder,
)
from toolkit.decode.tune import (
    Axis,
    ErrorCount,
    Keep,
    Point,
    enough_words_to_tune,
    tune,
    write_grid,
)
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import FeatureStore, ShardStore, field_file, shard_writer
from toolkit.lang.arpa import read_arpa
from toolkit.lang.units import Units
from toolkit.models.ctc import CtcModel, ctc_log_probs
from toolkit.models.store import load_model
from toolkit.processes.workers import processor_seconds
from toolkit.score.results import (
    Result,
    can_be_scored,
    read_results,
    record_results,
    score_split,
    write_texts,
)
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import NATURAL, read_json, reading

POSTERIORS = "posteriors.json"
BATCH = 16  # utterances


class Posteriors(Mapping[str, Tensor]):
    """Stored log-probabilities, [T, C] float32 by utterance, in stored order.

    Args:
      folder: written by `write_posteriors`.

    Raises:
      CtcDecodeError: the folder was not written by `write_posteriors`, or is incomplete.
    """

    def __init__(self, folder: Path) -> None:
        what = "not a folder of finished posteriors"
        with reading(folder, CtcDecodeError, "decode again", what):
            utterances = read_json(Path(folder) / POSTERIORS, {"utterances": NATURAL})["utterances"]
            self._store = ShardStore(
                folder, "posteriors", _to_log_probs, CtcDecodeError, "decode again"
            )
            if len(self._store) != utterances:
                raise ValueError(f"{len(self._store)} utterances, not {utterances}")

    def __getitem__(self, utterance: str) -> Tensor:
        """Return the log-probabilities of an utterance."""
        if utterance not in self._store:
            raise KeyError(utterance)
        return self._store.load(utterance)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the utterance ids, file by file."""
        return iter(self._store.ids)

    def __len__(self) -> int:
        """Number of utterances."""
        return len(self._store)


def _to_log_probs(array: np.ndarray) -> Tensor:
    """Convert a stored array to log-probabilities."""
    if array.dtype != np.float32 or array.ndim != 2:
        raise ValueError(f"the array is {array.dtype} {list(array.shape)}, not float32 [T, C]")
    log_probs = torch.from_numpy(array)
    if not log_probs.isfinite().all():
        raise ValueError("some values are not finite numbers")
    return log_probs


def write_posteriors(
    model: Path,
    normaliser: Path,
    features: Path,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Run a CTC model over a feature store and write its log-probabilities.

    Called again after an interruption, it continues with the missing shards.

    Args:
      model: folder of a `CtcModel`.
      normaliser: file of the feature normaliser.
      features: the feature store.
      out: the folder that gets a file per feature shard and, last, `posteriors.json`.
      device: where to compute.
      progress: called with (shards done, shards).
    """
    store, network = FeatureStore(features), load_model(model).to(device)
    normalise = Cmvn.load(normaliser)
    out.mkdir(parents=True, exist_ok=True)
    for number, ids in enumerate(store.shards):
        path = _path(out, number)
        if not path.exists():
            rows = [normalise.apply(store.load(name), store.cmn_state(name)) for name in ids]
            with shard_writer(path) as writer:
                for name, log_probs in zip(ids, _log_probs(network, rows), strict=True):
                    writer.add_array(name, log_probs.cpu().numpy())
        if progress is not None:
            progress(number + 1, len(store.shards))
    write_atomically(out / POSTERIORS, json.dumps({"utterances": len(store)}) + "\n")


def _path(folder: Path, number: int) -> Path:
    """Return the path of a file of posteriors."""
    return folder / field_file("posteriors", number)


@torch.inference_mode()
def _log_probs(model: CtcModel, rows: list[Tensor]) -> list[Tensor]:
    """Compute each utterance's log-probabilities [T_n, C], in batches of similar lengths."""
    # Utterances of similar lengths share a batch, so that little is padded.
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    log_probs: dict[int, Tensor] = {}
    for start in range(0, len(order), BATCH):
        group = order[start : start + BATCH]
        outputs = ctc_log_probs(model, [rows[i] for i in group])
        log_probs |= zip(group, (output.float().contiguous() for output in outputs), strict=True)
    return [log_probs[i] for i in range(len(rows))]


logger = logging.getLogger(__name__)
EXTENSIONS = 4
"""Maximum number of times that a grid is extended while the best pair lies at its edge. On AN4
(CR-CTC, 581 words) the best pair of the original grid is a corner: weight 0.4 and bonus 2, with 37
errors."""


@dataclass(frozen=True)
class TunedWeights:
    """The tuned language model weight and word bonus."""

    lm_weight: float
    word_bonus: float
    errors: int
    """Word errors with these weights."""
    words: int
    """Number of words in the references."""


def tune_words(
    decoder: WordsDecoder | GraphDecoder,
    log_probs: Mapping[str, LogProbs],
    references: Mapping[str, str],
    config: TuneConfig,
    out: Path,
    jobs: int = 1,
) -> TunedWeights:
    """Find the pair of LM weight and word bonus with the fewest word errors.

    Ties go to the bonus nearest to 0, then to the smallest weight, which change the scores least.
    The decoder's own pair may be kept instead, see `TuneConfig.untuned_within`. It is also kept,
    with a warning, if there are too few words to tune on.

    Args:
      decoder: the search, with a beam narrow enough for so many decodes; the choice of weights
        hardly depends on the beam.
      log_probs: [T, C] of each utterance, by id.
      references: transcript by utterance id.
      config: the grid of weights to try.
      out: the folder that gets `grid.tsv` and, last, `tuned.json`; an existing `tuned.json` is
        returned without decoding.
      jobs: see `CtcDecoder.decode_many`.

    Raises:
      CtcDecodeError: an existing `tuned.json` cannot be read.
    """
    path = out / "tuned.json"
    if (earlier := _read_earlier(path, TunedWeights)) is not None:
        return earlier
    words = sum(len(text.split()) for text in references.values())
    axes, keep = _first_grid(decoder.config, config, words)

    def count_errors(scale: float | None, points: Sequence[Point]) -> list[ErrorCount]:
        counts = []
        pairs = [(point[0], point[1]) for point in points]
        for texts in decoder.texts(list(log_probs.values()), pairs, jobs):
            hypotheses = dict(zip(log_probs, texts, strict=True))
            scored = score(references, hypotheses).utterances if words else ()
            counts.append(ErrorCount.of([utterance.errors for utterance in scored], words))
        return counts

    tuning = tune(
        axes,
        count_errors,
        lambda point, scale: (abs(point[1]), point[0]),
        keep=keep,
        max_searches=1 + EXTENSIONS,
        max_extensions=EXTENSIONS,
    )
    rows = ((point, count, None) for point, (_, count) in sorted(tuning.tried.items()))
    write_grid(("lm_weight", "word_bonus"), rows, out / "grid.tsv")
    chosen = TunedWeights(tuning.best[0], tuning.best[1], tuning.count.errors, words)
    write_atomically(path, json.dumps(asdict(chosen), indent=1) + "\n")
    return chosen


Earlier = TypeVar("Earlier")


def _read_earlier(path: Path, kind: type[Earlier]) -> Earlier | None:
    """Read the result of an earlier call of a tuning function; None if there is none."""
    if not os.path.lexists(path):
        return None
    return read_plain(path, kind, CtcDecodeError, "remove it to tune again")


def _first_grid(
    search: WordsConfig | GraphConfig, config: TuneConfig, words: int
) -> tuple[tuple[Axis, Axis], Keep | None]:
    """Return the initial grid of weights and bonuses, and the pair that tuning keeps.

    Args:
      search: settings with the decoder's own weight and bonus.
      config: the grid of weights to try.
      words: number of words in the references.
    """
    weight, bonus = search.lm_weight, search.word_bonus
    consequence = f"language model weight {weight:g} and word bonus {bonus:g} are kept"
    if not enough_words_to_tune(words, consequence):
        return (lm_weight_axis([weight]), word_bonus_axis([bonus])), None
    axes = lm_weight_axis(config.lm_weights), word_bonus_axis(config.word_bonuses)
    if config.untuned_within is None:
        return axes, None
    # An axis with only one value is the user's choice, so this value is kept.
    kept_weight, kept_bonus = (
        axis.values[0] if len(axis.values) == 1 else value
        for axis, value in zip(axes, (weight, bonus), strict=True)
    )
    keep = Keep((kept_weight, kept_bonus), config.untuned_within)
    return (axes[0].including(kept_weight), axes[1].including(kept_bonus)), keep


def lm_weight_axis(values: Sequence[float]) -> Axis:
    """Return the axis of language model weights."""
    return Axis("weight", tuple(values), below=lambda v: v[0] / 2, above=lambda v: 1.5 * v[-1])


def word_bonus_axis(values: Sequence[float]) -> Axis:
    """Return the axis of word bonuses."""
    return Axis("bonus", tuple(values), below=lambda v: v[0] - 1, above=lambda v: v[-1] + 1)


MOST = 4096
"""Widest beam that is tried."""
IMPROVED = 0.01
"""A beam has converged if twice its width improves at most this share of the utterances."""


@dataclass(frozen=True)
class WidthTrial:
    """A beam width, and the share of utterances that twice the width improves."""

    width: ListLength
    """Prefixes kept per frame."""
    improved: float
    """Share of utterances that twice the width improves."""

    @property
    def converged(self) -> bool:
        """Whether a wider beam hardly changes the texts."""
        return self.improved <= IMPROVED


@dataclass(frozen=True)
class TunedBeam:
    """The chosen beam and its errors."""

    width: ListLength
    """Prefixes kept per frame."""
    margin: float
    """See `WordsConfig.margin`."""
    errors: int
    """Word errors with this beam."""
    words: int
    """Number of words in the references."""


def widen(
    decoder: WordsDecoder, utterances: Sequence[LogProbs], jobs: int = 1, most: int = MOST
) -> list[WidthTrial]:
    """Double a decoder's beam until the texts hardly improve, or the beam is `most` wide.

    Returns:
      The trials, starting with the decoder's own width; the last trial has the width to use.
    """
    width, trials = decoder.config.width, []
    narrow = _best_hypotheses(decoder, utterances, jobs)
    while True:
        wide = _best_hypotheses(decoder.widened(2 * width), utterances, jobs)
        improved = sum(
            new.text != old.text and new.score > old.score
            for old, new in zip(narrow, wide, strict=True)
        )
        trials.append(WidthTrial(width, improved / max(1, len(wide))))
        if trials[-1].converged or 2 * width > most:
            return trials
        width, narrow = 2 * width, wide


def _best_hypotheses(
    decoder: WordsDecoder, utterances: Sequence[LogProbs], jobs: int
) -> list[CtcHypothesis]:
    """Return the best hypothesis of each utterance."""
    return [hypotheses[0] for hypotheses in decoder.decode_many(utterances, jobs)]


def tune_beam(
    decoder: WordsDecoder,
    log_probs: Mapping[str, LogProbs],
    references: Mapping[str, str],
    config: BeamTuneConfig,
    out: Path,
    jobs: int = 1,
) -> TunedBeam:
    """Return the narrowest beam that has no more word errors than the widest.

    The width is chosen first, with the widest margin, and then the margin. Run times are not
    measured, so that the choice does not depend on the machine.

    Args:
      decoder: the search, with tuned weights.
      log_probs: [T, C] of each utterance, by id.
      references: transcript by utterance id.
      config: the beams to try.
      out: the folder that gets `beams.tsv` and, last, `beam.json`; an existing `beam.json` is
        returned without decoding.
      jobs: see `CtcDecoder.decode_many`.

    Raises:
      CtcDecodeError: an existing `beam.json` cannot be read.
    """
    path = out / "beam.json"
    if (earlier := _read_earlier(path, TunedBeam)) is not None:
        return earlier
    utterances = list(log_probs.values())
    trials: list[TunedBeam] = []

    def errors(width: int, margin: float) -> int:
        best = _best_hypotheses(decoder.with_beam(width, margin), utterances, jobs)
        texts = [hypothesis.text for hypothesis in best]
        scored = score(references, dict(zip(log_probs, texts, strict=True)))
        trials.append(TunedBeam(width, margin, scored.errors, scored.ref_units))
        return scored.errors

    # The widest beam sets the number of errors. The narrowest beam with no more errors is taken:
    # first its width, at the widest margin, then its margin.
    margin = config.margins[-1]
    width = widen(decoder.with_beam(config.widths[-1], margin), utterances, jobs)[-1].width
    most = errors(width, margin)
    width = next((w for w in config.widths if w < width and errors(w, margin) <= most), width)
    margin = next((m for m in config.margins[:-1] if errors(width, m) <= most), margin)
    best = next(trial for trial in trials if (trial.width, trial.margin) == (width, margin))
    lines = ["width\tmargin\terrors\twords"]
    lines += [f"{t.width}\t{t.margin:g}\t{t.errors}\t{t.words}" for t in trials]
    write_atomically(out / "beams.tsv", "\n".join(lines) + "\n")
    write_atomically(path, json.dumps(asdict(best), indent=1) + "\n")
    return best


ROW, UNWRITABLE, WIDTHS = "row.json", "unwritable.txt", "widths.json"
EXAMPLES = 5


@dataclass(frozen=True)
class SplitData:
    """A split to decode and score."""

    posteriors: Posteriors
    """The model's log-probabilities."""
    references: Mapping[str, str]
    """Transcript by utterance id; the words of utterances without posteriors count as deleted."""
    speakers: Mapping[str, str]
    """Speaker by utterance id."""
    seconds: float
    """Seconds of audio."""


def decode_ctc(
    splits: Mapping[str, SplitData],
    tune_on: Sequence[str],
    units: Units,
    words: Sequence[str],
    arpa: Path,
    lm: str,
    config: CtcDecodeConfig,
    out: Path,
    jobs: int,
    command: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Decode every split by every search, with weights tuned on the development splits.

    Called again after an interruption, it reuses what is finished in `out`: the graph, tuned
    weights, and the results of each search and split. A split whose transcripts have no word is
    decoded in every call, and gets no row.

    Args:
      splits: the splits to decode, by name.
      tune_on: the splits on which the weights are tuned.
      units: the model's output units.
      words: the words of the dictionary.
      arpa: the language model over these words.
      lm: name of the language model in the results.
      config: settings of the searches and of their tuning.
      out: the folder that gets `rows.json`, `graph/`, a folder per search and, if the units cannot
        write some words, a list of these (`unwritable.txt`). The folder of a search has
        `tuned.json` if its weights are tuned, `widths.json` if it is a beam search over dictionary
        words and, by split, hypotheses, reports and `row.json`.
      jobs: threads, or processes for the search in a graph.
      command: the command line, for the results.
      progress: called with (decodes done, decodes).

    Returns:
      WER and CER in percent by split (`wer SPLIT`, `cer SPLIT`), of the word search with the
      language model.
    """
    rows: list[Result] = []
    scored = {split for split, data in splits.items() if can_be_scored(data.references, split)}
    num_decodes = 0
    model = read_arpa(arpa)
    dictionary = WordsDecoder(units, words, None, replace(config.words, mode="words"))
    _report_unwritable(dictionary.dictionary, out)
    searches: dict[str, CtcDecoder] = {
        "greedy": GreedyDecoder(units),
        "prefixes": PrefixDecoder(units, config.prefix),
        "words": dictionary,
        f"words+{lm}": WordsDecoder(units, dictionary.dictionary, model, config.words),
    }
    if not (out / "graph" / GRAPH).exists():
        make_ctc_graph(dictionary.dictionary, units, arpa, out / "graph")
    searches[f"graph+{lm}"] = GraphDecoder(out / "graph", units, config.graph)
    # Weights are tuned once, on all development splits together.
    tuning = {u: x for s in tune_on for u, x in splits[s].posteriors.items()}
    references = {u: text for s in tune_on for u, text in splits[s].references.items()}
    for name, search in searches.items():
        if name.endswith(f"+{lm}"):
            # Many weights are tried, with a narrow beam: the best ones hardly depend on the beam.
            narrow = search
            if isinstance(search, WordsDecoder):
                narrow = search.configured(replace(config.words, width=config.tune_width))
            chosen = tune_words(narrow, tuning, references, config.tune, out / name, jobs)
            search = search.tuned(chosen.lm_weight, chosen.word_bonus)
        if isinstance(search, WordsDecoder):
            search = _wide_enough(search, tuning, config.widest or 1, out / name, jobs)
        for split, data in splits.items():
            named = {"system": "ctc", "split": split, "lm": name, "command": command}
            rows += _row(data, search, out / name / split, jobs, named, split in scored)
            num_decodes += 1
            progress(num_decodes, len(searches) * len(splits))
    record_results(out / "rows.json", rows)
    best = [row for row in rows if row.lm == f"words+{lm}"]
    wer = {f"wer {row.split}": row.wer for row in best}
    return wer | {f"cer {row.split}": row.cer for row in best}


def _wide_enough(
    search: WordsDecoder, tuning: Mapping[str, LogProbs], widest: int, out: Path, jobs: int
) -> WordsDecoder:
    """Widen a search until its texts hardly improve; write the widths tried to `widths.json`."""
    stored = out / WIDTHS
    if stored.exists():
        with reading(stored, CtcDecodeError, "remove it to try again"):
            trials = [from_plain(WidthTrial, fields) for fields in read_json(stored, [{}])]
    else:
        trials = widen(search, list(tuning.values()), jobs, widest)
        content = json.dumps([asdict(trial) for trial in trials], indent=1)
        write_atomically(stored, content + "\n")
    for trial in trials:
        if not trial.converged:
            logger.warning(
                "%s: a beam of %d prefixes is too narrow: with twice as many prefixes, the search "
                "finds hypotheses with better scores for %.0f %% of the development utterances%s",
                out.name,
                trial.width,
                100 * trial.improved,
                "" if trial is not trials[-1] else ". Raise `decode.widest` to use a wider beam",
            )
    return search.widened(trials[-1].width)


def _report_unwritable(dictionary: Dictionary, out: Path) -> None:
    """List the words that the output units cannot spell, and warn about them."""
    if unwritable := dictionary.unwritable:
        write_atomically(out / UNWRITABLE, "".join(f"{word}\n" for word in unwritable))
        logger.warning(
            "%d of %d dictionary words, such as %s, cannot be written in the output units and can "
            "never be recognised. All are listed in %s",
            len(unwritable),
            len(unwritable) + len(dictionary.words),
            ", ".join(unwritable[:EXAMPLES]),
            UNWRITABLE,
        )


def _row(
    data: SplitData,
    search: CtcDecoder,
    out: Path,
    jobs: int,
    named: Mapping[str, str],
    scored: bool,
) -> list[Result]:
    """Return a split's row of the table: decode and score it, or read an earlier call's results.

    `row.json` is written last. A split that cannot be scored has hypotheses and no results.
    """
    if rows := read_results(out / ROW):
        return rows
    start = processor_seconds()
    hypotheses = search.decode_many(list(data.posteriors.values()), jobs)
    texts = dict(zip(data.posteriors, [best.text for best, *_ in hypotheses], strict=True))
    texts |= {utterance: "" for utterance in data.references if utterance not in texts}
    if not scored:
        write_texts(texts, out)
        return []
    rtf = (processor_seconds() - start) / data.seconds
    row = score_split(data.references, texts, data.speakers, out, rtf=rtf, **named)
    return record_results(out / ROW, [row])
