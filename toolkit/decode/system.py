"""One system decoded: tuned on the development split, scored on all."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from toolkit.align.scorer import Scorer
from toolkit.corpus.manifest import text_of
from toolkit.decode.first_pass import DecodeConfig, Decoded, decode_store, real_time_factor
from toolkit.fsa.lattice import Weights
from toolkit.score.report import write_report
from toolkit.score.results import Result, record_results
from toolkit.score.wer import score
from toolkit.stages.files import write_atomically

logger = logging.getLogger(__name__)


def decode_system(
    system: str,
    scorers: Mapping[str, Scorer],
    tune_on: Sequence[str],
    graph: Path,
    words: Path,
    lm: str,
    config: DecodeConfig,
    out: Path,
    jobs: int,
    command: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
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
    grid = config.grid()
    references = {split: _references(scorer) for split, scorer in scorers.items()}
    decoded: dict[str, list[Decoded]] = {}

    def run(split: str, weights: Sequence[Weights]) -> None:
        folder = out / split / "decoded"
        folder.mkdir(parents=True, exist_ok=True)
        decoded[split] = decode_store(scorers[split], graph, words, weights, config, folder, jobs)
        progress(len(decoded), len(scorers))

    for split in tune_on:
        run(split, grid)
    best = _tune(grid, {s: decoded[s] for s in tune_on}, references, out)
    write_atomically(out / "tuned.json", json.dumps(asdict(grid[best]), indent=1))
    for split in scorers:
        if split not in tune_on:
            run(split, [grid[best]])

    rows = []
    for split, utterances in decoded.items():
        chosen = best if split in tune_on else 0
        hypotheses = {d.utterance: d.hypotheses[chosen] for d in utterances}
        write_atomically(
            out / split / "text", "".join(f"{u} {h}".rstrip() + "\n" for u, h in hypotheses.items())
        )
        by_words = score(references[split], hypotheses)
        by_characters = score(references[split], hypotheses, unit="char")
        write_report(by_words, out / split / "report.txt")
        write_atomically(out / split / "wer.txt", by_words.summary() + "\n")
        rows.append(
            Result.of(
                by_words,
                by_characters,
                system=system,
                split=split,
                lm=lm,
                rtf=real_time_factor(utterances),
                command=command,
            )
        )
        logger.info("%s %s: %s", system, split, by_words.summary().splitlines()[0])
    record_results(out / "rows.json", rows)
    empty = sum(not d.beam for utterances in decoded.values() for d in utterances)
    return {f"wer {row.split}": row.wer for row in rows} | ({"no path": empty} if empty else {})


def _references(scorer: Scorer) -> dict[str, str]:
    return {u: text_of(scorer.store.cut(u)) for u in scorer.store.ids}


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
