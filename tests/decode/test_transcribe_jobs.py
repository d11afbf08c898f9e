"""Recordings shared out to processes."""

from functools import partial

import pytest

from toolkit.decode import transcribe as module
from toolkit.decode.decoded import Transcript
from toolkit.decode.sources import Source
from toolkit.decode.transcribe import partition_by_speaker, transcribe_in_processes


def sources(*speakers):
    return [Source(f"u{n}", f"u{n}", print, speaker) for n, speaker in enumerate(speakers)]


def test_speakers_stay_together_and_nothing_is_lost():
    given = sources("a", None, "b", "a", None, "b", "a", "c")
    shares = partition_by_speaker(given, 3)
    assert sorted(n for share in shares for n in share) == list(range(8))
    owner = {n: k for k, share in enumerate(shares) for n in share}
    assert owner[0] == owner[3] == owner[6]
    assert owner[2] == owner[5]
    assert max(map(len, shares)) == 3
    assert partition_by_speaker(given[:1], 3) == [[0]]


def heard(model, sources, details, device, fast, int8, batch):
    for source in sources:
        yield Transcript(f"{source.name} of {len(sources)}", source.key)


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_sources(monkeypatch, jobs):
    def in_this_process(function, items, jobs):
        return map(function, items)

    monkeypatch.setattr(module, "transcribe", heard)
    monkeypatch.setattr(module, "map_in_processes", in_this_process)
    found = transcribe_in_processes("m", sources("a", "b", "a"), jobs, False, "cpu", False)
    sizes = [3, 3, 3] if jobs == 1 else [2, 1, 2]
    assert [one.name for one in found] == [f"u{n} of {size}" for n, size in enumerate(sizes)]


def test_sources_of_files_can_be_handed_to_processes(tmp_path, audio):
    import io
    import pickle

    from toolkit.decode.sources import Inputs

    path = audio(tmp_path / "a.wav", 0.2)
    (source,) = Inputs().sources([str(path)], io.BytesIO(), tmp_path)
    assert isinstance(source.blocks, partial)
    (block,) = pickle.loads(pickle.dumps(source)).blocks(16000, 1.0)
    assert len(block) == 3200
