"""A CTC bundle in float32 and in 8 bits."""

import pytest
from click.testing import CliRunner

from benchmarks.int8 import FLOAT32, INT8, measure, table
from benchmarks.run import BenchmarkError
from tests.decode.test_ctc_bundle import noise, write
from toolkit.cli import main
from toolkit.decode.ctc.recogniser import CtcRecogniser
from toolkit.decode.sources import Inputs


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def recordings(tmp_path):
    import soundfile

    for number in range(3):
        samples = noise(1.5, number).numpy()
        soundfile.write(tmp_path / f"r{number}.flac", samples, 16000)
    return [str(tmp_path / f"r{number}.flac") for number in range(3)]


def test_float32_and_int8_are_scored_timed_and_sized(bundle, recordings, tmp_path):
    sources = Inputs().sources(recordings, None, tmp_path)
    recogniser = CtcRecogniser(bundle)
    texts = {source.name: recogniser.recognise(noise(1.5, n)) for n, source in enumerate(sources)}
    float32, int8 = measure(bundle, sources[:2], {**texts, "another": "A"}, rounds=1)
    assert [float32.name, int8.name] == [FLOAT32, INT8]
    assert float32.score.errors <= 1  # FLAC rounds the samples
    assert len(float32.score.utterances) == 2
    assert float32.real_time_factor > 0
    assert (float32.ratio, int8.ratio > 0) == (1.0, True)
    lines = table([float32, int8])
    assert lines[1].startswith("float32")
    assert "of 2 texts differ" in lines[-1]
    with pytest.raises(BenchmarkError, match="no recording has speech"):
        measure(bundle, sources, {"another": "A"}, rounds=1)
    with pytest.raises(BenchmarkError, match="not the bundle of a CTC network"):
        measure(tmp_path, sources, texts)


def test_int8_is_refused_for_streams(bundle, recordings):
    def transcribe(*options):
        return CliRunner().invoke(main, ["transcribe", "--model", str(bundle.parent), *options])

    result = transcribe("--int8", *recordings)
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 3
    refused = transcribe("--int8", "--stream", recordings[0])
    assert refused.exit_code == 2
    assert "--int8 does not work with --stream" in refused.output
