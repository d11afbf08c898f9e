"""One system decoded: tuned on the development splits, scored on all."""

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
    """Tune acoustic scale and word penalty, decode every split with them, score.

    Args:
      system: the name of the results' rows, such as mono.
      scorers: the acoustic model on each split to decode.
      tune_on: those of the splits whose pooled errors choose scale and penalty; the others are
        decoded with that choice and take no part in it.
      graph: the decoding graph.
      words: `words.txt`.
      lm: the name of the language model in the results' rows.
      config: search and grid.
      out: gets `tuned.json`, `grid.tsv`, `rows.json` and, by split, hypotheses and reports.
      jobs: worker processes.
      command: the command line, for the rows.
      progress: told (splits decoded, splits).

    Returns:
      WER in percent by split.
    """
    decoder = Decoder(graph, words, config)
    return decode_passes(
        system, scorers, tune_on, decoder, [Pass(lm, out)], out, jobs, command, progress
    )


@dataclass(frozen=True)
class Pass:
    """Where the results of a pass go."""

    lm: str
    """The name of its language model in the results' rows."""
    out: Path
    """Gets `tuned.json`, `grid.tsv` and, by split, hypotheses and reports."""


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
    """Decode every split and tune and score each pass on its own; see `decode_system`.

    Args:
      system: the name of the results' rows.
      scorers: the acoustic model on each split.
      tune_on: the splits that choose the weights.
      decoder: graph and search.
      passes: one for each pass of `decoder`.
      out: gets `rows.json` and, by split, what was decoded.
      jobs: worker processes.
      command: the command line, for the rows.
      progress: told (splits decoded, splits).

    Returns:
      WER in percent by split, of the last pass.
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
    for number, done in enumerate(passes):
        done.out.mkdir(parents=True, exist_ok=True)
        tuning = {split: decoded[split][number] for split in tune_on}
        chosen.append(_tune(grid, tuning, references, done.out))
        tuned = json.dumps(asdict(grid[chosen[-1]]), indent=1)
        write_atomically(done.out / "tuned.json", tuned)
    for split in scorers:
        if split not in tune_on:
            run(split, [[grid[best]] for best in chosen])

    rows: dict[str, list[Result]] = {}
    for number, done in enumerate(passes):
        rows[done.lm] = []
        for split, found in decoded.items():
            best = chosen[number] if split in tune_on else 0
            told = references[split], speakers[split]
            row = _result(system, split, done, best, found[number], *told, command)
            rows[done.lm].append(row)
    record_results(out / "rows.json", [row for one in rows.values() for row in one])
    last = [utterance for found in decoded.values() for utterance in found[-1]]
    counts = {
        "no path": sum(not utterance.beam for utterance in last),
        "cut in rescoring": sum(utterance.cut for utterance in last),
    }
    errors = {f"wer {row.split}": row.wer for row in rows[passes[-1].lm]}
    return errors | {name: count for name, count in counts.items() if count}


def references_of(scorer: Scorer) -> dict[str, str]:
    """The transcripts of a scorer's utterances."""
    return {u: text_of(scorer.store.cut(u)) for u in scorer.store.ids}


def _result(
    system: str,
    split: str,
    done: Pass,
    chosen: int,
    utterances: Sequence[Decoded],
    references: Mapping[str, str],
    speakers: Mapping[str, str],
    command: str,
) -> Result:
    """Score a split and write its hypotheses and reports."""
    hypotheses = {d.utterance: d.hypotheses[chosen] for d in utterances}
    rtf = real_time_factor(utterances)
    named = {"system": system, "split": split, "lm": done.lm, "command": command}
    return score_split(references, hypotheses, speakers, done.out / split, rtf=rtf, **named)


def _tune(
    grid: Sequence[Weights],
    decoded: Mapping[str, Sequence[Decoded]],
    references: Mapping[str, Mapping[str, str]],
    out: Path,
) -> int:
    """The index of the weights with the fewest word errors; writes the whole grid.

    Among equals the smallest penalty counts, then the smallest scale: what moves the models least.
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
