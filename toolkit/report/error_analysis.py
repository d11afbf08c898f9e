"""Analyse a split's errors: confusions, worst utterances, phones, factors, systems, alignments."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from toolkit.align.ctm_textgrid import TimedToken
from toolkit.align.store import AlignmentStore, phone_times
from toolkit.hmm.topology import Topology
from toolkit.lang.lexicon import Lexicon, without_positions
from toolkit.lang.tables import UNKNOWN
from toolkit.report.charts import Chart, Series
from toolkit.report.media import Clip, aligned_player, player, read_word_times
from toolkit.report.pages import (
    Budget,
    Cell,
    Column,
    Table,
    TableRow,
    figure,
    joined,
    macros,
    side_by_side,
)
from toolkit.report.run_data import Decode, Split, confusions, worst
from toolkit.report.run_folder import RunFolder
from toolkit.score.alignment import Pair, align_all, pairs_of
from toolkit.score.significance import (
    MANY_SEGMENTS,
    MatchedPairs,
    matched_pairs,
    permutation_p_value,
)
from toolkit.score.wer import UtteranceScore

MAX_WORDS = 250
"""Largest number of words of an alignment that are shown."""
MAX_CONFUSIONS = 15
MAX_SPEAKERS = 12


@dataclass(frozen=True)
class SplitErrors:
    """A split with the systems that were decoded on it."""

    split: Split
    decodes: Sequence[Decode]
    """The decodes, in the order in which they were written."""

    @property
    def shown(self) -> Decode:
        """The system with the fewest errors."""
        return min(self.decodes, key=lambda decode: decode.score.errors)


def overview(errors: SplitErrors) -> Markup:
    """Return confusions and speakers of the best system on a split."""
    decode = errors.shown
    counts = confusions([u.pairs for u in decode.score.utterances], MAX_CONFUSIONS)
    cards = [
        counts_card("Substitutions", counts.substitutions),
        counts_card("Deletions", counts.deletions),
        counts_card("Insertions", counts.insertions),
        _speakers(decode),
    ]
    return _titled(f"{errors.split.name}, by {decode.name}", macros("parts.html").cards(cards))


def _titled(title: str, *parts: Markup) -> Markup:
    """Return parts of a page below a subtitle."""
    return joined([macros("parts.html").subtitle(title), *parts])


def counts_card(title: str, counts: Sequence[tuple[str, int]]) -> Markup:
    """Return a card that lists items with their counts as bars; empty without items."""
    return macros("run.html").counts_card(title, counts) if counts else Markup("")


def _speakers(decode: Decode) -> Markup:
    """Return a table of the speakers with the highest WER; empty for a single speaker."""
    scores = sorted(decode.score.by_speaker().items(), key=lambda item: (-item[1].percent, item[0]))
    rows = [
        TableRow([Cell(name or "-"), Cell(f"{s.percent:.2f}"), Cell(f"{s.errors:,}")])
        for name, s in scores[:MAX_SPEAKERS]
    ]
    columns = [Column("speaker"), Column("WER %"), Column("errors")]
    more = len(scores) - len(rows)
    note = f"Only the worst of {len(scores):,} speakers are shown." if more > 0 else ""
    return Table("Speakers", columns, rows, note).html() if len(scores) > 1 else Markup("")


def worst_utterances(
    run: RunFolder,
    errors: SplitErrors,
    number: int,
    budget: Budget,
    clip: Callable[[Split, str], Clip | None],
    anchor: str,
) -> Markup:
    """Return cards of the utterances with the most errors of the best system.

    Args:
      run: the run, for word times.
      errors: the split with its decoded systems.
      number: number of utterances.
      budget: limits the size; audio players are left out first, then alignments.
      clip: returns the audio of an utterance, None where it cannot be read.
      anchor: prefix of the cards' anchors.
    """
    best = errors.shown
    times = read_word_times(run, best)
    cards: list[Markup] = []
    for utterance in worst(best, number):
        # Alignments before players: alignments are small and say the most.
        alignments = budget.take(_system_alignments(errors, utterance))
        if not alignments:
            continue
        media = clip(errors.split, utterance.id)
        sound = Markup("")
        if media:
            sound = budget.take(player(media, times.get(utterance.id, []), utterance))
        cards.append(
            macros("run.html").utterance_card(
                f"{anchor}-{len(cards) + 1}",
                errors.split.name,
                utterance.id,
                _utterance_facts(errors, utterance),
                sound,
                alignments,
            )
        )
    return _titled(f"{errors.split.name}, by {best.name}", *cards) if cards else Markup("")


def _utterance_facts(errors: SplitErrors, utterance: UtteranceScore) -> str:
    """Return a text with an utterance's duration, speaker and number of errors."""
    entry = errors.split.utterances[utterance.id]
    speaker = f", speaker {entry.speaker}" if entry.speaker else ""
    return (
        f"{entry.seconds:.1f} s{speaker}; {_counted(utterance.errors, 'error')} in "
        f"{_counted(utterance.ref_units, 'word')}"
    )


