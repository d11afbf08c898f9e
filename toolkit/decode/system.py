"""Decoding of a system: weights tuned on the development splits, all splits scored."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from lhotse import MonoCut

from toolkit.align.scorer import Scorer
from toolkit.corpus.manifest import speaker_of, text_of
from toolkit.decode.decode_store import decode_store, remove_lattices, search_folder
from toolkit.decode.first_pass import (
    Decoded,
    Decoder,
    real_time_factor,
)
from toolkit.decode.tuning import Count, Grid, Tuning, percent, tune
from toolkit.fsa.lattice import Weights
from toolkit.score.results import Result, can_be_scored, record_results, score_split, write_texts
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


def decode_passes(
    system: str,
    scorers: Scorers,
    tune_on: Sequence[str],
    decoder: Decoder,
    passes: Sequence[Pass],
    out: Path,
    jobs: int,
    command: str,
    progress: Progress = lambda done, total: None,
    keep_lattices: bool = False,
) -> dict[str, float]:
    """Tune acoustic scale and word penalty of each pass, decode every split with them, and score.

    Args:
      system: name of the system in the results, such as mono.
      scorers: the acoustic model on each split to decode.
      tune_on: the splits whose pooled word errors decide on scale and penalty; the other splits
        are decoded with that choice.
      decoder: graph and search.
      passes: one for each pass of `decoder`.
      out: the folder that gets `rows.json` and, by split, the hypotheses of all weights.
      jobs: worker processes.
      command: the command line, for the results.
      progress: called with (splits decoded, splits).
      keep_lattices: for `toolkit.decode.nbest.write_nbest_and_ctm`, which removes them.

    Returns:
      WER of the last pass in percent by split, and the numbers of utterances without a path
      ("no path") and of those cut in rescoring, where there are any.
    """
    config = decoder.config
    references = {split: references_of(scorer) for split, scorer in scorers.items()}
    speakers = {split: speakers_of(scorer) for split, scorer in scorers.items()}
    searches = _Searches(decoder, scorers, out, jobs)
    grid = config.grid.if_tunable(words_of(references, tune_on), config.first_weights)
    tunings = []
    for number, decoding_pass in enumerate(passes):
        decoding_pass.out.mkdir(parents=True, exist_ok=True)
        errors = partial(_errors, searches, number, {s: references[s] for s in tune_on})
        tuning = tune(errors, config.acoustic_scale, grid, config.untuned)
        _write_tuning(tuning, decoding_pass.out)
        tunings.append(tuning)

    rows: dict[str, list[Result]] = {decoding_pass.lm: [] for decoding_pass in passes}
    decoded: dict[str, list[list[Decoded]]] = {}
    for split in scorers:
        decoded[split] = [
            searches.best(split, number, tunings, tuned=split in tune_on)
            for number in range(len(passes))
        ]
        scored = can_be_scored(references[split], split)
        for decoding_pass, utterances in zip(passes, decoded[split], strict=True):
            known = references[split], speakers[split]
            if scored:
                row = _result(system, split, decoding_pass, utterances, *known, command)
                rows[decoding_pass.lm].append(row)
            else:
                texts = {d.utterance: d.hypotheses[0] for d in utterances}
                write_texts(texts, decoding_pass.out / split)
        progress(len(decoded), len(scorers))
    record_results(out / "rows.json", [row for one in rows.values() for row in one])
    if not keep_lattices:
        remove_lattices(out)
    last = [utterance for found in decoded.values() for utterance in found[-1]]
    counts = {
        "no path": sum(not utterance.beam for utterance in last),
        "cut in rescoring": sum(utterance.cut for utterance in last),
    }
    counts |= {f"tuned to the {side} of the grid": 1 for t in tunings for side in t.at_edge}
    errors = {f"wer {row.split}": row.wer for row in rows[passes[-1].lm]}
    return errors | {name: count for name, count in counts.items() if count}


def words_of(references: Mapping[str, Mapping[str, str]], splits: Sequence[str]) -> int:
    """Return the number of words of all transcripts of some splits."""
    return sum(len(text.split()) for split in splits for text in references[split].values())


def references_of(scorer: Scorer) -> dict[str, str]:
    """Return the transcripts of a scorer's utterances, of those without features too."""
    return {cut.id: text_of(cut) for cut in _cuts(scorer)}


