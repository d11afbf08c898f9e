"""Reports in sclite's forms, for programs that read them: sgml, pralign (.pra), rsum (.raw), .sys.

`sclite -P`, sc_stats and Kaldi's `best_wer.sh` read these files like sclite's own. Words are
compared with their case, so alignments are marked as case-sensitive.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from toolkit.score.alignment import (
    CORRECT,
    DELETION,
    INSERTION,
    OPTIONAL_DELETION,
    OPTIONAL_INSERTION,
    SUBSTITUTION,
    UtteranceScore,
)
from toolkit.score.nist.formats import check_trn, write_trn
from toolkit.score.nist.grammar import NO_WORD, GrammarError, parse
from toolkit.score.wer import Score
from toolkit.storage.files import open_atomically
from toolkit.storage.lines import split_words

_LETTERS = {CORRECT: "C", SUBSTITUTION: "S", DELETION: "D", INSERTION: "I"}
_LETTERS |= {OPTIONAL_DELETION: "C", OPTIONAL_INSERTION: "C"}
_HEADS = ("Corr", "Sub", "Del", "Ins", "Err", "S.Err")
_NOBODY = "all"
"""Speaker of utterances whose speakers are not known."""


def sgml_lines(score: Score, title: str) -> Iterator[str]:
    """Yield the alignments as sclite's `-o sgml` does, which `sclite -P` and sc_stats read."""
    yield (
        f'<SYSTEM title="{_quotable(title)}" ref_fname="ref.trn" hyp_fname="hyp.trn" '
        'creation_date="" format="2.4" '
        'frag_corr="FALSE" opt_del="FALSE" weight_ali="FALSE" weight_filename="">'
    )
    sequence = 0
    for speaker, utterances in _by_speaker(score).items():
        yield f'<SPEAKER id="{_quotable(speaker)}">'
        for utterance in utterances:
            yield (
                f'<PATH id="({_quotable(utterance.id)})" word_cnt="{len(utterance.steps)}" '
                f'sequence="{sequence}" case_sense="1">'
            )
            yield ":".join(_cells(utterance))
            yield "</PATH>"
            sequence += 1
        yield "</SPEAKER>"
    yield "</SYSTEM>"


def _cells(utterance: UtteranceScore) -> Iterator[str]:
    """Yield the alignment's steps as cells of the sgml format."""
    for letter, ref, hyp in _steps(utterance):
        ref_cell = "" if ref is None else f'"{_quotable(ref)}"'
        hyp_cell = "" if hyp is None else f'"{_quotable(hyp)}"'
        yield f"{letter},{ref_cell},{hyp_cell}"


def _quotable(word: str) -> str:
    """Replace quotation marks, which sclite's format cannot escape."""
    return word.replace('"', "'")


def _steps(utterance: UtteranceScore) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield letter, reference word and hypothesis word of each step; None for a gap.

    An optional word that is left out or added is aligned with an empty word.
    """
    refs, hyps = iter(utterance.ref), iter(utterance.hyp)
    for step in utterance.steps:
        ref = hyp = None
        if step not in (INSERTION, OPTIONAL_INSERTION):
            ref = next(refs)
        if step not in (DELETION, OPTIONAL_DELETION):
            hyp = next(hyps)
        if step in (OPTIONAL_DELETION, OPTIONAL_INSERTION):
            ref, hyp = ref or "", hyp or ""
        yield _LETTERS[step], ref, hyp


def _by_speaker(score: Score) -> dict[str, list[UtteranceScore]]:
    """Group the utterances by speaker."""
    utterances: dict[str, list[UtteranceScore]] = {}
    for utterance in score.utterances:
        utterances.setdefault(utterance.speaker or _NOBODY, []).append(utterance)
    return utterances


def pra_lines(score: Score, title: str) -> Iterator[str]:
    """Yield the alignments as sclite's `-o pralign` does."""
    speakers = _by_speaker(score)
    yield from ("", "", "\t\tDUMP OF SYSTEM ALIGNMENT STRUCTURE", "")
    yield from (f"System name:   {title}", "", "Speakers: ")
    yield from (f"   {number:2d}:  {name}" for number, name in enumerate(speakers))
    yield ""
    for number, (name, utterances) in enumerate(speakers.items()):
        yield f"Speaker sentences  {number:2d}:  {name}   #utts: {len(utterances)}"
        for u in utterances:
            yield f"id: ({u.id})"
            counts = (u.correct, u.substitutions, u.deletions, u.insertions)
            yield f"Scores: (#C #S #D #I) {' '.join(map(str, counts))}"
            yield "Attributes: Case_sensitve "  # as sclite spells it
            steps = list(_steps(u))
            widths = [max(len(ref or ""), len(hyp or "")) for _, ref, hyp in steps]
            for row, label in enumerate(("REF:  ", "HYP:  ", "Eval: ")):
                yield label + "".join(
                    f"{_cell(step, row, width):<{width}} "
                    for step, width in zip(steps, widths, strict=True)
                )
            yield ""


def _cell(step: tuple[str, str | None, str | None], row: int, width: int) -> str:
    """Return a cell of an alignment: reference (row 0), hypothesis (1) or evaluation (2)."""
    letter, *words = step
    if row == 2:
        return "" if letter == "C" else letter
    word = words[row]
    return "*" * width if word is None else word


def raw_lines(score: Score, title: str) -> Iterator[str]:
    """Yield the counts by speaker as sclite's `-o rsum` does (.raw)."""
    yield from _table(score, title, "Sum", _counts)


