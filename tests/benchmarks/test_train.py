import pytest
import torch

from benchmarks import limits, train
from benchmarks.train import CriterionAlone, LatticeFreeSteps
from toolkit.models.config import LstmConfig, TdnnfConfig
from toolkit.models.lstm import LstmModel

SMALL = LstmConfig(input_dim=12, output_dim=50, hidden=32, layers=2)


def test_compares_chunks_with_whole_utterances_and_the_gemm_limit(monkeypatch, ticking_clock):
    ticking_clock(train)
    monkeypatch.setattr(limits, "SIZE", 256)
    table = train.benchmark(SMALL)
    assert table.row(train.LIMIT).ratio == 1.0
    chunked = table.row(train.CHUNKS)
    steps = train.STEPS["cuda" if torch.cuda.is_available() else "cpu"]
    most = steps * 64 * 32  # scored frames; the last chunk of an utterance is shorter
    assert 0.9 * most < chunked.rate <= most
    assert 9 * most < table.row("loader and chunker alone").rate <= 10 * most
    assert table.row(train.LOOP).rate == max(1, steps // 4) * train.UTTERANCE_FRAMES / 3
    assert len(table.rows) == 9
    lattice_free = table.row(train.LATTICE_FREE).rate
    share = 100 * lattice_free / table.row(train.CRITERION).rate
    assert f"The criterion takes {share:.0f} %" in table.notes[-2]
    assert f"{chunked.rate / table.row(train.LOOP).rate:.1f} times" in table.notes[-1]


def test_operations_are_six_per_weight():
    weights = sum(p.numel() for p in LstmModel(SMALL).parameters() if p.dim() == 2)
    assert train.flops_per_frame(SMALL) == 6 * weights


@pytest.mark.parametrize(
    ("dtype", "has_bfloat16", "rows"),
    [(torch.float32, False, 64), (torch.bfloat16, True, 64), (torch.bfloat16, False, 32)],
)
def test_gemm_amount_is_its_operations(monkeypatch, dtype, has_bfloat16, rows):
    monkeypatch.setattr(limits, "SIZE", 64)
    monkeypatch.setattr(limits, "EMULATED_SIZE", 32)
    monkeypatch.setattr(limits, "onednn_has_bfloat16", lambda: has_bfloat16)
    product = limits.Gemm(torch.device("cpu"), dtype, per_unit=1000)
    assert product.run() == limits.REPEATS * 2 * rows**3 / 1000


def test_the_utterance_loop_learns_and_counts_low_rate_frames():
    loop = train.UtteranceLoop(SMALL, 2, torch.device("cpu"))
    initial_weights = [p.clone() for p in loop.parameters]
    assert loop.run() == 2 * train.UTTERANCE_FRAMES / 3
    assert not any(torch.equal(a, b) for a, b in zip(initial_weights, loop.parameters, strict=True))


def test_lattice_free_steps_learn_and_count_scored_frames(tmp_path):
    network = TdnnfConfig(12, hidden=8, bottleneck=4, final=4, strides=(1, 0, 3))
    steps = LatticeFreeSteps(network, 6, 600, 2, str(tmp_path), torch.device("cpu"))
    initial_weights = [p.clone() for p in steps.model.parameters()]
    assert steps.run() == 6 * 600 / 3 + 6 * 600 / 3  # two epochs of one batch
    trained_weights = steps.model.parameters()
    assert all(not torch.equal(a, b) for a, b in zip(initial_weights, trained_weights, strict=True))
    criterion = CriterionAlone(steps)
    assert criterion.run() == 6 * 600 / 3
    assert criterion.scores.grad.abs().sum() > 0
