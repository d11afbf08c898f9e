"""The kinds of faults that the check finds, and how to fix each."""

from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True)
class Kind:
    """One kind of finding."""

    severity: str
    """"error": something is excluded; "warning": look at it; "note": nothing needs doing."""
    excluded_from: str
    """Splits that leave the utterance out: "all", "train" or "none"."""
    title: str
    """Short description."""
    fix: str
    """How to fix it."""


KINDS: dict[str, Kind] = {
    "missing-audio": Kind(
        ERROR,
        "all",
        "transcript without audio",
        "add the file, correct its path, or delete the line",
    ),
    "unreadable-audio": Kind(
        ERROR,
        "all",
        "audio that cannot be read",
        "copy the file again from its source, convert it to WAV or FLAC, or delete it",
    ),
    "empty-audio": Kind(
        ERROR, "all", "audio without samples", "copy the file again from its source, or delete it"
    ),
    "truncated-audio": Kind(
        ERROR,
        "all",
        "audio shorter than its header says, or that cannot be decoded to its end",
        "copy the file again from its source (a broken download or a full disk)",
    ),
    "open-end": Kind(
        WARNING,
        "none",
        "Ogg audio whose end is not marked, so that it may be truncated",
        "copy the file again from its source, if what is said ends too early",
    ),
    "scaled-samples": Kind(
        ERROR,
        "all",
        "float samples scaled to integers, far beyond [-1, 1]",
        "divide them by 32768, or write 16-bit integers",
    ),
    "missing-features": Kind(
        ERROR,
        "all",
        "transcript without features",
        "compute the features, or delete the line",
    ),
    "unreadable-features": Kind(
        ERROR,
        "all",
        "features that cannot be read, or with values that are no numbers",
        "compute them again, or copy their archive again from its source; name archives by paths "
        "that exist (--map-path OLD=NEW, corpus.map_paths)",
    ),
    "empty-features": Kind(
        ERROR, "all", "features without frames", "compute them again, or delete the utterance"
    ),
    "other-dimension": Kind(
        ERROR,
        "all",
        "another number of values per frame than most features",
        "compute all features with the same configuration",
    ),
    "no-channel": Kind(
        ERROR,
        "all",
        "utterance on a channel that its file does not have, or on none where others name theirs",
        "correct its channel: A or 1 for the first, B or 2 for the second",
    ),
    "refused-pipe": Kind(
        ERROR,
        "all",
        "shell command in a wav.scp, not run",
        "write the audio to a file and name that; in data you trust set corpus.allow_pipes=true "
        "and corpus.pipes=FOLDER (toolkit new-corpus --pipes FOLDER)",
    ),
    "bad-segment": Kind(
        ERROR,
        "all",
        "segment outside its recording",
        "correct its times in `segments` or the table",
    ),
    "missing-transcript": Kind(
        ERROR,
        "all",
        "audio or features without a transcript",
        "add a transcript line, or delete the audio or the line of feats.scp",
    ),
    "empty-transcript": Kind(
        ERROR, "all", "transcript without words", "write what is said, or delete the line"
    ),
    "duplicate-id": Kind(
        ERROR,
        "all",
        "utterance id used twice in the same split (the first is kept)",
        "give each utterance an id of its own, or delete the copies",
    ),
    "too-short": Kind(
        ERROR,
        "train",
        "audio too short for its transcript",
        "see whether the transcript belongs to the audio; check the segment's times",
    ),
    "too-long": Kind(
        ERROR,
        "train",
        "audio longer than check.max_seconds",
        "cut it into segments, or raise check.max_seconds",
    ),
    "unspellable": Kind(
        ERROR,
        "train",
        "only words that have no pronunciation and cannot be given one",
        "write the words out in letters, or add them to the lexicon",
    ),
    "silent-audio": Kind(
        ERROR,
        "train",
        "all samples are zero, or channels cancel each other in their mean",
        "record it again, keep one channel, or delete it",
    ),
    "duplicate-recording": Kind(
        WARNING,
        "none",
        "recording id used twice in wav.scp (the first is read)",
        "give each recording an id of its own, or delete the other lines",
    ),
    "other-frames": Kind(
        WARNING,
        "none",
        "another number of frames than utt2num_frames, segments or utt2dur say",
        "see whether these files and feats.scp were made together: features of other audio have "
        "the wrong transcript",
    ),
    "same-audio-and-text": Kind(
        WARNING,
        "none",
        "same audio, or features, and transcript as another utterance",
        "delete the copy; a copy of a test utterance in train makes the result too good",
    ),
    "speaker-overlap": Kind(
        WARNING,
        "none",
        "speaker in more than one split",
        "move the speaker to one split: results on speakers seen in training are too good",
    ),
    "known-speakers": Kind(
        NOTE,
        "none",
        "utterances held out of speakers that are trained on (corpus.hold_out=utterances)",
        "nothing; but error rates are those of known speakers, who are easier to recognise",
    ),
    "shared-id": Kind(
        WARNING,
        "none",
        "utterance id in more than one split",
        "see whether the same utterance is in both; give each an id of its own",
    ),
    "one-speaker": Kind(
        WARNING,
        "none",
        "split with one speaker",
        "make sure that the corpus names its speakers: normalisation and splits use them",
    ),
    "no-speaker": Kind(
        WARNING,
        "none",
        "utterance whose speaker is not named: its recording, or a cluster of recordings, is one",
        "name its speaker in utt2spk or the table: normalisation, adaptation and splits go by "
        "speaker; corpus.speakers=auto clusters recordings",
    ),
    "two-speakers": Kind(
        WARNING,
        "none",
        "utterance with two speakers in utt2spk (the first is kept)",
        "delete the wrong line",
    ),
    "bad-characters": Kind(
        WARNING,
        "none",
        "characters outside the alphabet",
        "write numbers and symbols out as the words that are said; add a letter of the language to "
        "check.alphabet",
    ),
    "mixed-alphabets": Kind(
        WARNING,
        "none",
        "word with letters of two alphabets, which looks like another word",
        "type the letters that look alike, such as A, O and i, in the alphabet of the language",
    ),
    "tag": Kind(
        NOTE,
        "none",
        "tags in brackets, such as [laughter] and <long pause>, which are left out of transcripts",
        "nothing; lang.tags=noise trains them as the noise phone, lang.tags=keep reads them as "
        "words, and as-given text keeps those that the lexicon has",
    ),
    "all-oov": Kind(
        WARNING,
        "none",
        "transcript without any word of the lexicon",
        "check language and spelling; add the words to the lexicon: all pronunciations are guesses",
    ),
    "short-test": Kind(
        WARNING,
        "none",
        "audio too short for its transcript (still decoded and scored)",
        "see whether the transcript belongs to the audio; check the segment's times",
    ),
    "other-length": Kind(
        WARNING,
        "none",
        "recording longer than its manifest says; all of it is used",
        "write the manifest of the recordings again, or give the times of the utterance",
    ),
    "trimmed-segment": Kind(
        NOTE,
        "none",
        "segment that ended a frame to 0.5 s past its recording, trimmed",
        "correct its end in `segments` (-1 means the end of the recording)",
    ),
    "replaced-pipe": Kind(
        NOTE,
        "none",
        "command that only decodes a file: the file is read instead of running it",
        "nothing; to avoid this note, name the file itself in wav.scp",
    ),
    "other-rate": Kind(
        NOTE,
        "none",
        "sampling rate other than check.sampling_rate, will be resampled",
        "nothing; but speech recorded at 8 kHz has no energy above 4 kHz",
    ),
    "many-channels": Kind(
        NOTE,
        "none",
        "more than one channel, will be averaged to one",
        "nothing; but name the channel of each utterance if they hold different talkers",
    ),
    "oov": Kind(
        NOTE,
        "none",
        "some words are not in the lexicon; those with letters get guessed pronunciations",
        "add frequent ones to the lexicon, write numbers out: see oov.tsv",
    ),
    "bad-line": Kind(
        ERROR,
        "all",
        "line of a table with more or fewer fields than its first line names columns",
        "put a text with the separator in it in quotation marks, or complete the line",
    ),
    "not-utf8": Kind(
        ERROR,
        "all",
        "line with bytes that are not UTF-8, shown as \\xNN",
        "type the letters of these lines again, in UTF-8",
    ),
}
"""Kinds by name, in the order of the report."""


@dataclass(frozen=True)
class Finding:
    """One fault of one utterance (or speaker, or split)."""

    kind: str
    """Name in `KINDS`."""
    split: str
    """The split it was found in."""
    id: str
    """Utterance, speaker (speaker-overlap) or split (one-speaker)."""
    detail: str
    """The file and what is wrong with it."""
    copy: int = 1
    """Which cut of this id in the split: 1 is the first."""

    @property
    def excluded(self) -> bool:
        """Whether later stages leave the utterance out."""
        scope = KINDS[self.kind].excluded_from
        return scope == "all" or (scope == "train" and is_train(self.split))


def is_train(split: str) -> bool:
    """Tell whether a split is trained on: its faults exclude more than those of a test split."""
    return split.startswith("train")
