"""The benchmark of live recognition, against a server of tones."""

import numpy as np
import pytest
import soundfile

pytest.importorskip("websockets", minversion="16")

from benchmarks import serve
from benchmarks.run import BenchmarkError
from benchmarks.serve import Conversation
from tests.serve.talking import Tones, serving, tones


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "a.wav", tmp_path / "b.wav"]
    for path, pitch in zip(paths, (500, 2000), strict=True):
        soundfile.write(path, tones(pitch, seconds=0.2), 16000)
    return paths


def test_every_client_sends_all_files_at_the_pace_of_speech(files):
    with serving(Tones(), ahead=30) as address:
        conversations, seconds = serve.measure(address, files, clients=3)
    assert seconds == pytest.approx(1.2)
    assert [conversation.text for conversation in conversations] == ["500 2000"] * 3
    assert all(
        len(conversation.lags) == 12 and min(*conversation.lags, conversation.last) >= 0
        for conversation in conversations
    )


def test_a_refusal_ends_the_benchmark(files):
    with (
        serving(Tones(), longest=0.5) as address,
        pytest.raises(BenchmarkError, match=r"a stream may last at most 0\.5 s"),
    ):
        serve.measure(address, files, clients=1)


def test_latencies_are_summed_up():
    lags = tuple(np.arange(1, 101) / 1000)
    summary = serve.summary([Conversation("A B", lags, 0.2), Conversation("A", lags, 0.4)])
    assert "median 50 ms, 99 % within 99 ms, at most 100 ms" in summary
    assert "median 300 ms, at most 400 ms" in summary
    assert "2 words, 2 different texts" in summary
