import torch

from benchmarks import limits, train_ctc
from toolkit.models.config import CtcConfig
from toolkit.models.ctc import CtcModel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = CtcConfig(
    input_dim=6, output_dim=9, channels=(8,), kernels=(3,), strides=(2,), lstm_layers=2, hidden=16
)


def test_compares_the_step_and_its_parts_with_the_gemm_limit(monkeypatch, ticking_clock):
    ticking_clock(train_ctc)
    monkeypatch.setattr(limits, "SIZE", 128)
    monkeypatch.setattr(train_ctc, "SKINNY_REPEATS", 2)
    table = train_ctc.benchmark(SMALL, frames=41)
    assert table.row(train_ctc.LIMIT).ratio == 1.0
    step = table.row(train_ctc.STEP)
    assert len(table.rows) == 3 + len(train_ctc.PARTS)
    assert {row.rate for row in table.rows[1:]} == {train_ctc.BATCH[DEVICE]}  # elements
    assert f"{step.rate / table.row(train_ctc.PLAIN).rate:.2f} times" in table.notes[0]


def test_operations_of_the_papers_model():
    # 127.5 GFLOP per padded element, less 2 per weight of the convolution: 830 frames each
    convolution = 11 * 93 * 600
    weights = convolution + 4 * 800 * (600 + 800) + 4 * 4 * 800 * 1600 + 800 * 30
    assert train_ctc.flops_per_element(CtcConfig(), 1670) == 830 * (6 * weights - 2 * convolution)
    assert round(830 * 6 * weights / 1e9, 1) == 127.5


def test_operations_are_six_per_weight_and_output_frame_but_for_the_first_layer():
    model = CtcModel(SMALL)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    first = model.convolutions[0].weight.numel()
    assert train_ctc.flops_per_element(SMALL, 41) == 20 * (6 * matrices - 2 * first)
