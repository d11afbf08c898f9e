"""Beams of a bundle's search: its own beam gives its words, narrower ones lose paths."""

import json
import sys

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner

from benchmarks import beams
from benchmarks.beams import WIDTHS, Width, figure, measure, table
from benchmarks.run import BenchmarkError, main
from tests.decode.conftest import Recogniser, make_bundle
from tests.decode.test_recogniser import speaker_bundle  # noqa: F401
from toolkit.decode.config import DecodeConfig
from toolkit.decode.sources import Inputs
from toolkit.decode.transcribe import transcribe
from toolkit.fsa.config import Beam
from toolkit.score.wer import score

OWN = WIDTHS.index(1.0)


@pytest.fixture
def recogniser(tmp_path):
    return Recogniser(tmp_path)


@pytest.fixture
def recordings(tmp_path):
    """Three files of noise, two of them by one speaker."""
    rng = np.random.default_rng(5)
    for name in "abc":
        level = np.repeat(rng.uniform(0.001, 0.3, 12), 1600)
        noise = np.convolve(rng.normal(size=len(level)), np.ones(rng.integers(1, 20)), "same")
        soundfile.write(tmp_path / f"{name}.wav", level * noise / np.abs(noise).max(), 16000)
    (tmp_path / "utt2spk").write_text("a x\nb y\nc x\n")
    files = [str(tmp_path / f"{name}.wav") for name in "abc"]
    return Inputs(speakers=tmp_path / "utt2spk").sources(files, sys.stdin, tmp_path)


def transcribed_texts(bundle, sources):
    return {
        transcript.name: " ".join(utterance.text for utterance in transcript.utterances)
        for transcript in transcribe(bundle, sources)
    }


def test_the_bundles_beam_gives_the_bundles_words(recogniser, recordings, tmp_path):
    narrow = DecodeConfig(0.5, beam=Beam(4.0, 3.0, min_active=2, max_active=40))
    bundle = make_bundle(recogniser, tmp_path / "bundle", config=narrow)
    expected = transcribed_texts(bundle, recordings)
    assert any(expected.values())
    widths = measure(bundle, recordings, expected | {"d": "NO"})
    assert [width.factor for width in widths] == list(WIDTHS)
    assert widths[OWN].beam == narrow.beam
    assert widths[OWN].score.errors == 0
    assert sorted(x.id for x in widths[OWN].score.utterances) == ["a", "b", "c"]
    assert widths[-1].worse == 0 < widths[0].worse
    assert all(width.arcs_per_frame >= 1 for width in widths)


def test_a_recording_without_a_frame_counts_as_deletions(recogniser, recordings, tmp_path):
    bundle = make_bundle(recogniser, tmp_path / "bundle")
    soundfile.write(tmp_path / "short.wav", np.zeros(100), 16000)
    short = Inputs().sources([str(tmp_path / "short.wav")], sys.stdin, tmp_path)
    texts = transcribed_texts(bundle, recordings)
    widths = measure(bundle, [*recordings, *short], texts | {"short": "YES NO"})
    assert (widths[OWN].score.errors, widths[OWN].score.deletions) == (2, 2)


def test_speakers_are_adapted_to(speaker_bundle, recordings):  # noqa: F811
    expected = transcribed_texts(speaker_bundle, recordings)
    assert any(expected.values())
    widths = measure(speaker_bundle, recordings, expected)
    assert widths[OWN].score.errors == 0


def test_recordings_need_transcripts(recogniser, recordings, tmp_path):
    bundle = make_bundle(recogniser, tmp_path / "bundle")
    with pytest.raises(BenchmarkError, match="no recording has a transcript"):
        measure(bundle, recordings, {"elsewhere": "YES"})


def width_with(factor, hypothesis, worse):
    beam = Beam(10.0 * factor, 4.0, max_active=int(1000 * factor))
    return Width(factor, beam, score({"a": "A B C D"}, {"a": hypothesis}), factor / 10, worse, 2.0)


def test_table_reports_the_effect_of_doubling_the_beam(tmp_path):
    widths = [width_with(0.5, "A", 1), width_with(1.0, "A B", 1), width_with(2.0, "A B C", 0)]
    lines = table(widths)
    assert [line[0] for line in lines[1:4]] == [" ", "*", " "]
    assert lines[2].split()[1:5] == ["1.00", "10.0", "1000", "50.00"]
    assert lines[-1] == (
        "At 2 times the bundle's beam there are 1 fewer of 2 errors (50.0 %),"
        " and 1 of 1 utterances have a better path."
    )
    assert figure(widths).startswith(b"\x89PNG")


def test_the_command(recogniser, recordings, tmp_path, monkeypatch):
    monkeypatch.setattr(beams, "measure", lambda bundle, sources, texts: [width_with(1.0, "A", 0)])
    bundle = make_bundle(recogniser, tmp_path / "bundle")
    (tmp_path / "text").write_text("a1 A\n")
    arguments = ["--model", bundle, "--ref", tmp_path / "text", "--plot", tmp_path / "plot.png"]
    arguments += ["--json", tmp_path / "beams.json"]
    result = CliRunner().invoke(main, ["beams", *map(str, arguments), "a.wav"])
    assert result.exit_code == 0, result.output
    assert "At 1 times" in result.output
    assert (tmp_path / "plot.png").stat().st_size > 5000
    saved = json.loads((tmp_path / "beams.json").read_text())["widths"]
    assert [row["factor"] for row in saved] == [1.0]
