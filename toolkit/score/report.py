"""Reports and tables of a score as text, and as plain data."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from toolkit import __version__
from toolkit.score.alignment import (
    CORRECT,
    DELETION,
    INSERTION,
    OPTIONAL_DELETION,
    OPTIONAL_INSERTION,
    RATE_NAMES,
    SHORT_NAMES,
    SUBSTITUTION,
    UNIT_NAMES,
    Pair,
    Unit,
    UtteranceScore,
)
from toolkit.score.wer import Score
from toolkit.storage.files import open_atomically, write_atomically

_LEGEND = """\
In the alignments (A->B) means that A was said and B recognised: (A->) is a deletion, (->B) an
insertion. Consecutive errors share one pair of parentheses, and spaces in character alignments
are written "␣". The numbers after each id are errors / reference units."""


def write_report(score: Score, path: Path) -> None:
    """Write summary, remarks, tables of speakers, confusions and words, and the alignments.

    Tables are sorted from the worst row to the best, ties by name; utterances keep the order of the
    references. The same score gives the same bytes.
    """
    with open_atomically(path) as file:
        file.writelines(f"{line}\n" for line in report_lines(score))


def report_lines(score: Score) -> Iterator[str]:
    """Yield the report's lines without line ends."""
    yield from score.summary(interval=True).splitlines()
    yield score.method
    yield from (f"Note: {remark}" for remark in score.remarks() + score.interval_remarks())
    yield from _speakers(score)
    pairs = [pair for utterance in score.utterances for pair in utterance.pairs]
    wrong = Counter(_visible(pair) for pair in pairs if pair[0] != pair[1])
    yield from _table(
        "SUBSTITUTIONS (count, said -> recognised)",
        ((n, f"{ref} -> {hyp}") for (ref, hyp), n in wrong.items() if ref and hyp),
    )
    yield from _table(
        "DELETIONS (count, said)", ((n, ref) for (ref, hyp), n in wrong.items() if not hyp)
    )
    yield from _table(
        "INSERTIONS (count, recognised)", ((n, hyp) for (ref, hyp), n in wrong.items() if not ref)
    )
    yield from _units(pairs, score.unit)
    yield ""
    yield "ALIGNMENTS"
    yield from _LEGEND.splitlines()
    for utterance in score.utterances:
        absent = " (no hypothesis)" if utterance.missing else ""
        counts = f"{utterance.errors}/{utterance.ref_units}"
        yield f"{utterance.id}{absent} {counts}: {inline(utterance, score.unit)}".rstrip()


def inline(utterance: UtteranceScore, unit: Unit = "word") -> str:
    """Return an alignment on one line, such as `THE (CAT->HAT) SAT (->DOWN)`."""
    between = " " if unit in ("word", "mixed") else ""
    parts = []
    for correct, run in groupby(
        map(_visible, utterance.pairs), key=lambda pair: pair[0] == pair[1]
    ):
        tokens = list(run)
        reference = between.join(ref for ref, _ in tokens if ref)
        recognised = between.join(hyp for _, hyp in tokens if hyp)
        parts.append(reference if correct else f"({reference}->{recognised})")
    return between.join(parts)


def _visible(pair: Pair) -> tuple[str, str]:
    """Return a pair with spaces made visible."""
    ref, hyp = ("" if unit is None else unit.replace(" ", "␣") for unit in pair)
    return ref, hyp


