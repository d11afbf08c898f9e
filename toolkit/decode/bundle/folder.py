"""The folder `final` of a run: bundles of the best systems, and which to use."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from toolkit.config.convert import from_plain
from toolkit.decode.bundle.ctc.recogniser import CtcRecogniser
from toolkit.decode.bundle.ctc.settings import is_ctc
from toolkit.decode.bundle.recogniser import Recogniser
from toolkit.decode.bundle.settings import ADVICE, SETTINGS, BundleError, read_settings
from toolkit.decode.bundle.speaker import SpeakerRecogniser
from toolkit.storage.files import write_atomically
from toolkit.storage.names import path_below
from toolkit.storage.reading import read_json, reading

SYSTEMS = "systems.json"
Role = Literal["speaker_known", "speaker_unknown", "stream"]
"""What a system is the best for: recordings whose speakers are named, recordings whose speakers
are not, streams."""


@dataclass(frozen=True)
class BundledSystem:
    """A system in the folder, and what it reached when it was written."""

    name: str
    """Its name, and that of its folder."""
    lm: str
    """The language model of its last pass."""
    streams: bool
    """Whether it can recognise a stream."""
    wer: dict[str, float]
    """WER in percent by split, with speakers known."""
    roles: tuple[Role, ...]
    """What it is the best for."""


def write_systems(folder: Path, systems: Sequence[BundledSystem]) -> None:
    """Write `systems.json`: the systems whose bundles are in the folder, the best first."""
    plain = [asdict(system) for system in systems]
    write_atomically(folder / SYSTEMS, json.dumps(plain, indent=1) + "\n")


def read_systems(folder: Path) -> list[BundledSystem]:
    """Read what `write_systems` wrote.

    Raises:
      BundleError: it cannot be read.
    """
    path = folder / SYSTEMS
    with reading(path, BundleError, ADVICE):
        systems = [from_plain(BundledSystem, plain) for plain in read_json(path, [{}])]
        if not systems:
            raise ValueError("no systems")
        return systems


def find_system(model: Path, system: str | None = None, role: Role = "speaker_unknown") -> Path:
    """The folder of a system's bundle.

    Args:
      model: a run's `final`, or the bundle of one system.
      system: the system's name; None: the best for `role`.
      role: what is recognised; a system that is named must be able to do it.

    Raises:
      BundleError: there is no such system.
      UnsafePathError: its name leads out of the folder.
    """
    if not (model / SYSTEMS).exists():
        if system is not None and ((model / SETTINGS).exists() or is_ctc(model)):
            raise BundleError(f"{model} holds one system alone: leave out --system")
        return model
    systems = read_systems(model)
    names = ", ".join(candidate.name for candidate in systems)
    if system is not None and system not in [candidate.name for candidate in systems]:
        raise BundleError(f"{model} has no system {system!r}, but {names}")
    able = [candidate for candidate in systems if candidate.streams or role != "stream"]
    if system is not None:
        able = [candidate for candidate in able if candidate.name == system]
    if not able:
        raise BundleError(
            f"no LSTM of one direction and no TDNN-F on log-mel features in {model}"
            f" ({system or names}), which a stream needs: transcribe without --stream"
        )
    best = next((candidate for candidate in able if role in candidate.roles), able[0])
    return path_below(model, best.name)


def find_network(model: Path) -> Path:
    """The bundle whose network `toolkit export` exports.

    Of several systems the best that can recognise a stream, or a CTC network.

    Raises:
      BundleError: there is no such system.
    """
    if (model / SYSTEMS).exists():
        ctc = [path_below(model, candidate.name) for candidate in read_systems(model)]
        ctc = [bundle for bundle in ctc if is_ctc(bundle)]
        if ctc:
            return ctc[0]
    return find_system(model, role="stream")


def find_ctc(model: Path) -> Path | None:
    """The bundle of a CTC network that a folder is or holds; None if there is none."""
    for folder in (model, model / "final"):
        if is_ctc(folder):
            return folder
        if (folder / SYSTEMS).exists():
            found = [path_below(folder, one.name) for one in read_systems(folder)]
            return next(filter(is_ctc, found), None)
    return None


def adapts_to_speakers(bundle: Path) -> bool:
    """Whether a system's features depend on all recordings of a speaker.

    Raises:
      BundleError: its settings cannot be read.
    """
    return (bundle / SETTINGS).exists() and read_settings(bundle).by_speaker


def load_recogniser(
    bundle: Path, device: str = "cpu", fast: bool = False, int8: bool = False
) -> Recogniser | SpeakerRecogniser | CtcRecogniser:
    """The recogniser of one system's bundle.

    Args:
      bundle: its folder.
      device: where a network computes.
      fast: leave out rescoring.
      int8: compute in 8 bits, which CTC networks can on the CPU.

    Raises:
      BundleError: the folder is no bundle, or its network cannot compute in 8 bits there.
    """
    ctc = is_ctc(bundle)
    settings = None if ctc else read_settings(bundle)
    if int8 and not (ctc and device == "cpu"):
        raise BundleError(f"{bundle}: only CTC networks on the CPU compute in 8 bits (--int8)")
    if settings is None:
        return CtcRecogniser(bundle, device, fast, int8)
    kind = SpeakerRecogniser if settings.by_speaker else Recogniser
    return kind(bundle, device, fast)
