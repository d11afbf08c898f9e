"""The report's alignments of training utterances: words and phones under the spectrogram."""

import math
from collections.abc import Callable, Sequence
from html import escape

from toolkit.align.store import AlignmentStore, phone_times
from toolkit.align.times import TimedToken
from toolkit.hmm.topology import Topology
from toolkit.lang.lexicon import without_positions
from toolkit.report.budget import Budget
from toolkit.report.corpus import Split
from toolkit.report.folder import RunFolder
from toolkit.report.media import Clip
from toolkit.report.player import aligned_player

FOLDER, ALIGNERS = "ali", ("sat", "lda_mllt", "tri", "mono")
"""Where recipes keep the alignment of the training data, and the systems that make it: the last
that was trained."""
BEGINS = ("_B", "_S")
"""Suffixes of the phones that begin a word."""


def worst_alignments(
    run: RunFolder,
    splits: Sequence[Split],
    number: int,
    budget: Budget,
    clip: Callable[[Split, str], Clip | None],
) -> str:
    """Return cards of the utterances whose alignments have the lowest likelihood per frame.

    Args:
      run: the run.
      splits: among them the one that is aligned.
      number: number of utterances.
      budget: limits the size of the page.
      clip: returns the audio of an utterance, None where it cannot be read.
    """
    rows = run.table(f"{FOLDER}/table.tsv")
    aligner = next((name for name in ALIGNERS if (run.root / name / "topology.json").exists()), "")
    if not rows or not aligner:
        return ""
    topology = Topology.load(run.root / aligner / "topology.json")
    store = AlignmentStore(run.root / FOLDER)
    likelihoods = {row["utterance"]: float(row["log_likelihood_per_frame"]) for row in rows}
    aligned = sorted((value, id) for id, value in likelihoods.items() if not math.isnan(value))
    # An id may be in other splits too; the first is that of training, which is aligned.
    of_split = {id: split for split in reversed(splits) for id in split.utterances}
    # No more are tried: without audio or room on the page that would be the whole training data.
    worst = [(value, id) for value, id in aligned if id in of_split][:number]
    cards: list[str] = []
    for value, id in worst:
        split = of_split[id]
        media = clip(split, id)
        if media is None:
            continue
        phones = phone_times(store.load(id), topology)
        words = word_times(phones, split.utterances[id].text.split(), topology)
        sound = aligned_player(media, id, words, _shown(phones, topology))
        card = (
            f'<article class="box utterance"><h4><code>{escape(id)}</code> <span>'
            f"{media.seconds:.1f} s; log-likelihood per frame {value:.1f}</span></h4>"
            f'<div class="scroll aligned" tabindex="0" role="region" aria-label="Alignment of '
            f'{escape(id)}">{sound}</div></article>'
        )
        if budget.take(card):
            cards.append(card)
    failed = sum(row["status"] == "failed" for row in rows)
    note = f"Aligned by {aligner}: {len(aligned):,} utterances; {failed:,} failed."
    return f'<p class="note">{escape(note)}</p>{"".join(cards)}' if cards else ""


def word_times(
    phones: Sequence[TimedToken], words: Sequence[str], topology: Topology
) -> list[TimedToken]:
    """Join the phones of each word; empty where there are not as many as words were said."""
    found: list[TimedToken] = []
    for phone in phones:
        if phone.token == _silence(topology):
            continue
        if phone.token.endswith(BEGINS) or phone.token == without_positions((phone.token,))[0]:
            found.append(phone)
        elif found:
            found[-1] = found[-1]._replace(end_s=phone.end_s)
    if len(found) != len(words):
        return []
    return [times._replace(token=word) for times, word in zip(found, words, strict=True)]


def _silence(topology: Topology) -> str:
    return topology.phones[topology.silence - 1]


def _shown(phones: Sequence[TimedToken], topology: Topology) -> list[TimedToken]:
    """Return the phones without silences, without the marks of their places in words."""
    return [
        p._replace(token=without_positions((p.token,))[0])
        for p in phones
        if p.token != _silence(topology)
    ]
