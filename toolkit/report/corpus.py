"""The report's section on the data: sizes and durations of splits, vocabulary, perplexities."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from toolkit.corpus.check.exclusions import read_exclusions
from toolkit.corpus.manifest import FEATURE_MATRIX
from toolkit.report.folder import DAMAGE, RunFolder
from toolkit.report.page import HALF, NARROW, Cell, Column, Row, Table, side_by_side
from toolkit.storage.reading import regular

BINS = 24
"""Number of bins of the histogram of durations."""


class Utterance(NamedTuple):
    """An utterance of a manifest."""

    seconds: float
    speaker: str
    text: str
    line: int
    """Offset of its line in the file, in bytes."""
    snr: float | None = None
    """Signal-to-noise ratio in dB, where the manifest says it (`custom.snr_db`)."""
    has_audio: bool = True
    """Whether its recording is audio, not an archive of Kaldi's features."""


@dataclass(frozen=True)
class Split:
    """The utterances of a split, without those that the check excluded."""

    name: str
    path: Path
    utterances: Mapping[str, Utterance]
    excluded: int

    @property
    def hours(self) -> float:
        """Hours of audio."""
        return sum(utterance.seconds for utterance in self.utterances.values()) / 3600


def read_splits(run: RunFolder) -> list[Split]:
    """Return the splits: training, tuning and test splits in this order, then any others."""
    purposes = run.json("data/splits.json")
    purposes = purposes if isinstance(purposes, dict) else {}
    named = [purposes.get("train", ""), *purposes.get("tune", []), *purposes.get("test", [])]
    paths = {path.stem: path for path in run.find("data/*.jsonl")}
    order = [name for name in named if name in paths]
    order += sorted(paths.keys() - set(order))
    return [_read_split(run, name, paths[name]) for name in order]


def _read_split(run: RunFolder, name: str, path: Path) -> Split:
    exclusions = run.root / "check/excluded.tsv"
    out: set[tuple[str, int]] = set()
    try:
        out = read_exclusions(exclusions, name) if exclusions.exists() else out
    except DAMAGE as error:
        run.note(exclusions, error)
    copies: Counter[str] = Counter()
    utterances, excluded = {}, 0
    for id, utterance in _lines(run, path):
        copies[id] += 1
        if (id, copies[id]) in out:
            excluded += 1
        else:
            utterances[id] = utterance
    return Split(name, path, utterances, excluded)


def _lines(run: RunFolder, path: Path) -> Iterator[tuple[str, Utterance]]:
    """Yield the utterances of a manifest, parsed as JSON: lhotse takes ten times as long."""
    start = 0
    with open(regular(path), "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                cut = json.loads(line)
                own = cut["supervisions"][0]
                text, speaker = own.get("text") or "", str(own.get("speaker") or "")
                seconds, custom = _finite(cut["duration"]), cut.get("custom")
                has_audio = not (isinstance(custom, dict) and FEATURE_MATRIX in custom)
                utterance = Utterance(seconds, speaker, text, start, _snr(custom), has_audio)
                yield str(cut["id"]), utterance
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                run.note(path, f"line {number}: {error}")
            start += len(line)


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"a duration of {value}")
    return number


def _snr(custom: Any) -> float | None:
    found = custom.get("snr_db") if isinstance(custom, dict) else None
    return float(found) if isinstance(found, (int, float)) and math.isfinite(found) else None


def split_table(run: RunFolder, splits: Sequence[Split]) -> Table:
    """Return the table of split sizes, with the OOV words that the check has counted."""
    report = run.json("check/report.json") or {}
    known = {row["split"]: row for row in report.get("splits", []) if "split" in row}
    columns = ("utterances", "excluded", "speakers", "hours", "words", "distinct words", "OOV")
    rows = []
    for split in splits:
        texts = [utterance.text.split() for utterance in split.utterances.values()]
        row = known.get(split.name, {})
        tokens, oov = row.get("tokens") or 0, row.get("oov_tokens")
        share = "" if oov is None or not tokens else f"{100 * oov / tokens:.2f} %"
        rows.append(
            Row(
                [
                    Cell(split.name),
                    Cell(f"{len(split.utterances):,}"),
                    Cell(f"{split.excluded:,}"),
                    Cell(f"{len({u.speaker for u in split.utterances.values()}):,}"),
                    Cell(f"{split.hours:,.2f}"),
                    Cell(f"{sum(map(len, texts)):,}"),
                    Cell(f"{len({word for words in texts for word in words}):,}"),
                    Cell("-" if oov is None else f"{oov:,}", share),
                ]
            )
        )
    note = (
        "Without the excluded utterances. OOV: words of all transcripts, also of excluded "
        "utterances, that were not in the lexicon when the data were checked."
    )
    return Table("Splits", [Column("split"), *map(Column, columns)], rows, note)


