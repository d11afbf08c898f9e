"""Decoding of a CTC model by several searches on the same posteriors (A21, A24)."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.config.fields import from_plain, read_plain
from toolkit.decode.ctc.dictionary import CtcDecodeError, Dictionary
from toolkit.decode.ctc.graph import GRAPH, GraphConfig, GraphDecoder, make_ctc_graph
from toolkit.decode.ctc.search import (
    CtcHypothesis,
    Decoder,
    GreedyDecoder,
    LogProbs,
    PrefixConfig,
    PrefixDecoder,
    WordsConfig,
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
from toolkit.features.normalise import Normaliser
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
    """[T, C] float32 log-probabilities by utterance, in stored order.

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
        """Return the posteriors of an utterance."""
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
    if array.dtype != np.float32 or array.ndim != 2:
        raise ValueError(f"{array.dtype} {list(array.shape)}, not float32 [T, C]")
    log_probs = torch.from_numpy(array)
    if not log_probs.isfinite().all():
        raise ValueError("values that are not finite numbers")
    return log_probs


def write_posteriors(
    model: Path,
    normaliser: Path,
    features: Path,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Run a CTC model over all utterances of a feature store.

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
    normalise = Normaliser.load(normaliser)
    out.mkdir(parents=True, exist_ok=True)
    for number, ids in enumerate(store.shards):
        path = _path(out, number)
        if not path.exists():
            rows = [normalise.apply(store.load(name), store.state(name)) for name in ids]
            with shard_writer(path) as writer:
                for name, log_probs in zip(ids, _log_probs(network, rows), strict=True):
                    writer.add_array(name, log_probs.cpu().numpy())
        if progress is not None:
            progress(number + 1, len(store.shards))
    write_atomically(out / POSTERIORS, json.dumps({"utterances": len(store)}) + "\n")


def _path(folder: Path, number: int) -> Path:
    return folder / field_file("posteriors", number)


@torch.inference_mode()
def _log_probs(model: CtcModel, rows: list[Tensor]) -> list[Tensor]:
    """Return [T_n, C] of each utterance, computed in batches of similar lengths."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found: dict[int, Tensor] = {}
    for start in range(0, len(order), BATCH):
        group = order[start : start + BATCH]
        outputs = ctc_log_probs(model, [rows[i] for i in group])
        found |= zip(group, (output.float().contiguous() for output in outputs), strict=True)
    return [found[i] for i in range(len(rows))]


logger = logging.getLogger(__name__)
EXTENSIONS = 4
"""How often a grid is extended where the best pair lies at its end. On AN4 (CR-CTC, 581 words) the
grid's own corner, 0.4 and 2, makes 37 errors."""


@dataclass(frozen=True)
class TuneConfig:
    """The grid of weights to try; it is extended where the best pair lies at its end."""

    lm_weights: tuple[float, ...] = (0.4, 0.7, 1.0, 1.5, 2.0)
    """Factors on the language model's log-probability."""
    word_bonuses: tuple[float, ...] = (0.0, 1.0, 2.0)
    """Scores added per word; positive means more words."""
    untuned_within: float | None = None
    """Keep the decoder's own weight and bonus unless others make fewer errors by more than so many
    standard errors of the difference; None: the fewest errors decide."""

    def __post_init__(self) -> None:
        if not self.lm_weights or not self.word_bonuses:
            raise ValueError("lm_weights and word_bonuses need a value each")
        if not min(self.lm_weights) > 0:
            raise ValueError(f"lm_weights are {self.lm_weights}, need to be above 0")
        if self.untuned_within is not None and not self.untuned_within >= 0:
            raise ValueError(f"untuned_within is {self.untuned_within}, needs to be 0 or more")


@dataclass(frozen=True)
class Tuned:
    """The chosen weights."""

    lm_weight: float
    word_bonus: float
    errors: int
    """Word errors with these weights."""
    words: int
    """Words of the references."""


def tune_words(
    decoder: WordsDecoder | GraphDecoder,
    log_probs: Mapping[str, LogProbs],
    references: Mapping[str, str],
    config: TuneConfig,
    out: Path,
    jobs: int = 1,
) -> Tuned:
    """Decode with every pair of weight and bonus, and return the one with the fewest word errors.

    Ties go to the bonus nearest to 0, then to the smallest weight, which change the scores least.
    The decoder's own pair may be kept instead, see `TuneConfig.untuned_within`; it is returned, and
    a warning says so, where there are too few words to tune on.

    Args:
      decoder: with a beam narrow enough for so many decodes; the choice hardly depends on it.
      log_probs: [T, C] of each utterance, by id.
      references: transcript by utterance id.
      config: the grid.
      out: the folder that gets `grid.tsv` and, last, `tuned.json`; an existing `tuned.json` is
        returned without decoding.
      jobs: see `Decoder.decode_many`.

    Raises:
      CtcDecodeError: an existing `tuned.json` cannot be read.
    """
    stored = out / "tuned.json"
    if os.path.lexists(stored):
        return read_plain(stored, Tuned, CtcDecodeError, "remove it to tune again")
    words = sum(len(text.split()) for text in references.values())
    weight, bonus = decoder.config.lm_weight, decoder.config.word_bonus
    axes, keep = (lm_weight_axis(config.lm_weights), word_bonus_axis(config.word_bonuses)), None
    consequence = f"language model weight {weight:g} and word bonus {bonus:g} stay"
    if not enough_words_to_tune(words, consequence):
        axes = lm_weight_axis([weight]), word_bonus_axis([bonus])
    elif config.untuned_within is not None:
        # An axis of one value is the user's choice.
        before = [
            axis.values[0] if len(axis.values) == 1 else value
            for axis, value in zip(axes, (weight, bonus), strict=True)
        ]
        axes = axes[0].including(before[0]), axes[1].including(before[1])
        keep = Keep(tuple(before), config.untuned_within)

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
    chosen = Tuned(tuning.best[0], tuning.best[1], tuning.count.errors, words)
    write_atomically(stored, json.dumps(asdict(chosen), indent=1) + "\n")
    return chosen


def lm_weight_axis(values: Sequence[float]) -> Axis:
    """Weights of the language model."""
    return Axis("weight", tuple(values), below=lambda v: v[0] / 2, above=lambda v: 1.5 * v[-1])


def word_bonus_axis(values: Sequence[float]) -> Axis:
    """Word bonuses."""
    return Axis("bonus", tuple(values), below=lambda v: v[0] - 1, above=lambda v: v[-1] + 1)


MOST = 4096
"""Widest beam that is tried."""
IMPROVED = 0.01
"""Share of utterances that a beam of twice the width may improve if it is to count as converged."""


@dataclass(frozen=True)
class BeamTuneConfig:
    """The beams to try."""

    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    """Widths, ascending; the last is doubled while twice the width finds better texts."""
    margins: tuple[float, ...] = (8.0, 10.0, 12.0, 15.0, 20.0, 25.0)
    """Margins in natural log units, ascending."""

    def __post_init__(self) -> None:
        for name in ("widths", "margins"):
            values = getattr(self, name)
            if not values or min(values) <= 0 or list(values) != sorted(set(values)):
                raise ValueError(f"{name} are {values}, need to be above 0 and ascending")


@dataclass(frozen=True)
class Widened:
    """A width, and how often twice that width finds another text with a higher score."""

    width: int
    improved: float
    """Share of the utterances."""

    @property
    def converged(self) -> bool:
        """Whether a wider beam hardly changes anything."""
        return self.improved <= IMPROVED


@dataclass(frozen=True)
class TunedBeam:
    """The chosen beam."""

    width: int
    margin: float
    errors: int
    """Word errors with it."""
    words: int
    """Words of the references."""


def widen(
    decoder: WordsDecoder, utterances: Sequence[LogProbs], jobs: int = 1, most: int = MOST
) -> list[Widened]:
    """Double a decoder's beam until that hardly helps any more, or it is `most` wide.

    Returns:
      What was tried: the decoder's own width first. The last one's width is the answer.
    """
    width, tried = decoder.config.width, []
    before = _best(decoder, utterances, jobs)
    while True:
        wider = _best(decoder.widened(2 * width), utterances, jobs)
        better = sum(
            new.text != old.text and new.score > old.score
            for old, new in zip(before, wider, strict=True)
        )
        tried.append(Widened(width, better / max(1, len(wider))))
        if tried[-1].converged or 2 * width > most:
            return tried
        width, before = 2 * width, wider


def _best(decoder: WordsDecoder, utterances: Sequence[LogProbs], jobs: int) -> list[CtcHypothesis]:
    return [found[0] for found in decoder.decode_many(utterances, jobs)]


def tune_beam(
    decoder: WordsDecoder,
    log_probs: Mapping[str, LogProbs],
    references: Mapping[str, str],
    config: BeamTuneConfig,
    out: Path,
    jobs: int = 1,
) -> TunedBeam:
    """Return the narrowest beam with no more word errors than the widest.

    First the width, at the widest margin, then the margin. What it costs is not measured, so that
    the choice does not depend on the machine.

    Args:
      decoder: with tuned weights.
      log_probs: [T, C] of each utterance, by id.
      references: transcript by utterance id.
      config: the beams to try.
      out: the folder that gets `beams.tsv` and, last, `beam.json`; an existing `beam.json` is
        returned without decoding.
      jobs: see `Decoder.decode_many`.

    Raises:
      CtcDecodeError: an existing `beam.json` cannot be read.
    """
    stored = out / "beam.json"
    if os.path.lexists(stored):
        return read_plain(stored, TunedBeam, CtcDecodeError, "remove it to tune again")
    utterances, tried = list(log_probs.values()), []

    def errors(width: int, margin: float) -> int:
        found = decoder.with_beam(width, margin).decode_many(utterances, jobs)
        texts = [hypotheses[0].text for hypotheses in found]
        scored = score(references, dict(zip(log_probs, texts, strict=True)))
        tried.append(TunedBeam(width, margin, scored.errors, scored.ref_units))
        return scored.errors

    margin = config.margins[-1]
    width = widen(decoder.with_beam(config.widths[-1], margin), utterances, jobs)[-1].width
    most = errors(width, margin)
    width = next((w for w in config.widths if w < width and errors(w, margin) <= most), width)
    margin = next((m for m in config.margins[:-1] if errors(width, m) <= most), margin)
    best = next(one for one in tried if (one.width, one.margin) == (width, margin))
    lines = ["width\tmargin\terrors\twords"]
    lines += [f"{t.width}\t{t.margin:g}\t{t.errors}\t{t.words}" for t in tried]
    write_atomically(out / "beams.tsv", "\n".join(lines) + "\n")
    write_atomically(stored, json.dumps(asdict(best), indent=1) + "\n")
    return best


ROW, UNWRITABLE, WIDTHS = "row.json", "unwritable.txt", "widths.json"
EXAMPLES = 5


@dataclass(frozen=True)
class CtcDecodeConfig:
    """The searches of the final table."""

    prefix: PrefixConfig = PrefixConfig(width=512)
    """Prefix beam search without a dictionary."""
    words: WordsConfig = WordsConfig(width=512)
    """Beam search over dictionary words, without and with the language model."""
    graph: GraphConfig = GraphConfig()
    """Search in a graph of dictionary and language model."""
    tune: TuneConfig = TuneConfig()
    """The weights to try on the development splits."""
    tune_width: int = 64
    """Beam width of the search over dictionary words while its weights are tuned."""
    widest: int | None = None
    """The search over dictionary words is widened up to this width, while twice the width finds
    better texts on the development splits, as it does with weak networks. None: it is not, and the
    log says where it should be."""

    def __post_init__(self) -> None:
        if self.tune_width < 1:
            raise ValueError(f"tune_width is {self.tune_width}, needs to be at least 1")


@dataclass(frozen=True)
class SplitData:
    """A split to decode and score."""

    posteriors: Posteriors
    """The model's log-probabilities."""
    references: Mapping[str, str]
    """Transcript by utterance id, also of utterances without posteriors, which are deleted."""
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
    decoded, but has no row; it is decoded again.

    Args:
      splits: the splits to decode, by name.
      tune_on: the splits on which the weights are tuned.
      units: the model's output units.
      words: the dictionary.
      arpa: the language model over these words.
      lm: name of the language model in the results.
      config: the searches.
      out: the folder that gets `rows.json`, `graph/` and a folder per search: `tuned.json` where
        weights are tuned, `widths.json` of the dictionary searches and, by split, hypotheses,
        reports and `row.json`; also `unwritable.txt` with the words that the units cannot write,
        if there are any.
      jobs: threads, or processes for the search in a graph.
      command: the command line, for the results.
      progress: called with (decodes done, decodes).

    Returns:
      WER and CER in percent by split, of the word search with the language model.
    """
    rows: list[Result] = []
    scored = {split for split, data in splits.items() if can_be_scored(data.references, split)}
    done = 0
    model = read_arpa(arpa)
    dictionary = WordsDecoder(units, words, None, replace(config.words, mode="words"))
    _report_unwritable(dictionary.dictionary, out)
    searches: dict[str, Decoder] = {
        "greedy": GreedyDecoder(units),
        "prefixes": PrefixDecoder(units, config.prefix),
        "words": dictionary,
        f"words+{lm}": WordsDecoder(units, dictionary.dictionary, model, config.words),
    }
    if not (out / "graph" / GRAPH).exists():
        make_ctc_graph(dictionary.dictionary, units, arpa, out / "graph")
    searches[f"graph+{lm}"] = GraphDecoder(out / "graph", units, config.graph)
    tuning = {u: x for s in tune_on for u, x in splits[s].posteriors.items()}
    references = {u: text for s in tune_on for u, text in splits[s].references.items()}
    for name, search in searches.items():
        if name.endswith(f"+{lm}"):
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
            done += 1
            progress(done, len(searches) * len(splits))
    record_results(out / "rows.json", rows)
    best = [row for row in rows if row.lm == f"words+{lm}"]
    wer = {f"wer {row.split}": row.wer for row in best}
    return wer | {f"cer {row.split}": row.cer for row in best}


def _wide_enough(
    search: WordsDecoder, tuning: Mapping[str, LogProbs], widest: int, out: Path, jobs: int
) -> WordsDecoder:
    """Widen a search until that hardly helps any more; `widths.json` tells what was tried."""
    stored = out / WIDTHS
    if stored.exists():
        with reading(stored, CtcDecodeError, "remove it to try again"):
            tried = [from_plain(Widened, plain) for plain in read_json(stored, [{}])]
    else:
        tried = widen(search, list(tuning.values()), jobs, widest)
        plain = json.dumps([asdict(one) for one in tried], indent=1)
        write_atomically(stored, plain + "\n")
    for one in tried:
        if not one.converged:
            logger.warning(
                "%s: a beam of %d prefixes has not converged, with twice as many %.0f %% of the"
                " development utterances have better texts%s",
                out.name,
                one.width,
                100 * one.improved,
                "" if one is not tried[-1] else "; raise decode.widest to use them",
            )
    return search.widened(tried[-1].width)


def _report_unwritable(dictionary: Dictionary, out: Path) -> None:
    """List the words that can never be recognised, and warn of them."""
    if lost := dictionary.unwritable:
        write_atomically(out / UNWRITABLE, "".join(f"{word}\n" for word in lost))
        logger.warning(
            "%d of %d words of the dictionary cannot be written in the output units, such as %s, "
            "and can never be recognised. All are listed in %s",
            len(lost),
            len(lost) + len(dictionary.words),
            ", ".join(lost[:EXAMPLES]),
            UNWRITABLE,
        )


def _row(
    data: SplitData,
    search: Decoder,
    out: Path,
    jobs: int,
    named: Mapping[str, str],
    scored: bool,
) -> list[Result]:
    """Decode and score a split, or read the results of an earlier call.

    `row.json` is written last. A split that cannot be scored has hypotheses and no results.
    """
    if found := read_results(out / ROW):
        return found
    before = processor_seconds()
    hypotheses = search.decode_many(list(data.posteriors.values()), jobs)
    texts = dict(zip(data.posteriors, [best.text for best, *_ in hypotheses], strict=True))
    texts |= {utterance: "" for utterance in data.references if utterance not in texts}
    if not scored:
        write_texts(texts, out)
        return []
    rtf = (processor_seconds() - before) / data.seconds
    row = score_split(data.references, texts, data.speakers, out, rtf=rtf, **named)
    return record_results(out / ROW, [row])