def _system_alignments(errors: SplitErrors, utterance: UtteranceScore) -> Markup:
    """Return the alignments of all systems, those of the other systems collapsed."""
    best = errors.shown
    other_systems = [
        (decode.name, scored.errors, marked_alignment(scored))
        for decode in errors.decodes
        if decode is not best and (scored := decode.by_id.get(utterance.id))
    ]
    return macros("run.html").system_alignments(
        " ".join(ref for ref, _ in utterance.pairs[:MAX_WORDS] if ref is not None),
        best.name,
        marked_alignment(utterance, as_elements=True),
        other_systems,
        _counted(len(other_systems), "other system"),
    )


def marked_alignment(utterance: UtteranceScore, as_elements: bool = False) -> Markup:
    """Return a hypothesis with its errors marked.

    Args:
      utterance: the scored utterance.
      as_elements: wrap correct words in elements too, so that each recognised word is an element.
    """
    words = [(_pair_class(pair), *pair) for pair in utterance.pairs[:MAX_WORDS]]
    hidden = len(utterance.pairs) - MAX_WORDS
    return macros("run.html").alignment(words, hidden, as_elements)


def _pair_class(pair: Pair) -> str:
    """Return the CSS class of an aligned pair."""
    ref, hyp = pair
    if ref is None:
        return "new"
    if hyp is None:
        return "gone"
    return "correct" if ref == hyp else "sub"


def _counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


LEXICON = "lang/lexicon.txt"
MAX_PHONE_CONFUSIONS = 15
MAX_PHONES = 12
MIN_OCCURRENCES = 10
"""Fewest occurrences of a phone for which an error rate is shown."""


def phone_overview(run: RunFolder, errors: SplitErrors) -> Markup:
    """Return the phone errors of the best GMM system on a split.

    The phones of a word are its first pronunciation in the lexicon, in reference and hypothesis
    alike: they show what word errors sound like, not what was actually said. Empty if no GMM system
    was decoded, or if the run has no lexicon.
    """
    # Only GMM systems: neural systems have senones, whose confusions need no lexicon.
    systems = [d for d in errors.decodes if (_system_folder(run, d) / "gmm.safetensors").exists()]
    if not systems or not (run.root / LEXICON).exists():
        return Markup("")
    best = min(systems, key=lambda decode: decode.score.errors)
    pairs = phone_pairs(best, Lexicon.load(run.root / LEXICON))
    counts = confusions(pairs, MAX_PHONE_CONFUSIONS)
    cards = [
        counts_card("Phones: substitutions", counts.substitutions),
        counts_card("Phones: deletions", counts.deletions),
        counts_card("Phones: insertions", counts.insertions),
        _phone_rates(pairs),
    ]
    if not any(cards):
        return Markup("")
    note = f"The phones are from the first pronunciation of each word in {LEXICON}."
    return _titled(
        f"{errors.split.name}, phones of {best.name}",
        macros("parts.html").note(note),
        macros("parts.html").cards(cards),
    )


def phone_pairs(decode: Decode, lexicon: Lexicon) -> list[list[Pair]]:
    """Align the phones of references and hypotheses, utterance by utterance.

    Words that the lexicon lacks have the phones of the unknown word.
    """

    def phones(words: Sequence[str | None]) -> list[str]:
        word_phones: list[str] = []
        for word in filter(None, words):
            pronunciations = lexicon.get(word) or lexicon.get(UNKNOWN) or [()]
            word_phones += without_positions(pronunciations[0])
        return word_phones

    scored = decode.score.utterances
    ref_phones = [phones([ref for ref, _ in utterance.pairs]) for utterance in scored]
    hyp_phones = [phones([hyp for _, hyp in utterance.pairs]) for utterance in scored]
    steps, _ = align_all(ref_phones, hyp_phones)
    return [pairs_of(*each) for each in zip(steps, ref_phones, hyp_phones, strict=True)]


