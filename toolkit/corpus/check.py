"""Finds all faults of a corpus before any expensive step runs on it."""

import hashlib
import logging
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from lhotse import MonoCut

from toolkit.corpus.audio import (
    CHAINED,
    FLOATS,
    SampleScale,
    missing_samples,
    open_audio,
    rate_fault,
)
from toolkit.corpus.audio_headers import ogg_end
from toolkit.corpus.config import CheckConfig
from toolkit.corpus.findings import (
    ERROR,
    FINDING_KINDS,
    WARNING,
    Exclusion,
    Finding,
    SplitSummary,
    is_train,
    write_exclusions,
    write_oov,
    write_report,
)
from toolkit.corpus.manifest import (
    HELD_OUT,
    NO_SPEAKER,
    OTHER_SPEAKER,
    TAGS,
    audio_of,
    channel_of,
    has_audio,
    read_cuts,
    speaker_of,
    text_of,
)
from toolkit.corpus.tags import is_event_tag, word_of_two_alphabets
from toolkit.errors import ToolkitError
from toolkit.processes.workers import map_in_processes
from toolkit.storage.digests import FileDigest, file_digest
from toolkit.storage.lines import split_words
from toolkit.storage.reading import regular

FILES_PER_TASK = 16
BLOCK = 1 << 18
ZEROS_SECONDS, MOST_ZEROS = 0.2, 0.1
"""Length of a span of zeros that counts as digital silence; share of them that is reported."""
FULL_SCALE, CLIPPED_RUN, MOST_CLIPPED = 32700, 3, 0.001
"""16-bit magnitude, and consecutive samples of it, that count as clipped; share that is reported.
A single sample at full scale may be a peak."""


class Runs:
    """Counts the samples in runs of a property that are long enough, block by block.

    Args:
      least: length of the shortest run that counts.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._open = self._total = 0  # length of the run at the end; samples of finished runs

    def add(self, mask: np.ndarray) -> None:
        """Take the next samples: [S] bool, whether each has the property."""
        # Starts and ends of runs alternate; the run at the end of the last block comes first.
        edges = np.flatnonzero(np.diff(mask, prepend=self._open > 0, append=False))
        if self._open:
            edges = np.concatenate([[-self._open], edges])
        lengths = np.diff(edges.reshape(-1, 2)).ravel()
        self._open = int(lengths[-1]) if len(mask) and mask[-1] else 0
        finished = lengths[:-1] if self._open else lengths
        self._total += int(finished[finished >= self._least].sum())

    @property
    def total(self) -> int:
        """Number of samples in runs that are long enough."""
        return self._total + (self._open if self._open >= self._least else 0)


@dataclass(frozen=True)
class AudioInfo:
    """Properties of a decoded audio file."""

    path: str
    """Path of the file."""
    sampling_rate: int = 0
    """Hz; 0 where not even the header could be read."""
    channels: int = 0
    """Number of channels."""
    declared: int = 0
    """Samples per channel according to the header."""
    decoded: int = 0
    """Samples per channel that could be decoded."""
    silent: bool = False
    """Whether every sample of the mean of all channels is zero."""
    silent_channels: tuple[bool, ...] = ()
    """Whether every sample is zero, for each channel."""
    digest: str = ""
    """Digest of the 16-bit samples; empty where there are none."""
    error: str | None = None
    """The decoder's message, if it failed."""
    file: FileDigest | None = None
    """Digest of the file's bytes; None where it cannot be read."""
    not_numbers: tuple[int, int] | None = None
    """First and last sample that is infinite or NaN, in any channel."""
    bad_rate: str = ""
    """What is wrong with the sampling rate, if it is implausible."""
    bad_scale: str = ""
    """What is wrong with float samples, if they look scaled to integers."""
    open_end: bool = False
    """Whether the end of an Ogg file is not marked."""
    zeros: int = 0
    """Samples of the mean of all channels in spans of digital silence."""
    clipped: int = 0
    """Samples that are clipped, in any channel."""

    @property
    def seconds(self) -> float:
        """Duration of the samples that could be decoded."""
        return self.decoded / self.sampling_rate if self.sampling_rate else 0.0