def sys_lines(score: Score, title: str) -> Iterator[str]:
    """Yield the percentages by speaker as sclite's `-o sum` does (.sys)."""
    yield from _table(score, title, "Sum/Avg", _rates)


def _sizes(utterances: Sequence[UtteranceScore]) -> tuple[int, int]:
    """Return the numbers of sentences and of reference words."""
    return len(utterances), sum(u.ref_units for u in utterances)


def _counts(utterances: Sequence[UtteranceScore]) -> tuple[int, ...]:
    """Return correct words, substitutions, deletions, insertions, errors, wrong sentences."""
    rows = [(u.correct, u.substitutions, u.deletions, u.insertions, u.errors) for u in utterances]
    return (*map(sum, zip(*rows, strict=True)), sum(u.errors > 0 for u in utterances))


def _rates(utterances: Sequence[UtteranceScore]) -> tuple[float, ...]:
    """Return the counts of `_counts` in percent of words, and of sentences for the last."""
    sentences, words = _sizes(utterances)
    *counts, wrong = _counts(utterances)
    return (*(100 * n / words if words else 0.0 for n in counts), 100 * wrong / sentences)


def _table(
    score: Score, title: str, total: str, values: Callable[..., tuple[float, ...]]
) -> Iterator[str]:
    """Yield the lines of sclite's table by speaker, with sum, mean, deviation and median."""
    speakers = _by_speaker(score)
    rows = [(*_sizes(speaker_score), *values(speaker_score)) for speaker_score in speakers.values()]
    everything = (*_sizes(score.utterances), *values(score.utterances))
    # Unweighted over the speakers: each counts the same, whatever its number of words.
    averages = [
        (name, tuple(average(column) for column in zip(*rows, strict=True)))
        for name, average in (
            ("Mean", statistics.mean),
            ("S.D.", _spread),
            ("Median", statistics.median),
        )
    ]
    width = max(map(len, (*speakers, total, "Median")))
    decimal = any(isinstance(value, float) for value in everything[2:])

    def line(name: str, row: Sequence[float], decimals: bool) -> str:
        sizes = " ".join(f"{n:6.1f}" if decimals else f"{n:6.0f}" for n in row[:2])
        columns = " ".join(f"{n:6.1f}" if decimals or decimal else f"{n:6.0f}" for n in row[2:])
        return f"| {name:<{width}} | {sizes} | {columns} |"

    head = f"| {'SPKR':<{width}} | {'# Snt':>6} {'# Wrd':>6} | "
    head += " ".join(f"{name:>6}" for name in _HEADS) + " |"
    between = "".join("+" if c == "|" else "-" for c in head[1:-1])
    rule = "=" * len(between)
    yield from ("SYSTEM SUMMARY PERCENTAGES by SPEAKER", "", f",{'-' * len(between)}.")
    yield f"|{title:^{len(between)}}|"
    yield f"|{'-' * len(between)}|"
    yield head
    for (name, _), row in zip(speakers.items(), rows, strict=True):
        yield f"|{between}|"
        yield line(name, row, False)
    yield f"|{rule}|"
    yield line(total, everything, False)
    yield f"|{rule}|"
    for name, row in averages:
        yield line(name, row, True)
    yield f"`{'-' * len(between)}'"


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation; 0 for one value."""
    # Divided by N - 1, as in sclite; one speaker has no deviation.
    return statistics.stdev(values) if len(values) > 1 else 0.0


_REPORTS = {"sgml": sgml_lines, "pra": pra_lines, "raw": raw_lines, "sys": sys_lines}
FILES = ("ref.trn", "hyp.trn", *(f"hyp.{form}" for form in _REPORTS))
"""Names of the files that `write_sclite_reports` may write."""


def write_sclite_reports(score: Score, folder: Path) -> None:
    """Write the texts as they were compared, and reports in sclite's forms, to a folder.

    These are `ref.trn` and `hyp.trn`; with words as units also `hyp.sgml`, `hyp.pra`, `hyp.raw` and
    `hyp.sys`, which are otherwise removed if an earlier score has written them.

    Raises:
      TrnError: an id or a text cannot stand in a trn file; nothing is written then.
    """
    folder = Path(folder)
    refs = {u.id: u.ref_text for u in score.utterances}
    hyps = {u.id: u.hyp_text for u in score.utterances}
    check_trn(refs)
    check_trn(hyps)
    for form, lines_of in _REPORTS.items():
        path = folder / f"hyp.{form}"
        if score.unit != "word":
            path.unlink(missing_ok=True)
            continue
        with open_atomically(path) as file:
            file.writelines(f"{line}\n" for line in lines_of(score, "hyp"))
    write_trn(refs, folder / "ref.trn")
    write_trn(hyps, folder / "hyp.trn")


def trn_remarks(score: Score) -> Iterator[str]:
    """Yield a note if words in the trn files would be read as something else."""
    marked = [u.id for u in score.utterances if _has_marks(u.ref_text) or _has_marks(u.hyp_text)]
    if marked:
        yield (
            f"{len(marked)} utterances have words that are marks in trn files (like @ and word*), "
            f"first {marked[0]}. ref.trn and hyp.trn contain the words as they were compared, but "
            "a scorer that reads these files would interpret them as marks"
        )


def _has_marks(text: str) -> bool:
    """Return whether a trn file's reader would change any word of a text."""
    words = split_words(text)
    try:
        return NO_WORD in words or list(parse(text)) != words
    except GrammarError:
        return True
