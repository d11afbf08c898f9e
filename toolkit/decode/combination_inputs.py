"""What systems recognised, as word lattices: their own, or chains of words and confidences."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toolkit.align.ctm import CtmEntry, read_ctm
from toolkit.errors import ToolkitError
from toolkit.fsa.word_lattice import NO_WORD, WordLattice
from toolkit.fsa.word_lattice_store import WordLatticeStore, Words
from toolkit.score.transcripts import form_by_name, read_transcripts

LATTICES, CTM, TEXT = "word_lattices", "words.ctm", "text"
OTHER = -1
"""The id of words that are not known: what is said where a confidence is below 1."""
LEAST = 1e-4
"""Confidences are taken as at least this."""
logger = logging.getLogger(__name__)


class CombinationError(ToolkitError):
    """Systems that cannot be combined."""


@dataclass(frozen=True)
class System:
    """What a system recognised in some utterances."""

    path: Path
    """Where it was read from."""
    lattices: Mapping[str, tuple[WordLattice, np.ndarray]]
    """By utterance a lattice and the scores [A] of its arcs."""
    ids: Sequence[str]
    """All utterances, also those in which nothing was recognised."""
    timed: bool = True
    """Whether they have times."""
    lattice: bool = False
    """Whether they are lattices of a search, not chains."""


def read_system(path: Path, words: Words) -> System:
    """Read the lattices of a decoded split, or the words of a file.

    Args:
      path: a folder with `word_lattices/`, else with `words.ctm` (and `text`, for what could not be
        aligned), else with `text`; a CTM file; or a file of transcripts, see
        `toolkit.score.transcripts.read_transcripts`. Words without confidences are taken as sure.
      words: gives ids to the words of all systems.

    Raises:
      CombinationError: nothing of this is there, or a recording has several channels.
    """
    source = path
    if path.is_dir():
        found = [path / name for name in (LATTICES, CTM, TEXT) if (path / name).exists()]
        if not found and any(path.glob("words.*.safetensors")):
            found = [path]
        if not found:
            raise CombinationError(
                f"{path}: neither word lattices nor words.ctm nor text there; give the folder of a"
                " decoded split, such as exp/demo/decode/sat/dev, or a file"
            )
        source = found[0]
    if source.is_dir():
        store = WordLatticeStore(source, words)
        lattices = {name: (store[name], store.scores(name)) for name in store}
        return System(path, lattices, [*lattices, *store.failed], lattice=True)
    if form_by_name(source) != "ctm":
        plain = _untimed(read_transcripts(source, side="hyp").plain_texts())
        chains = {name: _chain(found, words) for name, found in plain.items()}
        return System(path, chains, list(plain), timed=False)
    entries = _by_utterance(source)
    # Words that could not be aligned are in `text` alone.
    texts = read_transcripts(path / TEXT).plain_texts() if (path / TEXT).exists() else {}
    without = {name: text for name, text in texts.items() if text and name not in entries}
    if without:
        logger.warning(
            "%s lacks %d texts that are in %s, such as that of %s: the combination has no times",
            *(source, len(without), path / TEXT, next(iter(without))),
        )
    entries |= _untimed(without)
    chains = {name: _chain(found, words) for name, found in entries.items()}
    return System(path, chains, list({**texts, **chains}), timed=not without)


def _by_utterance(path: Path) -> dict[str, list[CtmEntry]]:
    """Read the words of each utterance of a CTM file."""
    entries: dict[str, list[CtmEntry]] = {}
    for entry in read_ctm(path):
        found = entries.setdefault(entry.utterance, [])
        if found and found[0].channel != entry.channel:
            raise CombinationError(
                f"{path}: {entry.utterance!r} has the channels {found[0].channel} and"
                f" {entry.channel}: give each channel a name of its own"
            )
        found.append(entry)
    return entries


def _untimed(texts: Mapping[str, str]) -> dict[str, list[CtmEntry]]:
    """The words of texts, all at the beginning."""
    return {
        name: [CtmEntry(name, "1", 0.0, 0.0, word) for word in text.split()]
        for name, text in texts.items()
    }


def nothing() -> tuple[WordLattice, np.ndarray]:
    """The lattice of an utterance in which nothing was recognised, and its score."""
    return _chain([], Words())


def _chain(entries: Sequence[CtmEntry], words: Words) -> tuple[WordLattice, np.ndarray]:
    """A lattice that says each word with its confidence, and else another word.

    Between two words is an arc without a word.
    """
    source, target, spoken, scores = [], [], [], []
    times = [0.0]
    for entry in sorted(entries, key=lambda entry: entry.start):
        state, confidence = len(times), 1.0 if entry.confidence is None else entry.confidence
        sure = min(max(confidence, LEAST), 1.0)
        arcs = [
            (state - 1, state, NO_WORD, 1.0),
            (state, state + 1, words.id_of(entry.token), sure),
        ]
        arcs += [(state, state + 1, OTHER, 1.0 - sure)] if sure < 1 else []
        for a, b, word, probability in arcs:
            source.append(a)
            target.append(b)
            spoken.append(word)
            scores.append(np.log(probability))
        times += [entry.start, entry.end]
    last = len(times)
    lattice = WordLattice(
        source=np.int32([*source, last - 1]),
        target=np.int32([*target, last]),
        words=np.int32([*spoken, NO_WORD]),
        graph=np.array([*scores, 0.0]),
        acoustic=np.zeros(len(scores) + 1),
        times=np.maximum.accumulate([*times, times[-1]]),
    )
    return lattice, lattice.graph