def _system_folder(run: RunFolder, decode: Decode) -> Path:
    """Return the folder of the system that made a decode."""
    return run.root / decode.name.partition("/")[0]


def _phone_rates(pairs: Sequence[Sequence[Pair]]) -> Markup:
    """Return a table of the phones with the highest error rates, without insertions."""
    occurrences: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for ref, hyp in (pair for utterance in pairs for pair in utterance):
        if ref is not None:
            occurrences[ref] += 1
            wrong[ref] += ref != hyp
    rated = [
        (100 * wrong[phone] / count, phone)
        for phone, count in occurrences.items()
        if count >= MIN_OCCURRENCES
    ]
    rated = sorted(
        (rate_and_phone for rate_and_phone in rated if rate_and_phone[0]),
        key=lambda rate_and_phone: (-rate_and_phone[0], rate_and_phone[1]),
    )
    rows = [
        TableRow([Cell(phone), Cell(f"{rate:.1f}"), Cell(f"{occurrences[phone]:,}")])
        for rate, phone in rated[:MAX_PHONES]
    ]
    columns = [Column("phone"), Column("wrong %"), Column("said")]
    note = f"Only phones that occur at least {MIN_OCCURRENCES} times in the references are shown."
    return Table("Phones", columns, rows, note).html() if rows else Markup("")


MAX_BINS = 8
MIN_BIN_UTTERANCES = 10
"""Smallest number of utterances in a bin."""


@dataclass(frozen=True)
class Bin:
    """Utterances with similar values of a factor, such as their duration."""

    low: float
    high: float
    """The highest value in the bin; `low` is the lowest."""
    middle: float
    """The median value."""
    utterances: int
    errors: int
    words: int

    @property
    def wer(self) -> float:
        """Word error rate in percent."""
        return 100.0 * self.errors / self.words


