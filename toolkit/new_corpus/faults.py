"""Finds the faults of a new corpus that show without decoding its audio."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator

from lhotse import MonoCut

from toolkit.corpus.check.findings import ERROR, KINDS
from toolkit.corpus.letters import is_garbled, word_of_two_alphabets
from toolkit.corpus.manifest import NO_SPEAKER, OTHER_SPEAKER, audio_of, speaker_of, text_of
from toolkit.lang.policy import TextPolicy
from toolkit.storage.paths import suggestion
from toolkit.storage.words import split_words

REMEDIES = {
    "digits": "write numbers out as they are said: a word with digits that the lexicon lacks has no"
    " pronunciation",
    "garbled letters": "they are UTF-8 that some program took for Latin-1 and saved again: export"
    " them anew, as UTF-8",
}
"""Of what the check of a corpus does not look for."""
SAME_TIME = 1e-3
"""Seconds by which two times of a recording may differ, as they are rounded."""


def find_faults(*splits: Iterable[MonoCut], policy: TextPolicy | None = None) -> dict[str, str]:
    """Return, by kind, a text with how many utterances have the fault, the first, and the remedy.

    The kinds are some of `toolkit.corpus.check.findings.KINDS`, those of `REMEDIES`,
    "like-speakers" and "no-end".

    Args:
      splits: the cuts of each split; of those with the same id in a split only the first is used.
      policy: how their text becomes words.
    """
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    owners: Counter[str] = Counter()
    cuts = []
    for split in map(list, splits):
        cuts += split
        copies: Counter[str] = Counter()
        for cut in split:
            copies[cut.id] += 1
            for kind, detail in _faults(cut, copies[cut.id], policy or TextPolicy()):
                counts[kind] += 1
                first.setdefault(kind, f"{cut.id}: {detail}" if detail else cut.id)
        owners.update(copies.keys())
    if shared := [id for id, number in owners.items() if number > 1]:
        counts["shared-id"] = len(shared)
        first["shared-id"] = f"{shared[0]}: in {owners[shared[0]]} splits"
    missing = (cut for cut in cuts if (cut.custom or {}).get("fault") == "missing-audio")
    texts = {}
    for kind, count in sorted(counts.items()):
        known = KINDS.get(kind)
        transcripts = "transcript" if count == 1 else "transcripts"
        what = kind if known is not None else f"{transcripts} with {kind}"
        left_out = ", left out" if known is not None and known.severity == ERROR else ""
        fix = known.fix if known is not None else REMEDIES[kind]
        if kind == "missing-audio" and (advice := suggestion(map(audio_of, missing))):
            fix = f"{fix}; {advice}"
        texts[kind] = f"{count} {what}{left_out}, first {first[kind]} (fix: {fix})"
    return texts | _like_speakers(cuts) | _without_end(cuts)


def _faults(cut: MonoCut, copy: int, policy: TextPolicy) -> Iterator[tuple[str, str]]:
    """Yield (kind, detail) of one utterance, the `copy`-th with its id."""
    custom, text = cut.custom or {}, text_of(cut)
    if copy > 1:
        yield "duplicate-id", f"copy {copy}"
    if "fault" in custom:
        yield custom["fault"], custom["fault_detail"]
    elif not any(character.isalnum() for character in text):
        yield "empty-transcript", repr(text)
    if custom.get("mix_channels") and "fault" not in custom:
        yield "many-channels", f"{cut.recording.num_channels} channels"
    if NO_SPEAKER in custom:
        yield "no-speaker", custom[NO_SPEAKER]
    if OTHER_SPEAKER in custom:
        yield "two-speakers", custom[OTHER_SPEAKER]
    digits = [
        word
        for word in split_words(text)
        if any(map(_is_digit, word)) and policy.lexicon_key(word) not in policy.lexicon
    ]
    if digits:
        yield "digits", repr(digits[0])
    if word := next(filter(is_garbled, text.split()), None):
        yield "garbled letters", repr(word)
    if tags := policy.found_tags(text):
        yield "tag", repr(tags[0])
    if word := word_of_two_alphabets(text):
        yield "mixed-alphabets", repr(word)


def _is_digit(character: str) -> bool:
    return unicodedata.category(character) == "Nd"


def _like_speakers(cuts: Iterable[MonoCut]) -> dict[str, str]:
    """Find names of speakers that differ in case alone."""
    spellings: dict[str, set[str]] = {}
    for speaker in {speaker_of(cut) for cut in cuts}:
        spellings.setdefault(speaker.casefold(), set()).add(speaker)
    like = sorted(sorted(names) for names in spellings.values() if len(names) > 1)
    if not like:
        return {}
    names = "; ".join(" and ".join(map(repr, spelled)) for spelled in like[:3])
    return {
        "like-speakers": f"speakers whose names differ in case alone: {names} (fix: write the name "
        "of a speaker alike everywhere, or splits may share the speaker)"
    }


def _without_end(cuts: Iterable[MonoCut]) -> dict[str, str]:
    """Find pieces that last to the end of their recording although another one begins later."""
    last: dict[str, list[MonoCut]] = {}
    for cut in cuts:
        if cut.duration > 0 and abs(cut.end - cut.recording.duration) < SAME_TIME:
            last.setdefault(cut.recording.sources[0].source, []).append(cut)
    found = [
        cut
        for pieces in last.values()
        for begin in [max(piece.start for piece in pieces)]
        for cut in pieces
        if cut.start < begin - SAME_TIME
    ]
    if not found:
        return {}
    one = found[0]
    last_to = "1 utterance lasts" if len(found) == 1 else f"{len(found)} utterances last"
    return {
        "no-end": f"{last_to} to the end of the recording although others begin later, first "
        f"{one.id}: {one.start:g} to {one.end:g} s (fix: give each an end, in seconds from the "
        "recording's beginning, in `segments` or a column `end`; a column of durations is not read)"
    }
