"""The benchmarks of a device, run on the CPU: the same code with another name of the device."""

import pytest
import torch
from click.testing import CliRunner

from benchmarks import decode_gpu, features_gpu, lattice_gpu, limits, train
from benchmarks import features_gpu as on_one_core
from benchmarks.run import Case, compare, main
from toolkit.models.config import LstmConfig

SMALL = LstmConfig(input_dim=12, output_dim=20, hidden=8, layers=1, lookahead=1)


def set_attributes(monkeypatch, module, **values):
    for name, value in values.items():
        monkeypatch.setattr(module, name, value)


def test_features_alone_and_fed(monkeypatch, ticking_clock):
    ticking_clock(features_gpu)
    set_attributes(monkeypatch, features_gpu, FILES=3, SECONDS=0.5, REPEATS=1)
    table = features_gpu.measure("cpu")
    assert [row.rate for row in table.rows] == [3 * 0.5] * 5  # every row did all of the audio
    assert f"{features_gpu.DEVICE} {1.5 / 3600:.4g}" in table.notes[1]


def test_overlapped_decoding_finds_the_same_words_as_search_alone(monkeypatch, ticking_clock):
    ticking_clock(decode_gpu)
    set_attributes(
        monkeypatch, decode_gpu, UTTERANCES=3, SECONDS=2.0, WORDS=40, SENTENCES=200, REPEATS=1
    )
    table = decode_gpu.measure("cpu", SMALL)
    assert len({row.rate for row in table.rows}) == 1  # all did all of the speech
    assert table.rows[0].rate >= 3 * 2.0
    assert "with the same words" in table.notes[1]


def test_smbr_is_measured_as_a_share_of_its_step(monkeypatch, ticking_clock):
    ticking_clock(lattice_gpu)
    monkeypatch.setattr(limits, "SIZE", 64)
    set_attributes(
        monkeypatch, lattice_gpu, UTTERANCES=3, SECONDS=1.0, WORDS=40, REPEATS=1, BATCH=2
    )
    table = lattice_gpu.measure("cpu", SMALL)
    frames = {row.rate for row in table.rows if row.name != lattice_gpu.LIMIT}
    assert len(frames) == 1
    assert frames.pop() >= 3 * 33
    # The clock ticks once a case: both steps take as long, and the criterion all of one.
    assert "0 % of a step with sMBR is work that" in table.notes[2]
    assert "takes 100 % of the step" in table.notes[2]


def test_the_command_takes_a_device_where_the_benchmark_does(monkeypatch):
    devices, table = [], compare([Case("ours", lambda: 1.0)], "runs", "ours", 1)
    monkeypatch.setattr(features_gpu, "measure", lambda device: devices.append(device) or table)
    monkeypatch.setattr(on_one_core, "write_noise", None)  # not to be called
    result = CliRunner().invoke(main, ["features", "--device", "cpu"])
    assert (result.exit_code, devices) == (0, ["cpu"])
    assert CliRunner().invoke(main, ["score", "--device", "cpu"]).exit_code == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported():
    result = CliRunner().invoke(main, ["train", "--device", "cuda"])
    assert "torch finds no GPU" in result.output


def test_large_batches_divide_the_chunks_of_the_synthetic_corpus():
    chunks = train.noise_batches(SMALL).num_steps(0) * 64
    for size in train.LARGE_BATCHES:
        cut = train.noise_batches(SMALL, train.ChunkConfig(chunks_per_batch=size))
        assert cut.num_steps(0) == -(-train.UTTERANCES * 13 // size)
        assert size * cut.num_steps(0) <= chunks