def read_audio_info(
    paths: Iterable[str], jobs: int = 1, progress: Callable[[int, int], None] | None = None
) -> dict[str, AudioInfo]:
    """Decode every file once, in `jobs` processes; the result does not depend on `jobs`.

    `progress` is called with (files done, files).
    """
    unique = sorted(set(paths))
    tasks = [unique[i : i + FILES_PER_TASK] for i in range(0, len(unique), FILES_PER_TASK)]
    info = {}
    for results in map_in_processes(_decode_all, tasks, jobs):
        info.update({item.path: item for item in results})
        if progress is not None:
            progress(len(info), len(unique))
    return info


def _decode_all(paths: list[str]) -> list[AudioInfo]:
    """Decode the files of one task, in a worker process."""
    return [decode(path) for path in paths]


def decode(path: str) -> AudioInfo:
    """Decode a file to its end; a fault is returned among the properties, not raised."""
    rate = channels = declared = decoded = 0
    silent, digest, error = True, hashlib.blake2b(digest_size=16), None
    sounding = np.zeros(0, bool)  # [channels]
    content: FileDigest | None = None
    bad: tuple[int, int] | None = None
    scale = SampleScale()
    zeros, clipped = Runs(1), Runs(CLIPPED_RUN)
    end = ""
    try:
        content = file_digest(regular(path))  # first: the decoder then finds the file in memory
        with open_audio(path, in_order=True) as file:
            rate, channels = file.samplerate, file.channels
            sounding = np.zeros(channels, bool)
            zeros = Runs(round(ZEROS_SECONDS * rate))
            declared = file.frames + missing_samples(path, file)
            # Floats are rounded below, because libsndfile does not scale them to integers.
            kind = "float32" if file.subtype in FLOATS else "int16"
            while len(block := file.read(BLOCK, dtype=kind, always_2d=True)) > 0:
                if kind == "float32":
                    # Indices of samples that are infinite or NaN in some channel
                    invalid = np.flatnonzero(~np.isfinite(block).all(axis=1)) + decoded
                    if len(invalid):
                        bad = (bad[0] if bad else int(invalid[0]), int(invalid[-1]))
                    scale.add(block.mean(axis=1))
                    block = _int16(block)
                decoded += len(block)
                mute = block.sum(axis=1, dtype=np.int64) == 0
                silent = silent and bool(mute.all())
                zeros.add(mute)
                is_full = (block >= FULL_SCALE) | (block <= -FULL_SCALE)
                clipped.add(is_full.any(axis=1))
                if not sounding.all():
                    sounding |= np.any(block, axis=0)
                digest.update(block.tobytes())
            if file.format == "OGG":
                with open(path, "rb") as pages:
                    end = ogg_end(pages)
                error = CHAINED if end == "chained" else None
    except (soundfile.SoundFileError, OSError) as problem:
        error = str(problem).rstrip(": ")
    return AudioInfo(
        path,
        rate,
        channels,
        declared,
        decoded,
        silent,
        tuple((~sounding).tolist()),
        digest.hexdigest() if decoded else "",
        error,
        content,
        bad,
        rate_fault(rate) if rate else "",
        scale.fault,
        end == "open",
        zeros.total,
        clipped.total,
    )


def _int16(samples: np.ndarray) -> np.ndarray:
    """Round samples in [-1, 1] to 16 bits, so that a copy stored as floats has the same digest."""
    scaled = np.rint(np.nan_to_num(samples).clip(-1, 1) * np.float32(32768))
    return scaled.clip(max=32767).astype(np.int16)


FeatureFaults = Mapping[tuple[str, str, int], Sequence[tuple[str, str]]]
"""Faults of features as (kind, detail), by (split, utterance id, which cut of this id, from 1)."""


def reader_faults(cut: MonoCut, copy: int) -> Iterator[tuple[str, str]]:
    """Yield (kind, detail) of a cut's faults that are known without decoding its audio.

    These are a repeated id, and the faults that the corpus reader found.

    Args:
      copy: which cut of this id in the split; 1 is the first.
    """
    if copy > 1:
        yield "duplicate-id", f"copy {copy}: {audio_of(cut)}"
    if _at_fault(cut):
        yield cut.custom["fault"], cut.custom["fault_detail"]


def speaker_faults(cut: MonoCut) -> Iterator[tuple[str, str]]:
    """Yield (kind, detail) of faults in a cut's speaker; none if its reader excluded the cut."""
    custom = cut.custom or {}
    if _at_fault(cut):
        return
    if NO_SPEAKER in custom:
        yield "no-speaker", custom[NO_SPEAKER]
    if OTHER_SPEAKER in custom:
        yield "two-speakers", custom[OTHER_SPEAKER]


