"""The benchmark of whole recordings and streams, on a fake recogniser."""

from benchmarks import transcribe
from toolkit.decode import recogniser
from toolkit.decode.decoded import DecodedUtterance
from toolkit.decode.stream import StreamResult


class Recogniser:
    sampling_rate = 16000

    def warm_up(self):
        pass

    def stream(self):
        return Stream()

    def recognise(self, samples):
        return f"{len(samples)}"


class Stream:
    """Loses the last sample of every piece longer than half a second."""

    def __init__(self):
        self.samples = 0

    def push(self, samples):
        self.samples += len(samples) - (len(samples) > 8000)
        return StreamResult("SOME", None, 0.0, self.samples / 16000, 0.1)

    def finish(self):
        text = f"{self.samples}"
        return StreamResult(text, DecodedUtterance(text), 0.0, self.samples / 16000, 0.1)


def test_rates_latencies_and_differences(audio, tmp_path, monkeypatch):
    monkeypatch.setattr(recogniser, "load_recogniser", lambda bundle: Recogniser())
    files = [audio(tmp_path / f"{i}.wav", seconds) for i, seconds in enumerate((0.4, 2.0))]
    table = transcribe.benchmark(tmp_path, files, repeats=1)
    assert [row.name for row in table.rows][:2] == ["whole", "stream, pieces of 0.01 s"]
    notes = " ".join(table.notes)
    assert "differ from those of whole recordings: 0 of 2, 0 of 2, 0 of 2, 1 of 2" in notes
    assert "Pieces of 0.1 s: first words 0.00 s" in notes