def speakers_of(scorer: Scorer) -> dict[str, str]:
    """Return the speakers of the same utterances as `references_of`."""
    return {cut.id: speaker_of(cut) for cut in _cuts(scorer)}


def _cuts(scorer: Scorer) -> list[MonoCut]:
    return [*map(scorer.store.cut, scorer.store.ids), *scorer.store.failed_cuts]


def _result(
    system: str,
    split: str,
    decoding_pass: Pass,
    utterances: Sequence[Decoded],
    references: Mapping[str, str],
    speakers: Mapping[str, str],
    command: str,
) -> Result:
    """Score a split and write its hypotheses and reports."""
    hypotheses = {d.utterance: d.hypotheses[0] for d in utterances}
    rtf = real_time_factor(utterances)
    named = {"system": system, "split": split, "lm": decoding_pass.lm, "command": command}
    out = decoding_pass.out / split
    return score_split(references, hypotheses, speakers, out, rtf=rtf, **named)


@dataclass
class _Searches:
    """Decoded splits by acoustic scale and weights, each searched once."""

    decoder: Decoder
    scorers: Scorers
    out: Path
    jobs: int
    _found: dict[tuple[str, float, tuple[Weights, ...]], list[list[Decoded]]] = field(
        default_factory=dict
    )

    def decoded(self, split: str, scale: float, weights: Sequence[Weights]) -> list[list[Decoded]]:
        """For each pass the utterances of a split, with a hypothesis for each of `weights`."""
        key = (split, scale, tuple(weights))
        if key not in self._found:
            folder = search_folder(self.out, split, scale)
            every = [weights] * self.decoder.passes
            decoder, scorer = self.decoder.at(scale), self.scorers[split]
            self._found[key] = decode_store(scorer, decoder, every, folder, self.jobs)
        return self._found[key]

    def best(
        self, split: str, number: int, tunings: Sequence[Tuning], tuned: bool
    ) -> list[Decoded]:
        """A split decoded by one pass with its weights, searched at their scale.

        Args:
          split: the split.
          number: of the pass.
          tunings: of all passes: those with the same scale share a search.
          tuned: whether the weights were tuned on this split, which was searched then.
        """
        tuning = tunings[number]
        scale = tuning.best.acoustic_scale
        weights = [t.best for t in tunings if t.best.acoustic_scale == scale]
        if tuned:
            weights = tuning.grid.pairs()
        chosen = list(dict.fromkeys(weights)).index(tuning.best)
        found = self.decoded(split, scale, list(dict.fromkeys(weights)))[number]
        return [replace(d, hypotheses=(d.hypotheses[chosen],)) for d in found]


def _errors(
    searches: _Searches,
    number: int,
    references: Mapping[str, Mapping[str, str]],
    scale: float,
    grid: Grid,
) -> list[Count]:
    """Word errors of a pass on all splits of `references`, for each pair of the grid."""
    pairs = grid.pairs()
    decoded = {split: searches.decoded(split, scale, pairs)[number] for split in references}
    pooled = {f"{s}/{u}": text for s, found in references.items() for u, text in found.items()}
    if not any(text.split() for text in pooled.values()):
        return [Count.of([], 0)] * len(pairs)
    counts = []
    for i in range(len(pairs)):
        texts = {
            f"{s}/{d.utterance}": d.hypotheses[i] for s, found in decoded.items() for d in found
        }
        counted = score(pooled, texts)
        errors = [utterance.errors for utterance in counted.utterances]
        counts.append(Count.of(errors, counted.ref_units))
    return counts


def _write_tuning(tuning: Tuning, out: Path) -> None:
    lines = ["acoustic_scale\tword_penalty\terrors\twords\twer\tsearch_scale"]
    lines += [
        f"{w.acoustic_scale:g}\t{w.word_penalty:g}\t{e}\t{n}\t{percent(e, n):.2f}\t{scale:g}"
        for w, (scale, (e, n, _)) in sorted(tuning.tried.items())
    ]
    write_atomically(out / "grid.tsv", "\n".join(lines) + "\n")
    write_atomically(out / "tuned.json", json.dumps(asdict(tuning.best), indent=1))
