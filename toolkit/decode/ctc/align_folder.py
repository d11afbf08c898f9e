"""Alignment of a folder of audio with its texts by a CTC network."""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from toolkit.align.folder import FileOutcome, textgrid_path, write_outcomes
from toolkit.align.inputs import Recording, read_inputs
from toolkit.align.times import TimedToken, write_ctm, write_textgrid
from toolkit.corpus.audio_file import open_audio
from toolkit.decode.ctc.recogniser import CtcRecogniser
from toolkit.errors import ToolkitError
from toolkit.features.stream import extract_file
from toolkit.lang.letters import LetterNormaliser
from toolkit.lang.policy import TextPolicy
from toolkit.lang.text import Normaliser
from toolkit.lang.units import Characters, Units
from toolkit.processes.bars import Bar
from toolkit.processes.workers import map_in_processes

TIERS = ("words", "units")


@dataclass(frozen=True)
class _Aligned:
    outcome: FileOutcome
    tiers: tuple[tuple[TimedToken, ...], ...] = ((), ())
    """Words and units."""


def align_folder_by_ctc(
    bundle: Path,
    audio: Path,
    text: Path,
    out: Path,
    speakers: Path | None = None,
    jobs: int = 1,
    channel: int | None = None,
) -> list[FileOutcome]:
    """Align every recording of a folder with its text; one that fails does not stop the others.

    Args:
      bundle: of a CTC network.
      audio: a folder of audio, see `read_inputs` for this and the next two.
      text: a Kaldi text file or a folder of .txt and .lab files. Tags, such as
        [laughter] and <unk>, are left out.
      out: gets `words.ctm`, `units.ctm`, `textgrid/<utterance>.TextGrid` and `table.tsv`.
      speakers: read, though recordings are normalised one by one.
      jobs: worker processes; the results do not depend on them.
      channel: the channel of the files, from 0; None: the mean of all.

    Returns:
      An outcome for every text and every audio file, sorted by utterance.

    Raises:
      BundleError: the bundle cannot be read.
      InputError: audio or text that cannot be read at all.
    """
    recordings = read_inputs(audio, text, speakers, adapts=False)
    work = partial(_align, bundle, out, channel)
    found = list(Bar(map_in_processes(work, recordings, jobs), "align", len(recordings)))
    for number, tier in enumerate(TIERS):
        rows = (
            (one.outcome.utterance, str((channel or 0) + 1), one.tiers[number]) for one in found
        )
        write_ctm(rows, out / f"{tier}.ctm")
    outcomes = sorted((one.outcome for one in found), key=lambda outcome: outcome.utterance)
    write_outcomes(outcomes, out)
    return outcomes


@lru_cache(maxsize=1)
def _recogniser(bundle: Path) -> CtcRecogniser:
    return CtcRecogniser(bundle)


def _align(bundle: Path, out: Path, channel: int | None, recording: Recording) -> _Aligned:
    """Align one recording and write its TextGrid."""
    name = recording.utterance
    try:
        return _aligned(_recogniser(bundle), out, channel, recording)
    except ToolkitError as error:
        return _Aligned(FileOutcome.failure(name, str(error)))


def _aligned(
    recogniser: CtcRecogniser, out: Path, channel: int | None, recording: Recording
) -> _Aligned:
    name, units = recording.utterance, recogniser.scorer.units
    words, left_out = recording.spoken(units.policy or _guessed_policy(units), unknown=False)
    fault = recording.fault or ("" if words else "no word in its text")
    if fault or recording.audio is None:
        return _Aligned(FileOutcome.failure(name, fault))
    features = extract_file(recording.audio, recogniser.frontend, channel)
    log_probs = recogniser.scorer.log_probs(features)
    found = recogniser.word_aligner(words, log_probs)
    tiers = {"words": found.words, "units": found.units}
    with open_audio(recording.audio) as file:
        seconds = file.frames / file.samplerate
    write_textgrid(tiers, seconds, textgrid_path(out, name))
    outcome = FileOutcome(
        utterance=name,
        status="ok",
        seconds=seconds,
        log_likelihood_per_frame=found.log_likelihood_per_frame,
        confidence=found.confidence,
        guessed="",
        reason=f"left out of the text: {left_out}" if left_out else "",
    )
    return _Aligned(outcome, tuple(tiers[tier] for tier in TIERS))


def _guessed_policy(units: Units) -> TextPolicy:
    """Return the policy for units that name none: English for English's 30 symbols (A16)."""
    english = units.kind == "characters" and units.symbols == Characters().symbols
    return TextPolicy(Normaliser.id if english else LetterNormaliser.id)
