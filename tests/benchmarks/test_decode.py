import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from benchmarks import decode, peers
from benchmarks.peers import PeerUnavailableError
from toolkit.fsa.fst import fst_from_arcs

STUB = """
import json, sys
import numpy as np
task = np.load(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    beam, max_active = line.split()
    {answer}
    paths = [[0, int(beam)], task["written"].tolist(), []]
    json.dump(paths, open(sys.argv[2], "w"))
    print(0.25, flush=True)
"""


def test_compares_all_beams(monkeypatch, ticking_clock):
    ticking_clock(decode)
    monkeypatch.setenv(peers.KALDI_DECODER_VARIABLE, "no-such-python")
    monkeypatch.delenv(decode.VARIABLE, raising=False)
    sizes = decode.Sizes(2, 2.0, words=100, sentences=500, beams=(6.0, 16.0), repeats=1)
    table = decode.benchmark(sizes=sizes)
    narrow, wide = (table.row(decode.OURS.format(beam)) for beam in (6.0, 16.0))
    assert narrow.rate == wide.rate >= 2 * 2.0  # s of speech, sentences not cut off
    assert table.row(decode.BEST_PATH.format(16.0)).rate == wide.rate
    about, *middle, torchaudio = [note for note in table.notes if decode.LARGEST_K2 not in note]
    *without_k2, missing, rates = middle
    if find_spec("k2"):
        assert table.figures[decode.LARGEST_K2] == 1.0  # as the clock ticks the same for both
        k2_rows = [table.row(decode.K2.format(beam)) for beam in (6.0, 16.0)]
        assert [row.rate for row in k2_rows] == [narrow.rate, wide.rate]
        assert f"k2, beam 16 {1 / wide.rate:.5f}" in rates
    else:
        assert without_k2[0].startswith("k2: not installed")  # no variable asked for it
    assert "2 utterances of synthetic sentences of 100 words" in about
    assert "pip install 'kaldi-decoder==" in missing
    assert f"ours, beam 16 {1 / wide.rate:.5f}" in rates
    assert float(rates.rstrip(".").split()[-1]) < 10  # WER at the wider beam
    assert "CTC" in torchaudio


def test_decoders_are_compared_at_equal_error_rates():
    best_path, faster_decoder = decode.BEST_PATH.format, decode.FASTER_DECODER.format
    names = decode.BEST_PATH, decode.FASTER_DECODER
    rows = {
        best_path(8.0): (0.004, 11.0),
        best_path(12.0): (0.010, 8.0),
        best_path(20.0): (0.030, 7.95),
        faster_decoder(8.0): (0.001, 12.0),
        faster_decoder(12.0): (0.005, 9.0),
        faster_decoder(20.0): (0.020, 8.1),
    }
    # 8.1 is within 2 % of 7.95, and so is 8.0.
    ratios = decode.ratios_at_equal_wer(rows, *names)
    assert ratios == pytest.approx({7.95: 0.5, 9.0: 2.0, 12.0: 4.0})
    disjoint = {best_path(8.0): (0.1, 20.0), faster_decoder(8.0): (0.1, 9.0)}
    assert decode.ratios_at_equal_wer(disjoint, *names) == {}
    assert decode.ratios_at_equal_wer({best_path(8.0): (0.1, 20.0)}, *names) == {}


def test_a_run_directory_without_a_decode_is_refused(tmp_path):
    with pytest.raises(decode.BenchmarkError, match="no LSTM was decoded"):
        decode.DecodingInputs.of_run(tmp_path)


@pytest.fixture
def task():
    # "7", or "8 9", of two frames each; pdf 2 tells them apart in the first.
    arcs = [(0, 1, 1, 0, 0.0), (0, 2, 3, 0, -0.5), (1, 3, 2, 0, 0.0), (2, 3, 2, 0, 0.0)]
    graph = fst_from_arcs(arcs, [3])
    splits, words = np.array([0, 1, 3, 3, 3, 3], np.int32), np.array([7, 8, 9], np.int32)
    graph = replace(graph, splits=splits, words=words)
    scores = torch.zeros(2, 2, 3)
    scores[1, 0, 2] = 1.0
    return graph, list(scores)


def replace_worker(monkeypatch, tmp_path, answer):
    """Replace the script that needs kaldi-decoder."""
    (tmp_path / "faster_decoder_worker.py").write_text(STUB.format(answer=answer))
    monkeypatch.setattr(peers, "__file__", str(tmp_path / "process.py"))
    monkeypatch.setattr(peers, "KALDI_DECODER_CHECK", "")
    monkeypatch.setenv(peers.KALDI_DECODER_VARIABLE, sys.executable)


def test_worker_returns_words_by_output_label_and_adds_up_its_time(monkeypatch, tmp_path, task):
    replace_worker(monkeypatch, tmp_path, "assert max_active == '99'")
    with peers.FasterDecoder(*task, tmp_path) as decoder:
        assert decoder.decode(2, 99) == [[8, 9], [7, 8, 9], []]
        decoder.decode(1, 99)
        assert decoder.processor_seconds == 0.5
    stored = np.load(tmp_path / "decoder_task.npz")
    assert stored["bounds"].tolist() == [2]
    assert stored["scores"].shape == (4, 3)


@pytest.mark.parametrize("answer", ["raise SystemExit(1)", "import time; time.sleep(60)"])
def test_a_worker_that_crashes_or_hangs_is_reported(monkeypatch, tmp_path, task, answer):
    replace_worker(monkeypatch, tmp_path, answer)
    with peers.FasterDecoder(*task, tmp_path) as decoder:
        decoder.timeout = 0.5
        for _ in "ab":  # the second finds the process gone
            with pytest.raises(PeerUnavailableError, match="crashed, or gave"):
                decoder.decode(8, 99)


def test_kaldis_paths_are_the_best_paths(tmp_path, task):
    try:
        decoder = peers.FasterDecoder(*task, tmp_path)
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    with decoder:
        assert decoder.decode(16, 100) == [[7], [8, 9]]