def duration_figures(splits: Sequence[Split]) -> str:
    """Return a histogram of durations per split that has audio."""
    return side_by_side(_histogram(split) for split in splits if split.hours)


def _histogram(split: Split) -> str:
    seconds = np.array([u.seconds for u in split.utterances.values()])
    counts, edges = np.histogram(seconds, bins=BINS, range=(0.0, float(seconds.max()) or 1.0))
    name = escape(split.name)
    drawn = "".join(
        f'<div class="{kind}">{_columns(counts, edges, width, name)}</div>'
        for kind, width in (("wide", HALF[0]), ("narrow", NARROW[0]))
    )
    return (
        f"<figure><h3>{name}</h3>{drawn}<figcaption>Durations: shortest {seconds.min():.1f} s, "
        f"median {np.median(seconds):.1f} s, longest {seconds.max():.1f} s; {split.hours:.2f} h in "
        "total.</figcaption></figure>"
    )


def _columns(counts: np.ndarray, edges: np.ndarray, width: float, name: str) -> str:
    height, base, step = 150.0, 126.0, width / BINS
    bars = "".join(
        f'<rect class="column c0" x="{n * step + 0.8:.1f}" y="{base - h:.1f}" '
        f'width="{step - 1.6:.1f}" height="{h:.1f}"><title>{a:.1f} to {b:.1f} s: {count:,} '
        "utterances</title></rect>"
        for n, (count, a, b) in enumerate(zip(counts, edges[:-1], edges[1:], strict=True))
        if (h := 116.0 * count / counts.max()) > 0
    )
    ends = "".join(
        f'<text class="tick" x="{width * share:g}" y="144" text-anchor="{anchor}">{value:.1f}'
        f"{' s' if share == 1 else ''}</text>"
        for share, anchor, value in zip(
            (0, 0.5, 1), ("start", "middle", "end"), edges[[0, BINS // 2, BINS]], strict=True
        )
    )
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="Durations of {name}">'
        f'{bars}<path class="axis" d="M0 {base:g}H{width:g}"/>{ends}</svg>'
    )


def language_tables(run: RunFolder) -> str:
    """Return vocabulary, phones and perplexities as HTML."""
    parts = [_vocabulary(run), _perplexities(run)]
    return side_by_side(parts) if all(parts) else "".join(parts)


def _vocabulary(run: RunFolder) -> str:
    found: dict[str, Any] = {}
    lang = run.json("lang/report.json")
    if isinstance(lang, dict):
        labels = {
            "words": "words of the vocabulary",
            "pronunciations": "pronunciations",
            "guessed": "pronunciations from G2P",
            "not_guessed": "words without a pronunciation",
            "phones": "phones",
        }
        found |= {labels[name]: lang[name] for name in labels if name in lang}
    units = run.json("units/units.json")
    if isinstance(units, dict) and isinstance(units.get("symbols"), list):
        found["output units"] = len(units["symbols"])
    words = run.text("words.txt")
    if words is not None:
        found["words of the dictionary"] = len(words.split())
    for folder in ("lm", "rescoring"):
        orders = (run.json(f"{folder}/report.json") or {}).get("ngrams") or []
        for order, number in enumerate(orders, 1):
            found[f"{folder}: {order}-grams"] = number
    if not found:
        return ""
    rows = [Row([Cell(name), Cell(f"{number:,}")]) for name, number in found.items()]
    return Table("Vocabulary and n-grams", [Column(""), Column("")], rows).html()


def _perplexities(run: RunFolder) -> str:
    rows = []
    for folder in ("lm", "rescoring"):
        for row in run.table(f"{folder}/perplexity.tsv"):
            share = f"{100 * float(row['oov_rate']):.2f} %"
            rows.append(
                Row([Cell(folder), Cell(row["split"]), Cell(row["ppl"]), Cell(row["oov"], share)])
            )
    columns = [Column("model"), Column("split", text=True), Column("perplexity"), Column("OOV")]
    return Table("Perplexities", columns, rows).html() if rows else ""
