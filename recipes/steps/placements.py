"""Results by device placement: pooled test sets, and relative WER reductions (C32, C33)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from recipes.steps.data import cuts
from recipes.steps.decoding import rescored_lm
from recipes.steps.run_page import show_page
from toolkit.corpus.manifest import speaker_of, text_of
from toolkit.score import significance
from toolkit.score.compare import compare
from toolkit.score.results import (
    Result,
    markdown_table,
    print_results,
    read_results,
    record_results,
)
from toolkit.score.transcripts import read_transcripts
from toolkit.score.wer import Score, Unit, pool, score
from toolkit.stages.run import Run
from toolkit.storage.files import write_atomically

PLACEMENTS = ("DP1", "DP2", "DP3", "DP4", "DP5")
"""The test sets, from the easiest placement of the device to the hardest (C32)."""
POOLED = "TST"
"""Name of the test sets pooled together (C32)."""
SETS = {name: (name,) for name in PLACEMENTS} | {"DP2-DP5": PLACEMENTS[1:], POOLED: PLACEMENTS}
"""The sets on which systems are compared, and the test sets that each pools."""
PUBLISHED = {"DP1": 9.8, "DP2": 22.2, "DP3": 21.8, "DP4": 16.5, "DP5": 18.9}
"""The paper's relative WER reductions in percent, of its student over the sMBR baseline (C33)."""


@dataclass(frozen=True)
class Gain:
    """Relative WER reduction of a system over a baseline on one test set (C33)."""

    split: str
    """The test set."""
    baseline: float
    """WER of the baseline in percent."""
    system: float
    """WER of the system in percent."""
    werr: float | None
    """Relative reduction of the word error rate in percent, above 0 where the system is better;
    None where the baseline has no error."""
    low: float | None
    """Lower end of the 95 % confidence interval of `werr`, by a paired bootstrap."""
    high: float | None
    """Upper end of that interval."""
    p_value: float
    """Two-sided p-value of NIST's matched pairs test."""


def compare_placements(run: Run, baseline: str, systems: Sequence[str]) -> dict[str, float]:
    """Write `results.json`, and relative WER reductions to `werr.json` and `werr.md`.

    Returns:
      Each system's WER on all placements, and its relative reduction on all but the first.
    """
    lm = rescored_lm(run)
    rows = [row for s in (baseline, *systems) for row in placement_rows(run, s, lm)]
    if run.setting("rooms.array_hours"):
        rows += read_results(run.need("decode/arrays/rows.json"))
    record_results(run.make("results.json"), rows)
    write_atomically(run.make("results.md"), markdown_table(rows))
    found = {system: gains(run, baseline, system) for system in systems}
    plain = {system: [asdict(one) for one in own] for system, own in found.items()}
    write_atomically(run.make("werr.json"), json.dumps(plain, indent=1) + "\n")
    write_atomically(run.make("werr.md"), gains_table(found))
    pooled = {f"wer {row.system}": row.wer for row in rows if row.split == POOLED}
    reductions = {f"werr {system}": own[-2].werr for system, own in found.items()}
    return pooled | {name: werr for name, werr in reductions.items() if werr is not None}


def show_placements(directory: Path) -> None:
    """Print the tables that `compare_placements` has written, and write the run's page."""
    print_results(directory / "results.json")
    print((directory / "werr.md").read_text(encoding="utf-8"))
    show_page(directory)


def placement_rows(run: Run, system: str, lm: str) -> list[Result]:
    """Return a system's results on each split, and on the pooled placements."""
    folder = run.need(f"decode/{system}")
    rows = [row for row in read_results(folder / "rows.json") if row.lm == lm]
    parts = [row for row in rows if row.split in PLACEMENTS]
    seconds = [sum(cut.duration for cut in cuts(run, row.split)) for row in parts]
    rtf = sum(row.rtf * own for row, own in zip(parts, seconds, strict=True)) / sum(seconds)
    words, characters = (pool(scores(run, system, PLACEMENTS, unit)) for unit in ("word", "char"))
    named = {"system": system, "split": POOLED, "lm": lm, "rtf": rtf, "command": run.command}
    return [*rows, Result.of(words, characters, **named)]


def scores(run: Run, system: str, splits: Sequence[str], unit: Unit = "word") -> dict[str, Score]:
    """Return a decoded system's scores by split.

    A sentence may be in several placements, as `id-DP1`, `id-DP2` and so on; where there are too
    few speakers to resample, sentences are resampled with all their copies.
    """
    found = {}
    for split in splits:
        hypotheses = read_transcripts(run.need(f"decode/{system}") / split / "text", "text").texts
        utterances = cuts(run, split)
        references = {cut.id: text_of(cut) for cut in utterances}
        speakers = {cut.id: speaker_of(cut) for cut in utterances}
        sources = {cut.id: cut.id.removesuffix(f"-{split}") for cut in utterances}
        found[split] = score(references, hypotheses, unit, speakers, sources=sources)
    return found


def gains(run: Run, baseline: str, system: str) -> list[Gain]:
    """Compare two decoded systems on every set."""
    sides = [scores(run, one, PLACEMENTS) for one in (baseline, system)]
    return [
        gain(name, *(pool({split: side[split] for split in parts}) for side in sides))
        for name, parts in SETS.items()
    ]


def gain(split: str, first: Score, second: Score) -> Gain:
    """Compare two systems on one set.

    The interval is that of the reduction itself: the reduction is computed on each resample of the
    test set, from the errors of both systems.
    """
    rates = round(first.percent, 2), round(second.percent, 2)
    p_value = compare(first, second).matched_pairs.p_value
    if not first.errors:
        return Gain(split, *rates, None, None, None, p_value)
    blocks = first.blocks(
        [utterance.errors for utterance in first.utterances],
        [utterance.errors for utterance in second.utterances],
    )
    before, after = significance.resample(blocks).T
    reductions = significance.percent(before - after, before)
    interval = significance.interval_of(reductions, first.resampled, len(blocks))
    werr = 100.0 * (first.errors - second.errors) / first.errors
    gain, low, high = (round(number, 2) for number in (werr, interval.low, interval.high))
    return Gain(split, *rates, gain, low, high, p_value)


def gains_table(found: Mapping[str, Sequence[Gain]]) -> str:
    """Return a Markdown table of relative reductions with intervals; the paper's come last."""
    lines = [["WERR %", *SETS], ["---", *["---:"] * len(SETS)]]
    for system, own in found.items():
        lines.append([system, *map(_shown, own)])
    lines.append(["paper", *(f"{PUBLISHED[s]:.1f}" if s in PUBLISHED else "" for s in SETS)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shown(gain: Gain) -> str:
    return "" if gain.werr is None else f"{gain.werr:.1f} ({gain.low:.1f} to {gain.high:.1f})"
