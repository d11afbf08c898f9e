import pytest

pytest.importorskip("kaldifeat")

from toolkit.bench import features


def test_compares_all_contestants(monkeypatch, ticking_clock):
    ticking_clock(features)
    monkeypatch.setattr(features, "SECONDS", 0.5)
    monkeypatch.setattr(features, "FILES", 2)
    monkeypatch.setattr(features, "REPEATS", 1)
    table = features.benchmark()
    assert table.row("kaldifeat, samples to features").ratio == 1.0
    assert [row.rate for row in table.rows] == [2 * 0.5] * 8  # s of audio, the same for all