class SplitChecker:
    """Finds the faults of the utterances of one split, checked in order.

    Args:
      info: properties of the decoded audio by path.
      lexicon: smallest number of phones by word.
      feature_faults: faults of the features of cuts that have features instead of audio.
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
        """Utterances by out-of-vocabulary word, one entry per token."""
        self.tokens = 0
        """Words of the transcripts."""
        self._info = info
        self._lexicon = lexicon
        self._config = config
        self._feature_faults = feature_faults or {}
        self._copies: Counter[str] = Counter()  # cuts of each id so far

    def check(self, cut: MonoCut) -> list[Finding]:
        """Return the findings about the next utterance of the split."""
        self._copies[cut.id] += 1
        copy = self._copies[cut.id]
        faults = [*reader_faults(cut, copy)]
        custom = cut.custom or {}
        if not _at_fault(cut):
            if has_audio(cut):
                faults += self._audio_faults(cut, self._info[audio_of(cut)])
            else:
                faults += self._feature_faults.get((self.split, cut.id, copy), ())
            faults += self._length_faults(cut)
            faults += self._text_faults(cut)
            faults += speaker_faults(cut)
        if "note" in custom:
            faults.append((custom["note"], custom["note_detail"]))
        return [Finding(kind, self.split, cut.id, detail, copy) for kind, detail in faults]

    def _audio_faults(self, cut: MonoCut, info: AudioInfo) -> list[tuple[str, str]]:
        """Return (kind, detail) of the audio's faults; a fatal fault is returned alone."""
        path, config = info.path, self._config
        if info.error is not None or info.decoded < info.declared:
            cause = info.error or "the file ends there"
            detail = f"{path}: {info.decoded} of {info.declared} samples ({cause})"
            return [("truncated-audio" if info.declared else "unreadable-audio", detail)]
        if info.decoded == 0:
            return [("empty-audio", path)]
        if info.bad_rate:
            return [("unreadable-audio", f"{path}: {info.bad_rate}")]
        if info.not_numbers is not None:
            first, last = (sample / info.sampling_rate for sample in info.not_numbers)
            # Only cuts that overlap the bad samples are at fault.
            if cut.start <= last and first <= cut.end:
                detail = f"{path}: NaN or infinite samples from {first:.3f} to {last:.3f} s"
                return [("unreadable-audio", detail)]
        if info.bad_scale:
            return [("scaled-samples", f"{path}: {info.bad_scale}")]
        faults = [("open-end", path)] if info.open_end else []
        channel = channel_of(cut)
        if channel is not None and not channel < info.channels:
            count = f"{info.channels} channel{'s' if info.channels > 1 else ''}"
            return [("no-channel", f"no channel {channel + 1}, but {count} in {path}")]
        # Without a channel the mean of all channels is used, and may be silent.
        if channel is None and info.silent:
            faults.append(("silent-audio", path))
        elif channel is not None and info.silent_channels[channel]:
            channel_text = f"channel {channel + 1} of " if info.channels > 1 else ""
            faults.append(("silent-audio", f"{channel_text}{path}"))
        elif info.zeros > MOST_ZEROS * info.decoded and cut.duration > 0.99 * info.seconds:
            share = 100 * info.zeros / info.decoded
            faults.append(("digital-silence", f"{path}: {share:.0f} % of the samples"))
        if info.clipped > MOST_CLIPPED * info.decoded:
            share = 100 * info.clipped / info.decoded
            faults.append(("clipped-audio", f"{path}: {share:.1f} % of the samples"))
        if info.sampling_rate != config.sampling_rate:
            faults.append(("other-rate", f"{path}: {info.sampling_rate} Hz"))
        if info.channels > 1 and channel is None:
            faults.append(("many-channels", f"{path}: {info.channels} channels"))
        return faults

    def _length_faults(self, cut: MonoCut) -> list[tuple[str, str]]:
        """Return (kind, detail) of the fault of an utterance that is too long."""
        max_seconds = self._config.max_seconds
        if max_seconds is None or cut.duration <= max_seconds:
            return []
        return [("too-long", f"{audio_of(cut)}: {cut.duration:.2f} s")]

    def _text_faults(self, cut: MonoCut) -> list[tuple[str, str]]:
        """Return (kind, detail) of the transcript's faults, and count its words."""
        words = split_words(text_of(cut))
        tags = (cut.custom or {}).get(TAGS, "")
        if not words:
            where = f"{audio_of(cut)}: only {tags}" if tags else audio_of(cut)
            return [("empty-transcript", where)]
        # 1. Words that the lexicon lacks.
        self.tokens += len(words)
        missing = [word for word in words if word not in self._lexicon]
        if tags:  # tags that are trained as the noise phone are <UNK> in the transcript
            missing = [word for word in missing if not is_event_tag(word)]
        for word in missing:
            self.oov[word].append(cut.id)
        # 2. Tags, and characters outside the alphabet in the other words.
        faults = []
        alphabet = set(self._config.alphabet)
        unknown_tags = [word for word in missing if is_event_tag(word)]
        if tags or unknown_tags:
            faults.append(("tag", tags or " ".join(dict.fromkeys(unknown_tags))))
        spoken = [word for word in words if word in self._lexicon or not is_event_tag(word)]
        foreign = {word: self._outside(word, alphabet) for word in dict.fromkeys(spoken)}
        if outside := sorted(set().union(*foreign.values())):
            where = ", ".join(repr(word) for word, letters in foreign.items() if letters)
            faults.append(("bad-characters", f"{' '.join(outside)} in {where}"))
        if mixed := word_of_two_alphabets(text_of(cut)):
            faults.append(("mixed-alphabets", repr(mixed)))
        # 3. Words without a pronunciation, and without letters from which to guess one.
        if all(not self._spellable(word) for word in words):
            faults.append(("unspellable", " ".join(words)))
        if missing:
            kind = "all-oov" if len(missing) == len(words) else "oov"
            share = f"{len(missing)} of {len(words)} words"
            faults.append((kind, f"{share}: {' '.join(dict.fromkeys(missing))}"))
        # 4. Frames of 10 ms for the words' phones; the small term absorbs rounding of the duration.
        min_frames, num_frames = self._min_frames(words), math.floor(cut.duration * 100 + 1e-6)
        if cut.duration > 0 and num_frames < min_frames:
            detail = (
                f"{audio_of(cut)}: {cut.duration:.2f} s for {len(words)} words, which take at "
                f"least {min_frames / 100:.2f} s"
            )
            faults.append(("too-short" if is_train(self.split) else "short-test", detail))
        return faults

    def _outside(self, word: str, alphabet: set[str]) -> set[str]:
        """Return the characters outside the alphabet; lexicon words may contain symbols."""
        outside = {*word} - alphabet
        if word in self._lexicon:
            return {c for c in outside if unicodedata.category(c)[0] in "LM"}
        return outside

    def _spellable(self, word: str) -> bool:
        """Whether the lexicon has the word, or G2P can guess it from its letters."""
        return word in self._lexicon or any(
            letter.isalpha() and letter in self._config.alphabet for letter in word
        )

    def _min_frames(self, words: list[str]) -> int:
        """Return the fewest frames (10 ms) in which the words can be spoken."""
        # An unknown word counts as half as many phones as it has letters.
        phones = sum(self._lexicon.get(word, math.ceil(len(word) / 2)) for word in words)
        return phones * self._config.frames_per_phone


