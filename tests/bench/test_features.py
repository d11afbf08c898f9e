import pytest

pytest.importorskip("kaldifeat")

from toolkit.bench import features


def test_compares_all_contestants(monkeypatch):
    monkeypatch.setattr(features, "SECONDS", 0.5)
    monkeypatch.setattr(features, "FILES", 2)
    monkeypatch.setattr(features, "REPEATS", 1)
    table = features.benchmark()
    assert table.row("kaldifeat, samples to features").ratio == 1.0
    names = {row.name for row in table.rows}
    assert {"ours, FLAC to samples", "ours, FLAC to features"} < names
    assert len(names) == 8
    assert all(0 < row.rate < float("inf") for row in table.rows)
