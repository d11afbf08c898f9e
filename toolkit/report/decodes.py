"""The hypotheses of a run, scored against the references, and their confusions."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.report.corpus import Split
from toolkit.report.folder import RunFolder
from toolkit.score.alignment import Pair
from toolkit.score.transcripts import read_transcripts
from toolkit.score.wer import Score, UtteranceScore, score

DEPTHS = ("decode/*/*/text", "decode/*/*/*/text")


@dataclass(frozen=True)
class Decode:
    """One system's hypotheses of one split."""

    name: str
    """The folder below `decode/`, such as `lstm_ce` or `ctc/greedy`."""
    split: str
    score: Score
    folder: Path
    """The folder of its files."""

    @cached_property
    def by_id(self) -> Mapping[str, UtteranceScore]:
        """The scored utterances by id."""
        return {utterance.id: utterance for utterance in self.score.utterances}


def read_decodes(run: RunFolder, splits: Sequence[Split]) -> list[Decode]:
    """Read and score all hypotheses, in the order in which they were written.

    Utterances that no system has a line for do not count, as in the recipe's results: in runs of
    earlier versions those without features.
    """
    known = {split.name: split for split in splits}
    found: dict[tuple[str, str], tuple[Path, Mapping[str, str]]] = {}
    for path in (path for pattern in DEPTHS for path in run.find(pattern)):
        key = run.name(path.parent.parent).removeprefix("decode/"), path.parent.name
        if key[1] in known and key not in found:
            try:
                found[key] = path, read_transcripts(path, "text").texts
            except ToolkitError as error:
                run.note(path, error)
    decoded: dict[str, set[str]] = {name: set() for name in known}
    for (_, split), (_, texts) in found.items():
        decoded[split] |= texts.keys()
    decodes = []
    for (name, split), (path, texts) in found.items():
        try:
            own = _score(known[split], texts, decoded[split])
        except ToolkitError as error:
            run.note(path, error)
            continue
        decodes.append((path.stat().st_mtime, Decode(name, split, own, path.parent)))
    return [decode for _, decode in sorted(decodes, key=lambda item: item[0])]


def _score(split: Split, hypotheses: Mapping[str, str], decoded: Collection[str]) -> Score:
    used = {name: u for name, u in split.utterances.items() if u.text and name in decoded}
    references = {name: utterance.text for name, utterance in used.items()}
    speakers = {name: utterance.speaker for name, utterance in used.items()}
    return score(references, hypotheses, speakers=speakers)


def worst(decode: Decode, number: int) -> Iterator[UtteranceScore]:
    """Yield the utterances with the most errors; ties go to the higher error rate."""
    wrong = [utterance for utterance in decode.score.utterances if utterance.errors]
    wrong.sort(key=lambda u: (-u.errors, -u.errors / max(1, u.ref_units), u.id))
    yield from wrong[:number]


@dataclass(frozen=True)
class Confusions:
    """Counts of word errors, the most frequent first, ties by name."""

    substitutions: Sequence[tuple[str, int]]
    """(`reference → hypothesis`, count)."""
    deletions: Sequence[tuple[str, int]]
    insertions: Sequence[tuple[str, int]]


def confusions(alignments: Iterable[Sequence[Pair]], number: int) -> Confusions:
    """Return the `number` most frequent errors of each kind in alignments of words or phones."""
    kinds: tuple[Counter[str], Counter[str], Counter[str]] = Counter(), Counter(), Counter()
    for pairs in alignments:
        for ref, hyp in pairs:
            if ref is None:
                kinds[2][hyp or ""] += 1
            elif hyp is None:
                kinds[1][ref] += 1
            elif ref != hyp:
                kinds[0][f"{ref} → {hyp}"] += 1
    ordered = [sorted(kind.items(), key=lambda item: (-item[1], item[0])) for kind in kinds]
    return Confusions(*(kind[:number] for kind in ordered))
