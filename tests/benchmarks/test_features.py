from benchmarks import features
from toolkit.engines import frontend_engine


def test_compares_all_contestants(ticking_clock):
    ticking_clock(features)
    table = features.benchmark(sizes=features.Sizes(files=2, seconds=0.5, repeats=1))
    engine = frontend_engine()
    assert table.row(f"{engine}, samples to features").ratio == 1.0
    contestants = 9 if engine == "kaldifeat" else 8
    assert [row.rate for row in table.rows] == [2 * 0.5] * contestants  # s of audio, equal for all
