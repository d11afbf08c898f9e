"""The outcome of a combination on disk, and as a system of a recipe."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lhotse import MonoCut

from toolkit.align.ctm import write_ctm
from toolkit.corpus.manifest import speaker_of, text_of
from toolkit.decode.combination import Combination, CombinationTuning, combine, tune_combination
from toolkit.decode.combination_inputs import CTM, System, read_system
from toolkit.decode.tuning import FEWEST_WORDS, percent
from toolkit.fsa.word_lattice_store import Words
from toolkit.score.compare import compare, comparison_lines
from toolkit.score.results import (
    Result,
    can_be_scored,
    read_results,
    record_results,
    score_split,
    write_texts,
)
from toolkit.score.transcripts import read_transcripts
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

logger = logging.getLogger(__name__)

NAME = "combined"


def write_combined(
    systems: Sequence[System], how: Combination, words: Words, out: Path, jobs: int
) -> dict[str, str]:
    """Combine systems; write `text` and, if all have times, `words.ctm`; return the texts.

    A `words.ctm` of an earlier combination is removed: `read_system` would prefer it to `text`.
    """
    found = combine(systems, how, words, jobs)
    texts = {name: " ".join(e.token for e in entries) for name, entries in found.items()}
    (out / CTM).unlink(missing_ok=True)
    write_texts(texts, out)
    if all(system.timed for system in systems):
        write_ctm([entry for entries in found.values() for entry in entries], out / CTM)
    return texts


@dataclass(frozen=True)
class CombinedSplit:
    """A split that several systems have decoded."""

    cuts: Sequence[MonoCut]
    """Its utterances, with transcripts and speakers."""
    systems: Mapping[str, Path]
    """By the name of each system its decode of the split."""
    tuned: bool
    """Whether the weights are tuned on it."""


def combine_decodes(
    splits: Mapping[str, CombinedSplit],
    rows: Sequence[Path],
    out: Path,
    jobs: int,
    command: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Combine systems, tuned on the development splits, and score all splits.

    Args:
      splits: by name; all have the same systems.
      rows: the systems' `rows.json`, in their order.
      out: the folder that gets `grid.tsv` (what was tried), `tuned.json`, `rows.json` and, by
        split, `text`, `words.ctm`, reports, and `comparison.txt` with the system that is the best
        one on the development splits.
      jobs: worker processes.
      command: the command line, for the results.
      progress: called with (splits done, splits).

    Returns:
      WER in percent by split, and the weight of each system.
    """
    words = Words()
    read = {
        name: [read_system(path, words) for path in split.systems.values()]
        for name, split in splits.items()
    }
    references = {
        name: {cut.id: text_of(cut) for cut in split.cuts} for name, split in splits.items()
    }
    names = list(next(iter(splits.values())).systems)
    splits = {s: split for s, split in splits.items() if can_be_scored(references[s], s)}
    tuning = _tuned([(read[s], references[s]) for s in splits if splits[s].tuned], words, jobs)
    tuning = tuning or CombinationTuning(Combination((1 / len(rows),) * len(rows)), {})
    write_atomically(out / "grid.tsv", _table(names, tuning))
    weights = dict(zip(names, tuning.best.weights, strict=True))
    chosen = {"rule": tuning.best.rule, "weights": weights}
    write_atomically(out / "tuned.json", json.dumps(chosen, indent=1) + "\n")
    # Of a system's rows for a split, the last one is that of its last pass.
    known = [{row.split: row for row in read_results(path)} for path in rows]
    best = min(names, key=lambda name: _errors(known[names.index(name)], splits))
    results: list[Result] = []
    for name, split in splits.items():
        speakers = {cut.id: speaker_of(cut) for cut in split.cuts}
        begin = time.perf_counter()
        texts = write_combined(read[name], tuning.best, words, out / name, jobs)
        spent = (time.perf_counter() - begin) * jobs / sum(cut.duration for cut in split.cuts)
        row = score_split(
            references[name],
            # No features could be extracted of some: systems have no lattice of them.
            {utterance: texts.get(utterance, "") for utterance in references[name]},
            speakers,
            out / name,
            system=NAME,
            split=name,
            lm="+".join(sorted({one[name].lm for one in known})),
            rtf=spent + sum(one[name].rtf for one in known),
            command=command,
        )
        results.append(row)
        single = read_transcripts(split.systems[best] / "text", "text").texts
        both = [score(references[name], x, speakers=speakers) for x in (single, texts)]
        lines = comparison_lines(compare(*both), (best, NAME))
        write_atomically(out / name / "comparison.txt", "".join(f"{line}\n" for line in lines))
        progress(len(results), len(splits))
    record_results(out / "rows.json", results)
    found = {f"wer {row.split}": row.wer for row in results}
    return found | {f"weight {name}": weight for name, weight in weights.items()}


def _tuned(
    splits: Sequence[tuple[Sequence[System], Mapping[str, str]]], words: Words, jobs: int
) -> CombinationTuning | None:
    """Tune on splits, if they have enough words; otherwise a warning says so."""
    count = sum(len(text.split()) for _, references in splits for text in references.values())
    if count >= FEWEST_WORDS:
        return tune_combination(splits, words, jobs)
    logger.warning("NOT TUNED: the development splits have %d words; equal weights", count)
    return None


def _errors(rows: Mapping[str, Result], splits: Mapping[str, CombinedSplit]) -> int:
    """The word errors of a system on the development splits."""
    tuned = [rows[name] for name, split in splits.items() if split.tuned]
    return sum(row.insertions + row.deletions + row.substitutions for row in tuned)


def _table(names: Sequence[str], tuning: CombinationTuning) -> str:
    lines = ["\t".join(["rule", *names, "errors", "words", "wer"])]
    lines += [
        "\t".join([how.rule, *(f"{w:g}" for w in how.weights), f"{e}\t{n}\t{percent(e, n):.2f}"])
        for how, (e, n) in tuning.tried.items()
    ]
    return "\n".join(lines) + "\n"
