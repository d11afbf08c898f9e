from toolkit.bench import train
from toolkit.models.lstm import LstmConfig, LstmModel


def test_compares_chunks_with_whole_utterances_and_the_gemm_limit(monkeypatch):
    monkeypatch.setattr(train, "GEMM_SIZE", 256)
    table = train.benchmark(LstmConfig(input_dim=12, output_dim=50, hidden=32, layers=2))
    assert table.row("GEMM limit").ratio == 1.0
    chunked = table.row("chunks of 32 frames, batch 64")
    # 64 rows per step of the recurrence against one: the order holds on any machine
    assert table.row("whole utterances, batch 1").rate < chunked.rate
    assert chunked.ratio < 1


def test_operations_are_six_per_weight():
    config = LstmConfig(input_dim=12, output_dim=50, hidden=32, layers=2)
    weights = sum(p.numel() for p in LstmModel(config).parameters() if p.dim() == 2)
    assert train.flops_per_frame(config) == 6 * weights