def _table(title: str, rows: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield a title and rows of count and label, the largest counts first."""
    yield ""
    yield title
    for count, label in sorted(rows, key=lambda row: (-row[0], row[1])):
        yield f"{count:7d}  {label}"


def _speakers(score: Score) -> Iterator[str]:
    """Yield the errors of each speaker, the highest rate first; nothing without speakers."""
    speakers = score.by_speaker()
    if not speakers:
        return
    name, unit = RATE_NAMES[score.unit], SHORT_NAMES[score.unit]
    yield ""
    yield "EACH SPEAKER"
    yield f" %{name}  errors   {unit}    ins    del    sub  wrong utterances  speaker"
    for speaker, part in sorted(speakers.items(), key=lambda item: (-item[1].percent, item[0])):
        wrong = f"{part.wrong_utterances}/{len(part.utterances)}"
        yield (
            f"{part.percent:5.1f}  {part.errors:6d}  {part.ref_units:6d}  {part.insertions:5d}  "
            f"{part.deletions:5d}  {part.substitutions:5d}  {wrong:>16}  {speaker}"
        )


def _units(pairs: list[Pair], unit: Unit) -> Iterator[str]:
    """Yield the counts of each word or character, those with the most errors first."""
    correct, substituted, deleted, recognised_for_another, inserted = (Counter() for _ in range(5))
    for ref, hyp in map(_visible, pairs):
        if ref == hyp:
            correct[ref] += 1
        elif not hyp:
            deleted[ref] += 1
        elif not ref:
            inserted[hyp] += 1
        else:
            substituted[ref] += 1
            recognised_for_another[hyp] += 1
    yield ""
    name = UNIT_NAMES[unit]
    yield f"EACH {name.upper()}"
    yield f"errors  correct  substituted  deleted  recognised for another  inserted  {name}"
    counters = (correct, substituted, deleted, recognised_for_another, inserted)
    names = sorted(set().union(*counters))
    rows = [(sum(c[name] for c in counters[1:]), name) for name in names]
    for errors, name in sorted(rows, key=lambda row: (-row[0], row[1])):
        yield (
            f"{errors:6d}  {correct[name]:7d}  {substituted[name]:11d}  {deleted[name]:7d}  "
            f"{recognised_for_another[name]:22d}  {inserted[name]:8d}  {name}"
        )


_PERCENT = ("corr", "sub", "del", "ins", "err", "s.err")
_LETTER = {CORRECT: "C", SUBSTITUTION: "S", DELETION: "D", INSERTION: "I"}
_LETTER |= {OPTIONAL_DELETION: "C", OPTIONAL_INSERTION: "C"}
_OPTIONAL_FILES = ("per_utt", "per_speaker.txt", "per_spk")
FILES = ("wer.txt", "score.json", "report.txt", "per_utterance.tsv", *_OPTIONAL_FILES)
"""Names of the files that `write_score_folder` may write."""


def speaker_lines(score: Score) -> Iterator[str]:
    """Yield sclite's table by speaker (`-o sum`), without its frame: counts, then percentages.

    Rates are in percent of the reference words, `s.err` in percent of the sentences. The last rows
    are the sums and, as in sclite, the unweighted mean, standard deviation and median of the
    speakers' rates.
    """
    speakers = score.by_speaker()
    width = max([7, *map(len, speakers)])
    unit = SHORT_NAMES[score.unit]
    counts = "".join(f"{name:>7}" for name in ("#corr", "#sub", "#del", "#ins", "#err"))
    rates = "".join(f"{'%' + name:>7}" for name in _PERCENT)
    yield f"{'speaker':<{width}}  sentences  {unit:>6}{counts}{rates}"
    rows = []
    for name, part in [*speakers.items(), ("Sum/Avg", score)]:
        errors = (part.correct, part.substitutions, part.deletions, part.insertions, part.errors)
        rows.append(_rates(part))
        yield (
            f"{name:<{width}}  {len(part.utterances):9d}  {part.ref_units:6d}"
            + "".join(f"{count:7d}" for count in errors)
            + "".join(f"{rate:7.1f}" for rate in rows[-1])
        )
    rows.pop()  # the row of sums is not a speaker
    for name, average in (
        ("Mean", statistics.mean),
        ("S.D.", _deviation),
        ("Median", statistics.median),
    ):
        if rows:
            columns = "".join(f"{average(column):7.1f}" for column in zip(*rows, strict=True))
            yield f"{name:<{width}}  {'':9}  {'':6}{'':35}{columns}"


def _rates(score: Score) -> tuple[float, ...]:
    """Return %corr, sub, del, ins, err and s.err; without reference words all but s.err are 0."""
    words = score.ref_units
    errors = (score.correct, score.substitutions, score.deletions, score.insertions, score.errors)
    rates = [100.0 * count / words if words else 0.0 for count in errors]
    return (*rates, 100.0 * score.wrong_utterances / len(score.utterances))


def _deviation(values: tuple[float, ...]) -> float:
    """Return the standard deviation; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def kaldi_speaker_lines(score: Score) -> Iterator[str]:
    """Yield Kaldi's table by speaker (`wer_details/per_spk`): counts (raw), and percent (sys)."""
    speakers = score.by_speaker()
    width = max([15, *map(len, speakers)])
    names = ("#SENT", "#WORD", "Corr", "Sub", "Ins", "Del", "Err", "S.Err")
    yield f"{'SPEAKER':<{width}} id  " + "".join(f" {name:>10}" for name in names)
    for name, part in [*speakers.items(), ("SUM", score)]:
        sizes = (len(part.utterances), part.ref_units)
        errors = (part.correct, part.substitutions, part.insertions, part.deletions, part.errors)
        raw = (*sizes, *errors, part.wrong_utterances)
        yield f"{name:<{width}} raw" + "".join(f" {count:10d}" for count in raw)
        if part.ref_units:
            rates = [100 * count / part.ref_units for count in errors]
            rates.append(100 * part.wrong_utterances / sizes[0])
            counts = "".join(f" {count:10d}" for count in sizes)
            yield f"{name:<{width}} sys{counts}" + "".join(f" {rate:10.2f}" for rate in rates)


def utterance_lines(score: Score) -> Iterator[str]:
    """Yield tab-separated counts by utterance after a header; `-` for unknown speakers."""
    unit = SHORT_NAMES[score.unit]
    yield "\t".join(
        ("utterance", "speaker", unit, "correct", "sub", "del", "ins", "errors", "percent", "note")
    )
    for u in score.utterances:
        percent = f"{100 * u.errors / u.ref_units:.2f}" if u.ref_units else "-"
        counts = (u.ref_units, u.correct, u.substitutions, u.deletions, u.insertions, u.errors)
        note = "no hypothesis" if u.missing else ""
        yield "\t".join((u.id, u.speaker or "-", *map(str, counts), percent, note))


def kaldi_lines(utterance: UtteranceScore) -> Iterator[str]:
    """Yield the four lines of an utterance in Kaldi's `wer_details/per_utt`.

    These are `ref` and `hyp` with `***` for gaps, `op` with C, S, D and I, and `#csid` with the
    counts of C, S, I and D.
    """
    columns = [
        (ref or "***", hyp or "***", _LETTER[step])
        for (ref, hyp), step in zip(utterance.pairs, utterance.steps, strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    for row, name in enumerate(("ref", "hyp", "op")):
        cells = [_centred(c[row], width) for c, width in zip(columns, widths, strict=True)]
        yield f"{utterance.id} {name:<3}  {'  '.join(cells)}"
    u = utterance
    yield f"{u.id} #csid {u.correct} {u.substitutions} {u.insertions} {u.deletions}"


def _centred(text: str, width: int) -> str:
    """Centre a text in `width` columns."""
    right_padding = (width - len(text)) // 2
    return f"{text + ' ' * right_padding:>{width}}"


def write_score_folder(score: Score, folder: Path) -> None:
    """Write the tables and alignments of a score to a folder.

    These are `wer.txt` (the summary), `score.json` (its numbers), `per_utterance.tsv` and
    `report.txt` (confusions and alignments); with known speakers also `per_speaker.txt` and Kaldi's
    `per_spk`; with words as units also Kaldi's `per_utt`. Files of an earlier score that this score
    does not have are removed.
    """
    folder = Path(folder)
    summary = f"{score.summary(interval=True)}\n{score.method}\n"
    write_atomically(folder / "wer.txt", summary)
    write_atomically(folder / "score.json", json.dumps(numbers(score), indent=1) + "\n")
    tables = {"per_utterance.tsv": utterance_lines(score)}
    if score.unit == "word":
        tables["per_utt"] = (line for u in score.utterances for line in kaldi_lines(u))
    if score.by_speaker():
        tables["per_speaker.txt"] = speaker_lines(score)
        tables["per_spk"] = kaldi_speaker_lines(score)
    for name in set(_OPTIONAL_FILES) - tables.keys():
        (folder / name).unlink(missing_ok=True)
    for name, lines in tables.items():
        with open_atomically(folder / name) as file:
            file.writelines(f"{line}\n" for line in lines)
    write_report(score, folder / "report.txt")


def numbers(score: Score) -> dict[str, object]:
    """Return the numbers of a score as plain data for `json.dumps`."""
    interval = score.interval
    return {
        "unit": score.unit,
        "percent": score.percent,
        "interval": [interval.low, interval.high] if interval else None,
        "resampled": score.resampled,
        "errors": score.errors,
        "insertions": score.insertions,
        "deletions": score.deletions,
        "substitutions": score.substitutions,
        "correct": score.correct,
        "reference_units": score.ref_units,
        "utterances": len(score.utterances),
        "wrong_utterances": score.wrong_utterances,
        "missing": list(score.missing),
        "extra": list(score.unmatched_hypotheses),
        "normaliser": score.normaliser,
        "weights": score.weights,
        "toolkit": __version__,
    }


def all_numbers(score: Score, utterances: bool) -> dict[str, object]:
    """Return `numbers`, and the numbers of each speaker if speakers are known.

    Args:
      utterances: whether to add the numbers of each utterance.
    """
    numbers_by_name = numbers(score)
    if speakers := score.by_speaker():
        numbers_by_name["speakers"] = {name: _counts(part) for name, part in speakers.items()}
    if utterances:
        numbers_by_name["by_utterance"] = {
            u.id: {
                "errors": u.errors,
                "insertions": u.insertions,
                "deletions": u.deletions,
                "substitutions": u.substitutions,
                "reference_units": u.ref_units,
                "missing": u.missing,
            }
            for u in score.utterances
        }
    return numbers_by_name


def _counts(part: Score) -> dict[str, object]:
    """Return the error rate and counts of a part of the score."""
    return {
        "percent": part.percent if part.ref_units else None,
        "errors": part.errors,
        "reference_units": part.ref_units,
        "utterances": len(part.utterances),
    }
