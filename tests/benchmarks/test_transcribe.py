"""The benchmark of whole recordings and streams, on a recogniser that is not one."""

from types import SimpleNamespace

from benchmarks import transcribe
from toolkit.decode import recogniser, stream
from toolkit.decode.decoded import Recognised
from toolkit.decode.stream import StreamResult


class Recogniser:
    frontend_config = SimpleNamespace(sampling_rate=16000)

    def __init__(self, model):
        pass

    def recognise(self, samples):
        return f"{len(samples)}"


class Stream:
    """Loses the last sample of every piece longer than half a second."""

    def __init__(self, recogniser):
        self.samples = 0

    @staticmethod
    def warm_up(recogniser):
        pass

    def push(self, samples):
        self.samples += len(samples) - (len(samples) > 8000)
        return StreamResult("SOME", None, 0.0, self.samples / 16000, 0.1)

    def finish(self):
        text = f"{self.samples}"
        return StreamResult(text, Recognised(text), 0.0, self.samples / 16000, 0.1)


def test_rates_latencies_and_differences(audio, tmp_path, monkeypatch):
    monkeypatch.setattr(recogniser, "NetworkRecogniser", Recogniser)
    monkeypatch.setattr(stream, "StreamingRecogniser", Stream)
    files = [audio(tmp_path / f"{i}.wav", seconds) for i, seconds in enumerate((0.4, 2.0))]
    table = transcribe.benchmark(tmp_path, files, repeats=1)
    assert [row.name for row in table.rows][:2] == ["whole", "stream, pieces of 0.01 s"]
    notes = " ".join(table.notes)
    assert "differ from those of whole recordings: 0 of 2, 0 of 2, 0 of 2, 1 of 2" in notes
    assert "Pieces of 0.1 s: first words 0.00 s" in notes
