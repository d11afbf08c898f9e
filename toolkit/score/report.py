"""Error reports in plain text: counts of errors by speaker and word, confusions, alignments."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from toolkit.score.align import Pair
from toolkit.score.wer import Score, UtteranceScore
from toolkit.storage.files import open_atomically

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


def inline(utterance: UtteranceScore, unit: str = "word") -> str:
    """Return an alignment on one line, such as `THE (CAT->HAT) SAT (->DOWN)`."""
    between = " " if unit == "word" else ""
    parts = []
    for correct, run in groupby(
        map(_visible, utterance.pairs), key=lambda pair: pair[0] == pair[1]
    ):
        tokens = list(run)
        said = between.join(ref for ref, _ in tokens if ref)
        recognised = between.join(hyp for _, hyp in tokens if hyp)
        parts.append(said if correct else f"({said}->{recognised})")
    return between.join(parts)


def _visible(pair: Pair) -> tuple[str, str]:
    ref, hyp = ("" if unit is None else unit.replace(" ", "␣") for unit in pair)
    return ref, hyp


def _table(title: str, rows: Iterable[tuple[int, str]]) -> Iterator[str]:
    yield ""
    yield title
    for count, label in sorted(rows, key=lambda row: (-row[0], row[1])):
        yield f"{count:7d}  {label}"


def _speakers(score: Score) -> Iterator[str]:
    """Yield the errors of each speaker, the highest rate first; nothing without speakers."""
    speakers = score.by_speaker()
    if not speakers:
        return
    name, unit = ("WER", "words") if score.unit == "word" else ("CER", "chars")
    yield ""
    yield "EACH SPEAKER"
    yield f" %{name}  errors   {unit}    ins    del    sub  wrong utterances  speaker"
    for speaker, part in sorted(speakers.items(), key=lambda item: (-item[1].percent, item[0])):
        wrong = f"{part.wrong_utterances}/{len(part.utterances)}"
        yield (
            f"{part.percent:5.1f}  {part.errors:6d}  {part.ref_units:6d}  {part.insertions:5d}  "
            f"{part.deletions:5d}  {part.substitutions:5d}  {wrong:>16}  {speaker}"
        )


def _units(pairs: list[Pair], unit: str) -> Iterator[str]:
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
    yield f"EACH {'WORD' if unit == 'word' else 'CHARACTER'}"
    yield (
        "errors  correct  substituted  deleted  recognised for another  inserted  "
        + ("word" if unit == "word" else "character")
    )
    counters = (correct, substituted, deleted, recognised_for_another, inserted)
    names = sorted(set().union(*counters))
    rows = [(sum(c[name] for c in counters[1:]), name) for name in names]
    for errors, name in sorted(rows, key=lambda row: (-row[0], row[1])):
        yield (
            f"{errors:6d}  {correct[name]:7d}  {substituted[name]:11d}  {deleted[name]:7d}  "
            f"{recognised_for_another[name]:22d}  {inserted[name]:8d}  {name}"
        )