def _at_fault(cut: MonoCut) -> bool:
    """Whether the corpus reader excluded the cut for a fault, such as missing audio."""
    return "fault" in (cut.custom or {})


def between_splits(
    splits: Mapping[str, list[MonoCut]], info: Mapping[str, AudioInfo]
) -> list[Finding]:
    """Find speakers, ids and utterances shared by splits, and splits with a single speaker.

    For a split that `toolkit.corpus.split` held out of the training data, a single speaker is not a
    finding, and all speakers shared with other splits make one note.
    """
    findings, held_out = [], set()
    # The splits that have a speaker, and those that have an utterance id
    owners: dict[str, dict[str, list[str]]] = {"speaker-overlap": {}, "shared-id": {}}
    for split, cuts in splits.items():
        speakers = {speaker_of(cut) for cut in cuts}
        if all(HELD_OUT in (cut.custom or {}) for cut in cuts):
            held_out.add(split)
        elif len(speakers) == 1:
            detail = f"all {len(cuts)} utterances have the speaker {next(iter(speakers))!r}"
            findings.append(Finding("one-speaker", split, split, detail))
        for speaker in speakers:
            owners["speaker-overlap"].setdefault(speaker, []).append(split)
        for id in {cut.id for cut in cuts}:
            owners["shared-id"].setdefault(id, []).append(split)
    for kind, names in owners.items():
        for name, owning_splits in sorted(names.items()):
            # Speakers shared only by train and splits held out of it are not findings here.
            independent_splits = (
                [s for s in owning_splits if s not in held_out]
                if kind == "speaker-overlap"
                else owning_splits
            )
            only_training = len(independent_splits) < 2 and all(map(is_train, independent_splits))
            if len(owning_splits) > 1 and not only_training:
                detail = f"in {', '.join(owning_splits)}"
                findings.append(Finding(kind, independent_splits[-1], name, detail))
    for split in filter(held_out.__contains__, splits):
        shared = [owning for owning in owners["speaker-overlap"].values() if len(owning) > 1]
        if num_shared := sum(split in owning for owning in shared):
            detail = f"{num_shared} of its speakers are in other splits too"
            findings.append(Finding("known-speakers", split, split, detail))
    return findings + _same_audio_and_text(splits, info)