def quantile_bins(
    values: Sequence[float], errors: Sequence[int], words: Sequence[int]
) -> list[Bin]:
    """Divide utterances by the value of a factor into bins of about equal size, lowest first.

    Utterances with equal values stay together. Bins without a word are left out.

    Args:
      values: [U] values of the factor.
      errors: [U] word errors.
      words: [U] words of the references.
    """
    # Cut at the values at the quantiles; equal values fall into the same bin.
    order = np.argsort(np.asarray(values), kind="stable")
    sorted_values = np.asarray(values, dtype=float)[order]
    number = min(MAX_BINS, len(order) // MIN_BIN_UTTERANCES)
    if number < 2:
        return []
    cuts = sorted_values[[len(order) * n // number for n in range(1, number)]]
    ends = np.searchsorted(sorted_values, np.unique(cuts), side="left")
    bins = []
    for members in np.split(order, ends):
        bin_counts = [int(np.asarray(counts)[members].sum()) for counts in (errors, words)]
        if len(members) and bin_counts[1]:
            bin_values = np.asarray(values, dtype=float)[members]
            median = float(np.median(bin_values))
            bins.append(Bin(bin_values.min(), bin_values.max(), median, len(members), *bin_counts))
    return bins


def factor_figures(errors: SplitErrors) -> Markup:
    """Return figures of the WER of a split's best system against possible causes of errors.

    Factors that are known for too few utterances, or that do not vary, are left out.
    """
    # 1. The utterances, and a value of each factor for every one of them; None: unknown.
    rows = [(u, errors.split.utterances[u.id]) for u in errors.shown.score.utterances]
    rows = [(u, entry) for u, entry in rows if u.ref_units and entry.seconds > 0]
    factors: dict[tuple[str, str], list[Any]] = {
        ("duration", "seconds"): [entry.seconds for _, entry in rows],
        ("speaking rate", "words per second"): [u.ref_units / entry.seconds for u, entry in rows],
        ("signal-to-noise ratio", "dB"): [entry.snr for _, entry in rows],
    }
    # 2. WER of groups of utterances with similar values; unknown values are left out.
    charts = [
        _factor_figure(errors.split.name, *names, bins)
        for names, values in factors.items()
        for with_value in [[n for n, value in enumerate(values) if value is not None]]
        for bins in [
            quantile_bins(
                [values[n] for n in with_value],
                [rows[n][0].errors for n in with_value],
                [rows[n][0].ref_units for n in with_value],
            )
        ]
        if len(bins) > 1
    ]
    if not charts:
        return Markup("")
    return _titled(f"{errors.split.name}, by {errors.shown.name}", side_by_side(charts))


def _factor_figure(split: str, factor: str, unit: str, bins: Sequence[Bin]) -> Markup:
    """Return a figure of the WER of groups of utterances against a factor."""
    titles = [
        f"{group.low:.3g} to {group.high:.3g} {unit}: WER {group.wer:.2f} %, "
        f"{group.errors:,} errors in {group.words:,} words of {group.utterances:,} utterances"
        for group in bins
    ]
    x, y = [group.middle for group in bins], [group.wer for group in bins]
    margin = 0.05 * (x[-1] - x[0])
    chart = Chart(
        f"WER of {split} against {factor}",
        unit,
        "WER in %",
        [Series("", x, y, markers=True, titles=titles)],
        x_range=(x[0] - margin, x[-1] + margin),
    )
    caption = (
        f"{len(bins)} groups of about {bins[0].utterances:,} utterances; each point is at its "
        "group's median."
    )
    return figure(chart, f"WER against {factor}", caption)


MAX_SYSTEMS = 10
"""Largest number of systems in a table; those with the fewest errors are shown."""
SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """The difference between two decodes of the same utterances, with its significance."""

    points: float
    """Difference of word error rates in percentage points; below 0 the second is better."""
    test: MatchedPairs
    exact: float
    """p-value of the exact permutation test, which swaps the two systems' results."""

    @property
    def p_value(self) -> float:
        """The p-value of the matched pairs test, or of the exact test if there are few segments.

        The mean of fewer than `MANY_SEGMENTS` segments is not normally distributed.
        """
        return self.exact if self.test.segments < MANY_SEGMENTS else self.test.p_value

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at 5 %."""
        return self.p_value < SIGNIFICANCE_LEVEL


def compare_decodes(first: Decode, second: Decode) -> Difference:
    """Compare two decodes that were scored on the same references."""
    utterance_pairs = list(zip(first.score.utterances, second.score.utterances, strict=True))
    test = matched_pairs(
        ((a.pairs, b.pairs) for a, b in utterance_pairs), [a.block for a, _ in utterance_pairs]
    )
    extra_errors: Counter[str] = Counter()
    for a, b in utterance_pairs:
        # Copies of a sentence are one unit: their errors are not independent.
        extra_errors[a.block] += b.errors - a.errors
    exact = permutation_p_value(list(extra_errors.values()))
    return Difference(second.score.percent - first.score.percent, test, exact)


def format_p_value(value: float) -> str:
    """Format a p-value, such as "p 0.012" or "p < 0.001"."""
    return "p < 0.001" if value < 0.001 else f"p {value:.3f}"


def pairwise_tests_table(errors: SplitErrors) -> Markup:
    """Return a table that compares all pairs of systems of a split."""
    decodes = sorted(errors.decodes, key=lambda decode: decode.score.errors)[:MAX_SYSTEMS]
    if len(decodes) < 2:
        return Markup("")
    differences = {
        (row, column): compare_decodes(decodes[column], decodes[row])
        for row in range(1, len(decodes))
        for column in range(row)
    }
    rows = [
        _pairwise_row(
            row, decode, [differences.get((row, column)) for column in range(len(decodes) - 1)]
        )
        for row, decode in enumerate(decodes)
    ]
    return Table(
        f"{errors.split.name}: differences between systems",
        [Column(""), *(Column(f"{number + 1}") for number in range(len(decodes) - 1))],
        rows,
        _pairwise_note(len(errors.decodes), differences.values()),
        stacked=True,
    ).html()


def _pairwise_row(
    number: int, decode: Decode, differences: Sequence[Difference | None]
) -> TableRow:
    """Return the row of a system in the table of comparisons."""
    cells = [
        Cell("")
        if difference is None
        else Cell(
            f"{difference.points:+.2f}",
            format_p_value(difference.p_value),
            best=difference.significant,
        )
        for difference in differences
    ]
    return TableRow([Cell(f"{number + 1}. {decode.name}"), *cells])


def _pairwise_note(systems: int, differences: Collection[Difference]) -> str:
    """Return the note below the table of comparisons."""
    note = (
        "A cell is the WER of the row's system minus the WER of the system with the column's "
        f"number, in percentage points. It is bold if p is below {SIGNIFICANCE_LEVEL:g} in NIST's "
        "matched pairs test (MAPSSWE); p is not corrected for the number of comparisons."
    )
    if any(difference.test.segments < MANY_SEGMENTS for difference in differences):
        note += (
            f" If fewer than {MANY_SEGMENTS} segments have errors, p is from an exact permutation "
            "test, which swaps the two systems' results for single utterances."
        )
    if systems > MAX_SYSTEMS:
        note += f" Only the best {MAX_SYSTEMS} of {systems} systems are shown."
    return note


ALIGNMENT_DIR, ALIGNERS = "ali", ("sat", "lda_mllt", "tri", "mono")
"""Folder in which recipes keep the alignment of the training data, and the systems that may have
made it. The first of these that the run has trained is the one."""
WORD_BEGIN_SUFFIXES = ("_B", "_S")
"""Suffixes of the phones at the beginning of a word."""


def worst_alignments(
    run: RunFolder,
    splits: Sequence[Split],
    number: int,
    budget: Budget,
    clip: Callable[[Split, str], Clip | None],
) -> Markup:
    """Return cards of the utterances whose alignments have the lowest likelihood per frame.

    Args:
      run: the run that holds the alignment.
      splits: the splits of the run, including the one that is aligned.
      number: number of utterances.
      budget: limits the size of the page.
      clip: returns the audio of an utterance, None where it cannot be read.
    """
    # 1. The likelihoods, and the topology with which the alignments can be read.
    rows = run.table(f"{ALIGNMENT_DIR}/table.tsv")
    aligner = next((name for name in ALIGNERS if (run.root / name / "topology.json").exists()), "")
    if not rows or not aligner:
        return Markup("")
    topology = Topology.load(run.root / aligner / "topology.json")
    store = AlignmentStore(run.root / ALIGNMENT_DIR)
    likelihoods = {row["utterance"]: float(row["log_likelihood_per_frame"]) for row in rows}
    # Utterances that could not be aligned have no likelihood.
    aligned = sorted((value, id) for id, value in likelihoods.items() if not math.isnan(value))
    # An id may be in several splits; the first is the training split, which is aligned.
    of_split = {id: split for split in reversed(splits) for id in split.utterances}
    # 2. The utterances with the lowest likelihoods. Those without audio are not replaced by the
    # next ones: if no recording can be read, that would try the whole training data.
    lowest = [(value, id) for value, id in aligned if id in of_split][:number]
    cards: list[Markup] = []
    for likelihood, id in lowest:
        split = of_split[id]
        media = clip(split, id)
        if media is None:
            continue
        phones = phone_times(store.load(id), topology)
        words = word_times_from_phones(phones, split.utterances[id].text.split(), topology)
        sound = aligned_player(media, id, words, _spoken_phones(phones, topology))
        facts = f"{media.seconds:.1f} s; log-likelihood per frame {likelihood:.1f}"
        card = macros("run.html").alignment_card(id, facts, sound)
        if budget.take(card):
            cards.append(card)
    if not cards:
        return Markup("")
    failed = sum(row["status"] == "failed" for row in rows)
    note = f"Aligned by {aligner}: {len(aligned):,} utterances; {failed:,} failed."
    return joined([macros("parts.html").note(note), *cards])


def word_times_from_phones(
    phones: Sequence[TimedToken], words: Sequence[str], topology: Topology
) -> list[TimedToken]:
    """Join the phones of each word; empty if that gives a different number of words."""
    times_by_word: list[TimedToken] = []
    for phone in phones:
        if phone.token == _silence(topology):
            continue
        # A phone with a begin mark, or a lone phone without marks, begins a word; others extend it.
        if (
            phone.token.endswith(WORD_BEGIN_SUFFIXES)
            or phone.token == without_positions((phone.token,))[0]
        ):
            times_by_word.append(phone)
        elif times_by_word:
            times_by_word[-1] = times_by_word[-1]._replace(end_s=phone.end_s)
    if len(times_by_word) != len(words):
        return []
    return [times._replace(token=word) for times, word in zip(times_by_word, words, strict=True)]


def _silence(topology: Topology) -> str:
    """Return the name of the silence phone."""
    return topology.phones[topology.silence - 1]


def _spoken_phones(phones: Sequence[TimedToken], topology: Topology) -> list[TimedToken]:
    """Return the phones without silences, and without the suffixes for their place in a word."""
    return [
        p._replace(token=without_positions((p.token,))[0])
        for p in phones
        if p.token != _silence(topology)
    ]
