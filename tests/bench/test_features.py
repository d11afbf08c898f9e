from toolkit.bench import features
from toolkit.engines import frontend_engine


def test_compares_all_contestants(monkeypatch, ticking_clock):
    ticking_clock(features)
    monkeypatch.setattr(features, "SECONDS", 0.5)
    monkeypatch.setattr(features, "FILES", 2)
    monkeypatch.setattr(features, "REPEATS", 1)
    table = features.benchmark()
    engine = frontend_engine()
    assert table.row(f"{engine}, samples to features").ratio == 1.0
    contestants = 9 if engine == "kaldifeat" else 8
    assert [row.rate for row in table.rows] == [2 * 0.5] * contestants  # s of audio, equal for all