def _same_audio_and_text(
    splits: Mapping[str, list[MonoCut]], info: Mapping[str, AudioInfo]
) -> list[Finding]:
    """Find utterances that have the same samples and text as an earlier one, in any split."""
    findings = []
    first: dict[tuple[str, int | None, float, float, str], tuple[str, str]] = {}
    for split, cuts in splits.items():
        copies: Counter[str] = Counter()
        for cut in cuts:
            copies[cut.id] += 1
            audio_info = info.get(audio_of(cut))
            if audio_info is None or not audio_info.digest or not text_of(cut) or _at_fault(cut):
                continue
            key = (audio_info.digest, channel_of(cut), cut.start, cut.duration, text_of(cut))
            # The first cut with this audio and text is the original of later ones.
            original = first.setdefault(key, (split, cut.id))
            if original != (split, cut.id):
                detail = f"{audio_of(cut)}: same as utterance {original[1]} in {original[0]}"
                findings.append(
                    Finding("same-audio-and-text", split, cut.id, detail, copies[cut.id])
                )
    return findings


logger = logging.getLogger(__name__)
MAX_KINDS = 6
"""Largest number of kinds of faults that the warning names."""


class CorpusError(ToolkitError):
    """Raised when a split has too many faults to continue."""


def check(
    splits: Mapping[str, Path],
    lexicon: Mapping[str, int],
    out: Path,
    config: CheckConfig,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    add_digest: Callable[[str, FileDigest], None] | None = None,
    feature_faults: FeatureFaults | None = None,
) -> dict[str, float]:
    """Check all splits in one pass over the audio; write reports and the list of exclusions.

    Args:
      splits: manifests (`toolkit.corpus.manifest.write_cuts`) by split.
      lexicon: smallest number of phones of each word that has a pronunciation.
      out: folder for report.txt (to read), report.json (everything), findings.tsv (all findings),
        oov.tsv (split, word, count, utterances) and excluded.tsv, which `read_cuts` takes.
      jobs: processes that decode audio.
      progress: called with (files decoded, files).
      add_digest: called with the path and the digest of every file that was read.
      feature_faults: faults of the features, for a corpus that has features instead of audio, see
        `toolkit.kaldi.feature_dir`; None: the corpus has audio, which is decoded.

    Returns:
      Numbers by name: `utterances`, `excluded` (utterances), `errors`, `warnings`, `oov_percent`
      and `hours_train` (hours of training speech).

    Raises:
      CorpusError: a split has no utterance left, or has lost more than `config.min_excluded`
        utterances and more than the share `config.max_excluded`. The reports are written first.
    """
    # 1. Decode all audio once.
    cuts = {split: read_cuts(path) for split, path in splits.items()}
    readable = (
        audio_of(cut)
        for part in cuts.values()
        for cut in part
        if "fault" not in (cut.custom or {}) and has_audio(cut)
    )
    info = read_audio_info(readable, jobs, progress)
    for item in info.values():
        if add_digest is not None and item.file is not None:
            add_digest(item.path, item.file)
    # 2. Find the faults within each split, and then between splits.
    findings: list[Finding] = []
    summaries: list[SplitSummary] = []
    oov: dict[str, dict[str, list[str]]] = {}
    for split, part in cuts.items():
        checker = SplitChecker(split, info, lexicon, config, feature_faults)
        split_findings = [finding for cut in part for finding in checker.check(cut)]
        findings += split_findings
        oov[split] = checker.oov
        summaries.append(_summary(split, part, info, split_findings, checker))
    findings += between_splits(cuts, info)
    # 3. Write the reports, then fail if a split has lost too many utterances.
    exclusions = _exclusions(findings)
    write_exclusions(exclusions, out / "excluded.tsv")
    write_oov(oov, out / "oov.tsv")
    write_report(summaries, findings, oov, config, out)
    _warn(findings)
    for summary in summaries:
        _check_excluded(summary, exclusions, config, out)
    total = sum(summary.utterances for summary in summaries)
    tokens = sum(summary.tokens for summary in summaries)
    severities = Counter(FINDING_KINDS[finding.kind].severity for finding in findings)
    return {
        "utterances": total,
        "excluded": len(exclusions),
        "errors": severities[ERROR],
        "warnings": severities[WARNING],
        "oov_percent": round(100 * sum(s.oov_tokens for s in summaries) / max(tokens, 1), 2),
        "hours_train": round(sum(sum(s.seconds) for s in summaries if is_train(s.split)) / 3600, 2),
    }


