"""Finds the faults of single utterances, and what the splits of a corpus must not share."""

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from lhotse import MonoCut

from toolkit.corpus.check.audio_info import AudioInfo
from toolkit.corpus.check.findings import Finding, is_train
from toolkit.corpus.config import CheckConfig
from toolkit.corpus.letters import word_of_two_alphabets
from toolkit.corpus.manifest import (
    HELD_OUT,
    NO_SPEAKER,
    OTHER_SPEAKER,
    TAGS,
    audio_of,
    channel_of,
    has_audio,
    speaker_of,
    text_of,
)
from toolkit.corpus.tags import is_tag
from toolkit.storage.words import split_words

FeatureFaults = Mapping[tuple[str, str, int], Sequence[tuple[str, str]]]
"""(kind, detail) of what is wrong with features, by (split, utterance id, copy of the id)."""


class SplitChecker:
    """Finds the faults of one split's utterances, given in order.

    Args:
      info: properties of the decoded audio by path.
      lexicon: smallest number of phones by word.
      feature_faults: what is wrong with the features of cuts that have no audio.
    """

    def __init__(
        self,
        split: str,
        info: Mapping[str, AudioInfo],
        lexicon: Mapping[str, int],
        config: CheckConfig,
        feature_faults: FeatureFaults | None = None,
    ) -> None:
        self.split = split
        self.oov: dict[str, list[str]] = defaultdict(list)
        """Utterances by word that the lexicon lacks, one entry per token."""
        self.tokens = 0
        """Words of the transcripts."""
        self._info = info
        self._lexicon = lexicon
        self._config = config
        self._feature_faults = feature_faults or {}
        self._copies: Counter[str] = Counter()

    def check(self, cut: MonoCut) -> list[Finding]:
        """Return the findings about the next utterance of the split."""
        self._copies[cut.id] += 1
        copy = self._copies[cut.id]
        found = [("duplicate-id", f"copy {copy}: {audio_of(cut)}")] if copy > 1 else []
        custom = cut.custom or {}
        if _at_fault(cut):
            found.append((custom["fault"], custom["fault_detail"]))
        else:
            if has_audio(cut):
                found += self._audio_faults(cut, self._info[audio_of(cut)])
            else:
                found += self._feature_faults.get((self.split, cut.id, copy), ())
            found += self._length_faults(cut)
            found += self._text_faults(cut)
        if NO_SPEAKER in custom and not _at_fault(cut):
            found.append(("no-speaker", custom[NO_SPEAKER]))
        if OTHER_SPEAKER in custom and not _at_fault(cut):
            found.append(("two-speakers", custom[OTHER_SPEAKER]))
        if "note" in custom:
            found.append((custom["note"], custom["note_detail"]))
        return [Finding(kind, self.split, cut.id, detail, copy) for kind, detail in found]

    def _audio_faults(self, cut: MonoCut, info: AudioInfo) -> list[tuple[str, str]]:
        path, config = info.path, self._config
        if info.error is not None or info.decoded < info.declared:
            why = info.error or "the file ends there"
            detail = f"{path}: {info.decoded} of {info.declared} samples ({why})"
            return [("truncated-audio" if info.declared else "unreadable-audio", detail)]
        if info.decoded == 0:
            return [("empty-audio", path)]
        if info.bad_rate:
            return [("unreadable-audio", f"{path}: {info.bad_rate}")]
        if info.not_numbers is not None:
            first, last = (sample / info.sampling_rate for sample in info.not_numbers)
            if cut.start <= last and first <= cut.end:
                detail = f"{path}: values that are not numbers from {first:.3f} to {last:.3f} s"
                return [("unreadable-audio", detail)]
        if info.bad_scale:
            return [("scaled-samples", f"{path}: {info.bad_scale}")]
        found = [("open-end", path)] if info.open_end else []
        channel = channel_of(cut)
        if channel is not None and not channel < info.channels:
            count = f"{info.channels} channel{'s' if info.channels > 1 else ''}"
            return [("no-channel", f"no channel {channel + 1}, but {count} in {path}")]
        if channel is None and info.silent:
            found.append(("silent-audio", path))
        elif channel is not None and info.silent_channels[channel]:
            which = f"channel {channel + 1} of " if info.channels > 1 else ""
            found.append(("silent-audio", f"{which}{path}"))
        if info.sampling_rate != config.sampling_rate:
            found.append(("other-rate", f"{path}: {info.sampling_rate} Hz"))
        if info.channels > 1 and channel is None:
            found.append(("many-channels", f"{path}: {info.channels} channels"))
        return found

    def _length_faults(self, cut: MonoCut) -> list[tuple[str, str]]:
        longest = self._config.max_seconds
        if longest is None or cut.duration <= longest:
            return []
        return [("too-long", f"{audio_of(cut)}: {cut.duration:.2f} s")]

    def _text_faults(self, cut: MonoCut) -> list[tuple[str, str]]:
        words = split_words(text_of(cut))
        tags = (cut.custom or {}).get(TAGS, "")
        if not words:
            where = f"{audio_of(cut)}: {tags} alone" if tags else audio_of(cut)
            return [("empty-transcript", where)]
        self.tokens += len(words)
        missing = [word for word in words if word not in self._lexicon]
        if tags:  # those trained as the noise phone are <UNK>
            missing = [word for word in missing if not is_tag(word)]
        for word in missing:
            self.oov[word].append(cut.id)
        found = []
        alphabet = set(self._config.alphabet)
        kept = [word for word in missing if is_tag(word)]
        if tags or kept:
            found.append(("tag", tags or " ".join(dict.fromkeys(kept))))
        spoken = [word for word in words if word in self._lexicon or not is_tag(word)]
        foreign = {word: self._outside(word, alphabet) for word in dict.fromkeys(spoken)}
        if outside := sorted(set().union(*foreign.values())):
            where = ", ".join(repr(word) for word, letters in foreign.items() if letters)
            found.append(("bad-characters", f"{' '.join(outside)} in {where}"))
        if mixed := word_of_two_alphabets(text_of(cut)):
            found.append(("mixed-alphabets", repr(mixed)))
        if all(not self._spellable(word) for word in words):
            found.append(("unspellable", " ".join(words)))
        if missing:
            kind = "all-oov" if len(missing) == len(words) else "oov"
            share = f"{len(missing)} of {len(words)} words"
            found.append((kind, f"{share}: {' '.join(dict.fromkeys(missing))}"))
        need, have = self._min_frames(words), math.floor(cut.duration * 100 + 1e-6)
        if cut.duration > 0 and have < need:
            detail = (
                f"{audio_of(cut)}: {cut.duration:.2f} s for {len(words)} words, which take at "
                f"least {need / 100:.2f} s"
            )
            found.append(("too-short" if is_train(self.split) else "short-test", detail))
        return found

    def _outside(self, word: str, alphabet: set[str]) -> set[str]:
        """Characters outside the alphabet; words of the lexicon may have digits and symbols."""
        outside = {*word} - alphabet
        if word in self._lexicon:
            return {c for c in outside if unicodedata.category(c)[0] in "LM"}
        return outside

    def _spellable(self, word: str) -> bool:
        """Whether the lexicon has the word or its letters allow a guess."""
        return word in self._lexicon or any(
            letter.isalpha() and letter in self._config.alphabet for letter in word
        )

    def _min_frames(self, words: list[str]) -> int:
        """Frames of 10 ms that the words' phones take at least; half the letters where unknown."""
        phones = sum(self._lexicon.get(word, math.ceil(len(word) / 2)) for word in words)
        return phones * self._config.frames_per_phone


