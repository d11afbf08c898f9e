import pytest

pytest.importorskip("kaldifeat")

from toolkit.bench import features


def test_compares_all_contestants(monkeypatch, processor_clock):
    processor_clock(features)
    monkeypatch.setattr(features, "SECONDS", 0.5)
    monkeypatch.setattr(features, "FILES", 2)
    monkeypatch.setattr(features, "REPEATS", 1)
    table = features.benchmark()
    assert table.row("kaldifeat, samples to features").ratio == 1.0
    assert len(table.rows) == 8
    # More work on the same files: the order holds on any machine.
    assert table.row("ours, FLAC to features").rate < table.row("ours, FLAC to samples").rate
