"""Settings of corpora and of their check, and the names of the corpus readers in `local`."""

import difflib
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from toolkit.config.fields import (
    NonNegativeInt,
    Positive,
    PositiveInt,
    Range,
    SamplingRate,
    Settings,
    Share,
)
from toolkit.storage.lines import MAX_FAULTY, MIN_FAULTY
from toolkit.storage.paths import parse_mapping

_READER = re.compile(r"^(?:def manifests\(|manifests\s*=)", re.MULTILINE)


def reader_names(folder: Path | None = None) -> list[str]:
    """List the corpus readers in `folder`, by default `local`, without importing them."""
    folder = _local_folder() if folder is None else folder
    if folder is None:
        return []
    names = {path.stem for path in folder.glob("*.py")}
    names |= {path.parent.name for path in folder.glob("*/__init__.py")}
    return sorted(name for name in names if _is_reader(folder, name))


def reader_exists(name: str) -> bool:
    """Return whether a corpus reader has this name.

    Without a package `local` (the toolkit is installed without its repository) every name is
    accepted, because no corpus can be read there anyway.
    """
    folder = _local_folder()
    return folder is None or (name.isidentifier() and _is_reader(folder, name))


def _local_folder() -> Path | None:
    """Return the folder of the package `local`."""
    spec = find_spec("local")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) if folders else None


def _is_reader(folder: Path, name: str) -> bool:
    """Whether the module `name` of the folder is a corpus reader."""
    if name.startswith("_"):
        return False
    files = [folder / f"{name}.py", folder / name / "__init__.py"]
    return any(file.is_file() and _READER.search(file.read_text("utf-8")) for file in files)


@dataclass(frozen=True)
class CorpusConfig(Settings):
    """Settings of a corpus and its splits."""

    name: str = "synthetic"
    """Reader, a module of `local`: "synthetic" (offline demo), "librispeech", "an4", "kaldi" (data
    directories), "table" (a CSV file), "cuts" (files of lhotse's cuts), or one of your own."""
    root: Path | None = None
    """Folder of the corpus, or its file. None: the demo corpus is generated, and LibriSpeech's
    parts are downloaded."""
    train: str = "train*"
    """Pattern of the parts that are merged into the split "train"."""
    dev: str = "dev*"
    """Pattern of the parts to tune on; each becomes a split of the same name. If no part matches,
    "dev" is held out of train; see `hold_out`."""
    test: str = "test*"
    """Pattern of the parts to report on; each becomes a split of the same name."""
    dev_speakers: PositiveInt = 3
    """Number of speakers held out as "dev" if the corpus has no such part."""
    test_speakers: PositiveInt = 3
    """Number of speakers held out as "test" if the corpus has no such part."""
    rotation: NonNegativeInt = 0
    """Which group of speakers or utterances is held out: 0 is the first group, 1 the next, ..."""
    hold_out: Literal["speakers", "utterances"] = "speakers"
    """What is held out where there is no dev or test part: whole speakers, or utterances of all
    speakers (for a corpus with too few speakers). With utterances, error rates are those of
    speakers seen in training."""
    held_out_share: Annotated[float, Range(above=0, most=0.4)] = 0.1
    """With hold_out="utterances", the share of utterances in each of dev and test."""
    hours: Positive | None = None
    """Use at most this many hours of training speech: whole utterances, drawn evenly. None: all."""
    allow_pipes: bool = False
    """Run the shell commands (`cmd |`) of a Kaldi wav.scp. They can do anything, so allow them only
    for data of your own."""
    pipes: Path | None = None
    """Folder that keeps the output of the commands in wav.scp; needed with `allow_pipes`."""
    features: Literal["audio", "kaldi"] = "audio"
    """Source of the features. "audio": they are extracted from the audio. "kaldi": they are the
    matrices of feats.scp in Kaldi data directories, which then need no audio. Copies at other
    speeds or with noise (`augment`) and the bundles of the last stage need audio."""
    speakers: Literal["recording", "auto"] = "recording"
    """Speakers of utterances without a speaker label. "recording": each recording counts as a
    separate speaker. "auto": stage 2 clusters the recordings of each split by their sound, see
    `toolkit.features.speakers`."""
    map_paths: tuple[str, ...] = ()
    """Mappings `OLD=NEW`: files that the corpus names below the folder OLD (audio, archives of
    features) are read from NEW. If several mappings fit, the one with the longest OLD is used."""

    def check(self) -> None:
        """Raise a ValueError for an invalid reader, path mapping or feature source."""
        if not reader_exists(self.name):
            raise ValueError(_no_reader(self.name))
        if self.features == "kaldi" and self.name != "kaldi":
            raise ValueError(f"features='kaldi' needs name='kaldi', not {self.name!r}")
        for mapping in self.map_paths:
            parse_mapping(mapping)


def _no_reader(name: str) -> str:
    """Return the message for an unknown reader."""
    names = reader_names()
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"`name` must be one of {', '.join(names)}, the readers in local/, not {name!r}{hint}"


@dataclass(frozen=True)
class CheckConfig(Settings):
    """Settings of the check: what counts as a fault, and how many utterances may be excluded."""

    alphabet: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ'"
    """Characters that words may have."""
    sampling_rate: SamplingRate = 16000
    """Rate in Hz that audio is resampled to; files of other rates are noted."""
    frames_per_phone: PositiveInt = 3
    """Smallest number of 10 ms frames of a phone: the number of emitting states of its HMM."""
    max_seconds: Positive | None = None
    """Training utterances longer than this are excluded; None: no limit."""
    max_excluded: Share = MAX_FAULTY
    """Largest share of a split's utterances that may be excluded; see also `min_excluded`."""
    min_excluded: NonNegativeInt = MIN_FAULTY
    """Number of a split's utterances that may be excluded whatever their share, for tiny corpora.
    """
    listed: PositiveInt = 5
    """Largest number of utterances that report.txt names for each split and kind of error or
    warning; for notes at most three. findings.tsv names all."""

    def check(self) -> None:
        """Raise a ValueError for an empty alphabet."""
        if not self.alphabet:
            raise ValueError("`alphabet` must not be empty")