def _at_fault(cut: MonoCut) -> bool:
    """Whether the cut was made without audio or transcript of its own, and is excluded for that."""
    return "fault" in (cut.custom or {})


def between_splits(
    splits: Mapping[str, list[MonoCut]], info: Mapping[str, AudioInfo]
) -> list[Finding]:
    """Find speakers and ids shared by splits, splits of one speaker, and repeated utterances.

    A split that was held out of the training data has the speakers that it was given, see
    `toolkit.corpus.split`: one speaker is no finding, shared ones are a note for the split.
    """
    found, chosen = [], set()
    owners: dict[str, dict[str, list[str]]] = {"speaker-overlap": {}, "shared-id": {}}
    for split, cuts in splits.items():
        speakers = {speaker_of(cut) for cut in cuts}
        if all(HELD_OUT in (cut.custom or {}) for cut in cuts):
            chosen.add(split)
        elif len(speakers) == 1:
            detail = f"all {len(cuts)} utterances have the speaker {next(iter(speakers))!r}"
            found.append(Finding("one-speaker", split, split, detail))
        for speaker in speakers:
            owners["speaker-overlap"].setdefault(speaker, []).append(split)
        for id in {cut.id for cut in cuts}:
            owners["shared-id"].setdefault(id, []).append(split)
    for kind, names in owners.items():
        for name, where in sorted(names.items()):
            own = [s for s in where if s not in chosen] if kind == "speaker-overlap" else where
            chosen_alone = len(own) < 2 and all(map(is_train, own))
            if len(where) > 1 and not chosen_alone:
                found.append(Finding(kind, own[-1], name, f"in {', '.join(where)}"))
    for split in filter(chosen.__contains__, splits):
        shared = [where for where in owners["speaker-overlap"].values() if len(where) > 1]
        if known := sum(split in where for where in shared):
            detail = f"{known} of its speakers are in other splits too"
            found.append(Finding("known-speakers", split, split, detail))
    return found + _same_audio_and_text(splits, info)


def _same_audio_and_text(
    splits: Mapping[str, list[MonoCut]], info: Mapping[str, AudioInfo]
) -> list[Finding]:
    found = []
    first: dict[tuple[str, int | None, float, float, str], tuple[str, str]] = {}
    for split, cuts in splits.items():
        copies: Counter[str] = Counter()
        for cut in cuts:
            copies[cut.id] += 1
            known = info.get(audio_of(cut))
            if known is None or not known.digest or not text_of(cut) or _at_fault(cut):
                continue
            key = (known.digest, channel_of(cut), cut.start, cut.duration, text_of(cut))
            other = first.setdefault(key, (split, cut.id))
            if other != (split, cut.id):
                detail = f"{audio_of(cut)} is the same as that of {other[1]} in {other[0]}"
                found.append(Finding("same-audio-and-text", split, cut.id, detail, copies[cut.id]))
    return found
