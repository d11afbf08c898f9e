"""Score tables by speaker and by utterance, and the output folder of `toolkit score`."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

from toolkit import __version__
from toolkit.score.align import (
    CORRECT,
    DELETION,
    INSERTION,
    OPTIONAL_DELETION,
    OPTIONAL_INSERTION,
    SUBSTITUTION,
)
from toolkit.score.alternatives import NO_WORD, GrammarError, parse
from toolkit.score.nist import check_trn, write_trn
from toolkit.score.report import write_report
from toolkit.score.sclite_reports import pra_lines, raw_lines, sgml_lines, sys_lines
from toolkit.score.utterance import UtteranceScore
from toolkit.score.wer import Score
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.words import split_words

_PERCENT = ("corr", "sub", "del", "ins", "err", "s.err")
_LETTER = {CORRECT: "C", SUBSTITUTION: "S", DELETION: "D", INSERTION: "I"}
_LETTER |= {OPTIONAL_DELETION: "C", OPTIONAL_INSERTION: "C"}
_SCLITE = {"sgml": sgml_lines, "pra": pra_lines, "raw": raw_lines, "sys": sys_lines}
_NOT_ALWAYS = ("per_utt", *(f"hyp.{form}" for form in _SCLITE), "per_speaker.txt", "per_spk")
FILES = (
    *("wer.txt", "score.json", "report.txt", "per_utterance.tsv", "ref.trn", "hyp.trn"),
    *_NOT_ALWAYS,
)
"""Names of the files that `write_folder` may write."""


def speaker_lines(score: Score) -> Iterator[str]:
    """Yield sclite's table by speaker (`-o sum`), without its frame: counts, then percentages.

    Rates are in percent of the reference words, `s.err` in percent of the sentences. The last rows
    are the sums and, as in sclite, the unweighted mean, standard deviation and median of the
    speakers' rates.
    """
    speakers = score.by_speaker()
    width = max([7, *map(len, speakers)])
    unit = "words" if score.unit == "word" else "chars"
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
    rows.pop()
    for name, average in (
        ("Mean", statistics.mean),
        ("S.D.", _deviation),
        ("Median", statistics.median),
    ):
        if rows:
            columns = "".join(f"{average(column):7.1f}" for column in zip(*rows, strict=True))
            yield f"{name:<{width}}  {'':9}  {'':6}{'':35}{columns}"


def _rates(score: Score) -> tuple[float, ...]:
    """Return %corr, sub, del, ins, err and s.err of a speaker; 0 without reference words."""
    words = score.ref_units
    errors = (score.correct, score.substitutions, score.deletions, score.insertions, score.errors)
    rates = [100.0 * count / words if words else 0.0 for count in errors]
    return (*rates, 100.0 * score.wrong_utterances / len(score.utterances))


def _deviation(values: tuple[float, ...]) -> float:
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
    unit = "words" if score.unit == "word" else "chars"
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
    counts of these.
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
    right = (width - len(text)) // 2
    return f"{text + ' ' * right:>{width}}"


def write_folder(score: Score, folder: Path) -> None:
    """Write all files about a score to a folder.

    These are `wer.txt` (the summary), `score.json` (its numbers), `per_utterance.tsv`, `report.txt`
    (confusions and alignments), and the texts as they were compared, `ref.trn` and `hyp.trn`, for
    sclite; with known speakers also `per_speaker.txt` and Kaldi's `per_spk`; with words as units
    also Kaldi's `per_utt`, and `hyp.sgml`, `hyp.pra`, `hyp.raw` and `hyp.sys` in sclite's forms.
    Those of them that an earlier score has left and this one lacks are removed.

    Raises:
      TranscriptError: an id or a text cannot stand in a trn file; nothing is written then.
    """
    folder = Path(folder)
    refs = {u.id: u.ref_text for u in score.utterances}
    hyps = {u.id: u.hyp_text for u in score.utterances}
    check_trn(refs)
    check_trn(hyps)
    summary = f"{score.summary(interval=True)}\n{score.method}\n"
    write_atomically(folder / "wer.txt", summary)
    write_atomically(folder / "score.json", json.dumps(numbers(score), indent=1) + "\n")
    tables = {"per_utterance.tsv": utterance_lines(score)}
    if score.unit == "word":
        tables["per_utt"] = (line for u in score.utterances for line in kaldi_lines(u))
        for form, lines_of in _SCLITE.items():
            tables[f"hyp.{form}"] = lines_of(score, "hyp")
    if score.by_speaker():
        tables["per_speaker.txt"] = speaker_lines(score)
        tables["per_spk"] = kaldi_speaker_lines(score)
    for name in set(_NOT_ALWAYS) - tables.keys():
        (folder / name).unlink(missing_ok=True)
    for name, lines in tables.items():
        with open_atomically(folder / name) as file:
            file.writelines(f"{line}\n" for line in lines)
    write_report(score, folder / "report.txt")
    write_trn(refs, folder / "ref.trn")
    write_trn(hyps, folder / "hyp.trn")


def trn_remarks(score: Score) -> Iterator[str]:
    """Yield a note if words in the trn files of `write_folder` mean something else when read."""
    found = [u.id for u in score.utterances if _has_marks(u.ref_text) or _has_marks(u.hyp_text)]
    if found:
        yield (
            f"{len(found)} utterances have words that are marks in trn files (like @ and word*), "
            f"first {found[0]}: ref.trn and hyp.trn hold them as they were compared, but scoring "
            "these files would read them otherwise"
        )


def _has_marks(text: str) -> bool:
    """Whether words are not read as themselves from a trn file."""
    words = split_words(text)
    try:
        return NO_WORD in words or list(parse(text)) != words
    except GrammarError:
        return True


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
        "extra": list(score.extra),
        "normaliser": score.normaliser,
        "weights": score.weights,
        "toolkit": __version__,
    }


def all_numbers(score: Score, utterances: bool) -> dict[str, object]:
    """Return `numbers` with those of the speakers, where they are known, and of the utterances.

    Args:
      utterances: whether to add those of each utterance.
    """
    plain = numbers(score)
    if speakers := score.by_speaker():
        plain["speakers"] = {name: _counts(part) for name, part in speakers.items()}
    if utterances:
        plain["by_utterance"] = {
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
    return plain


def _counts(part: Score) -> dict[str, object]:
    return {
        "percent": part.percent if part.ref_units else None,
        "errors": part.errors,
        "reference_units": part.ref_units,
        "utterances": len(part.utterances),
    }
