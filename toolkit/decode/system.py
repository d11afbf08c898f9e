"""Decoding of a system: weights tuned on the development splits, all splits scored."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toolkit.align.scorer import Scorer
from toolkit.corpus.manifest import speaker_of, text_of
from toolkit.decode.first_pass import (
    DecodeConfig,
    Decoded,
    Decoder,
    decode_store,
    real_time_factor,
)
from toolkit.fsa.lattice import Weights
from toolkit.score.results import Result, record_results
from toolkit.score.split import score_split
from toolkit.score.wer import score
from toolkit.storage.files import write_atomically

Scorers = Mapping[str, Scorer]
Progress = Callable[[int, int], None]


def decode_system(
    system: str,
    scorers: Scorers,
    tune_on: Sequence[str],
    graph: Path,
    words: Path,
    lm: str,
    config: DecodeConfig,
    out: Path,
    jobs: int,
    command: str,
    progress: Progress = lambda done, total: None,
) -> dict[str, float]:
    """Tune acoustic scale and word penalty, decode every split with them, and score.

    Args:
      system: name of the system in the results, such as mono.
      scorers: the acoustic model on each split to decode.
      tune_on: the splits whose pooled word errors decide on scale and penalty; the other splits
        are decoded with that choice.
      graph: the decoding graph.
      words: `words.txt`.
      lm: name of the language model in the results.
      config: search and grid.
      out: the folder that gets `tuned.json`, `grid.tsv`, `rows.json` and, by split, hypotheses and
        reports.
      jobs: worker processes.
      command: the command line, for the results.
      progress: called with (splits decoded, splits).

    Returns:
      WER in percent by split.
    """
    decoder = Decoder(graph, words, config)
    return decode_passes(
        system, scorers, tune_on, decoder, [Pass(lm, out)], out, jobs, command, progress
    )


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
) -> dict[str, float]:
    """Decode every split, tune and score each pass separately; see `decode_system`.

    Args:
      system: name of the system in the results.
      scorers: the acoustic model on each split.
      tune_on: the splits on which the weights are tuned.
      decoder: graph and search.
      passes: one for each pass of `decoder`.
      out: the folder that gets `rows.json` and, by split, the hypotheses of all weights.
      jobs: worker processes.
      command: the command line, for the results.
      progress: called with (splits decoded, splits).

    Returns:
      WER of the last pass in percent by split, and the numbers of utterances without a path
      ("no path") and of those cut in rescoring, where there are any.
    """
    grid = decoder.config.grid()
    references = {split: references_of(scorer) for split, scorer in scorers.items()}
    speakers = {
        split: {u: speaker_of(scorer.store.cut(u)) for u in scorer.store.ids}
        for split, scorer in scorers.items()
    }
    decoded: dict[str, list[list[Decoded]]] = {}

    def run(split: str, weights: Sequence[Sequence[Weights]]) -> None:
        folder = out / split / "decoded"
        folder.mkdir(parents=True, exist_ok=True)
        decoded[split] = decode_store(scorers[split], decoder, weights, folder, jobs)
        progress(len(decoded), len(scorers))

    for split in tune_on:
        run(split, [grid] * len(passes))
    chosen = []
    for number, decoding_pass in enumerate(passes):
        decoding_pass.out.mkdir(parents=True, exist_ok=True)
        tuning = {split: decoded[split][number] for split in tune_on}
        chosen.append(_tune(grid, tuning, references, decoding_pass.out))
        tuned = json.dumps(asdict(grid[chosen[-1]]), indent=1)
        write_atomically(decoding_pass.out / "tuned.json", tuned)
    for split in scorers:
        if split not in tune_on:
            run(split, [[grid[best]] for best in chosen])

    rows: dict[str, list[Result]] = {}
    for number, decoding_pass in enumerate(passes):
        rows[decoding_pass.lm] = []
        for split, found in decoded.items():
            best = chosen[number] if split in tune_on else 0
            known = references[split], speakers[split]
            row = _result(system, split, decoding_pass, best, found[number], *known, command)
            rows[decoding_pass.lm].append(row)
    record_results(out / "rows.json", [row for one in rows.values() for row in one])
    last = [utterance for found in decoded.values() for utterance in found[-1]]
    counts = {
        "no path": sum(not utterance.beam for utterance in last),
        "cut in rescoring": sum(utterance.cut for utterance in last),
    }
    errors = {f"wer {row.split}": row.wer for row in rows[passes[-1].lm]}
    return errors | {name: count for name, count in counts.items() if count}


def references_of(scorer: Scorer) -> dict[str, str]:
    """Return the transcripts of a scorer's utterances."""
    return {u: text_of(scorer.store.cut(u)) for u in scorer.store.ids}


def _result(
    system: str,
    split: str,
    decoding_pass: Pass,
    chosen: int,
    utterances: Sequence[Decoded],
    references: Mapping[str, str],
    speakers: Mapping[str, str],
    command: str,
) -> Result:
    """Score a split and write its hypotheses and reports."""
    hypotheses = {d.utterance: d.hypotheses[chosen] for d in utterances}
    rtf = real_time_factor(utterances)
    named = {"system": system, "split": split, "lm": decoding_pass.lm, "command": command}
    out = decoding_pass.out / split
    return score_split(references, hypotheses, speakers, out, rtf=rtf, **named)


def _tune(
    grid: Sequence[Weights],
    decoded: Mapping[str, Sequence[Decoded]],
    references: Mapping[str, Mapping[str, str]],
    out: Path,
) -> int:
    """Return the index of the weights with the fewest word errors, and write the whole grid.

    Ties go to the smallest absolute penalty, then to the smallest scale, which change the scores
    least.
    """
    errors = []
    for i in range(len(grid)):
        scores = [
            score(references[split], {d.utterance: d.hypotheses[i] for d in utterances})
            for split, utterances in decoded.items()
        ]
        errors.append((sum(s.errors for s in scores), sum(s.ref_units for s in scores)))
    lines = ["acoustic_scale\tword_penalty\terrors\twords\twer"]
    lines += [
        f"{w.acoustic_scale:g}\t{w.word_penalty:g}\t{e}\t{n}\t{100 * e / n:.2f}"
        for w, (e, n) in zip(grid, errors, strict=True)
    ]
    write_atomically(out / "grid.tsv", "\n".join(lines) + "\n")
    return min(
        range(len(grid)),
        key=lambda i: (errors[i][0], abs(grid[i].word_penalty), grid[i].acoustic_scale),
    )