def _warn(findings: list[Finding]) -> None:
    """Log the number of faults of each kind."""
    counts = Counter(f.kind for f in findings if FINDING_KINDS[f.kind].severity in (ERROR, WARNING))
    if counts:
        descriptions = [f"{count} {kind}" for kind, count in counts.most_common(MAX_KINDS)]
        num_other_kinds = len(counts) - len(descriptions)
        descriptions += [f"{num_other_kinds} more kinds"] if num_other_kinds > 0 else []
        logger.warning(
            "faults in the corpus: %s. See check/report.txt for remedies, and check/findings.tsv "
            "for all findings",
            ", ".join(descriptions),
        )


def _exclusions(findings: list[Finding]) -> list[Exclusion]:
    """Merge the findings that exclude an utterance into one exclusion each."""
    reasons: dict[tuple[str, str, int], list[str]] = {}
    for finding in findings:
        if finding.excluded:
            key = (finding.split, finding.id, finding.copy)
            reasons.setdefault(key, []).append(f"{finding.kind}: {finding.detail}")
    return [Exclusion(*key, "; ".join(texts)) for key, texts in reasons.items()]


def _summary(
    split: str,
    part: list[MonoCut],
    info: Mapping[str, AudioInfo],
    findings: list[Finding],
    checker: SplitChecker,
) -> SplitSummary:
    """Return the size, durations and word counts of a split."""
    audio_infos = [info[audio_of(cut)] for cut in part if audio_of(cut) in info]
    return SplitSummary(
        split=split,
        utterances=len(part),
        excluded=len({(f.id, f.copy) for f in findings if f.excluded}),
        speakers=len({speaker_of(cut) for cut in part}),
        seconds=sorted(cut.duration for cut in part if cut.duration > 0),
        tokens=checker.tokens,
        types=len({word for cut in part for word in split_words(text_of(cut))}),
        oov_tokens=sum(map(len, checker.oov.values())),
        oov_types=len(checker.oov),
        formats=Counter(
            (item.sampling_rate, item.channels) for item in audio_infos if item.decoded
        ),
    )


def _check_excluded(
    summary: SplitSummary, exclusions: list[Exclusion], config: CheckConfig, out: Path
) -> None:
    """Raise CorpusError if a split has too many excluded utterances."""
    num_excluded, total = summary.excluded, summary.utterances
    if num_excluded < total and (
        num_excluded <= config.min_excluded or num_excluded <= config.max_excluded * total
    ):
        return
    kinds = Counter(
        item.reason.partition(":")[0] for item in exclusions if item.split == summary.split
    )
    reasons = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))
    limits = (
        f", or raise `check.max_excluded` ({config.max_excluded:g} of a split) or"
        f" `check.min_excluded` ({config.min_excluded} utterances)"
        if num_excluded < total
        else ""
    )
    raise CorpusError(
        f"{num_excluded} of {total} utterances of {summary.split!r} cannot be used"
        f" ({reasons or 'the split is empty'}). Read {out / 'report.txt'} and correct the"
        f" faults{limits}"
    )
