"""Decoding of a CTC model by several searches on the same posteriors (A21, A24)."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from toolkit.config.convert import from_plain
from toolkit.config.settings import older_runs
from toolkit.decode.ctc.decoder import CtcDecodeError, Decoder, LogProbs
from toolkit.decode.ctc.dictionary import Dictionary
from toolkit.decode.ctc.graph import GRAPH, GraphConfig, GraphDecoder, make_ctc_graph
from toolkit.decode.ctc.greedy import GreedyDecoder
from toolkit.decode.ctc.posteriors import Posteriors
from toolkit.decode.ctc.prefix import PrefixConfig, PrefixDecoder
from toolkit.decode.ctc.tune import TuneConfig, tune
from toolkit.decode.ctc.tune_beam import Widened, widen
from toolkit.decode.ctc.words import WordsConfig, WordsDecoder
from toolkit.lang.ngram.arpa import read_arpa
from toolkit.lang.units.units import Units
from toolkit.processes.workers import processor_seconds
from toolkit.score.results import (
    Result,
    can_be_scored,
    read_results,
    record_results,
    score_split,
    write_texts,
)
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import read_json, reading

logger = logging.getLogger(__name__)
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
    widest: int | None = field(default=None, metadata=older_runs(None))
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
            chosen = tune(narrow, tuning, references, config.tune, out / name, jobs)
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
