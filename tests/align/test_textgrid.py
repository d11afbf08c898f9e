import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.align.ctm_textgrid import TextGridError, TimedToken, write_textgrid


def word(start, end, token="W"):
    return TimedToken(token, start, end)


def read(path):
    """Read the long form: the duration, and (xmin, xmax, text) by tier."""
    text = path.read_text(encoding="utf-8")
    head, *items = re.split(r"\n    item \[\d+\]:\n", text)
    assert head.startswith('File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\n')
    assert f"tiers? <exists>\nsize = {len(items)}\nitem []:" in head
    duration = re.search(r"^xmax = (\S+)$", head, re.MULTILINE)[1]
    tiers = {}
    for item in (f"{item.rstrip()}\n" for item in items):
        name = re.search(r'name = "(.*)"\n', item)[1]
        assert 'class = "IntervalTier"' in item
        assert f"xmin = 0\n        xmax = {duration}\n" in item
        intervals = re.findall(
            r'intervals \[(\d+)\]:\n +xmin = (\S+)\n +xmax = (\S+)\n +text = "((?:[^"]|"")*)"\n',
            item,
        )
        assert [int(row[0]) for row in intervals] == list(range(1, len(intervals) + 1))
        assert f"intervals: size = {len(intervals)}\n" in item
        tiers[name] = [(a, b, text.replace('""', '"')) for _, a, b, text in intervals]
        assert tiers[name][0][0] == "0"
        assert tiers[name][-1][1] == duration
        assert all(a[1] == b[0] for a, b in zip(tiers[name], tiers[name][1:], strict=False))
    return float(duration), tiers


def test_gaps_become_intervals_without_text(tmp_path):
    path = tmp_path / "sub" / "utt-1.TextGrid"
    words = [word(0.1, 0.25, "THE"), word(0.25, 0.6, "END")]
    phones = [word(0.1, 0.15, "DH"), word(0.15, 0.25, "AH")]
    write_textgrid({"words": words, "phones": phones, "none": []}, 14401 / 16000, path)
    duration, tiers = read(path)
    assert duration == 14401 / 16000
    assert tiers == {
        "words": [("0", "0.1", ""), ("0.1", "0.25", "THE"), ("0.25", "0.6", "END"),
                  ("0.6", "0.9000625", "")],
        "phones": [("0", "0.1", ""), ("0.1", "0.15", "DH"), ("0.15", "0.25", "AH"),
                   ("0.25", "0.9000625", "")],
        "none": [("0", "0.9000625", "")],
    }  # fmt: skip


def test_quotes_and_other_scripts(tmp_path):
    words = [word(0.0, 0.5, 'SAY"SO"'), word(0.5, 1.0, "日本")]
    write_textgrid({'the "words"': words}, 1.0, tmp_path / "a")
    assert 'text = "SAY""SO"""' in (tmp_path / "a").read_text(encoding="utf-8")
    assert 'name = "the ""words"""' in (tmp_path / "a").read_text(encoding="utf-8")
    assert [row[2] for row in read(tmp_path / "a")[1]['the ""words""']] == ['SAY"SO"', "日本"]


@pytest.mark.parametrize("end", [0.9999999, 1.0, 1.01, 1.03])
def test_the_last_frame_is_cut_to_the_audio(tmp_path, end):
    write_textgrid({"words": [word(0.5, end)]}, 1.0, tmp_path / "a")
    assert read(tmp_path / "a")[1]["words"] == [("0", "0.5", ""), ("0.5", "1", "W")]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50)), max_size=15),
    st.floats(0.0, 0.5),
)
def test_tiers_are_contiguous_in_spite_of_rounding(tmp_path_factory, rows, final_gap_s):
    path = tmp_path_factory.getbasetemp() / "a.TextGrid"
    frame, words = 0, []
    for gap, length in rows:
        start = frame + gap
        words.append(TimedToken(f"w{start}", start * 0.01, (start + length) * 0.01))
        frame = start + length
    duration = frame * 0.01 + final_gap_s + 0.001
    write_textgrid({"words": words}, duration, path)
    total, tiers = read(path)
    assert total == pytest.approx(duration, abs=1e-9)
    spoken = [(float(a), float(b), text) for a, b, text in tiers["words"] if text]
    assert [text for *_, text in spoken] == [w.token for w in words]
    for (start, end, _), w in zip(spoken, words, strict=True):
        assert start == pytest.approx(w.start_s, abs=1e-6)
        assert end == pytest.approx(w.end_s, abs=1e-6)
    assert all(float(a) < float(b) for a, b, _ in tiers["words"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([word(0.1, 0.5), word(0.4, 0.6, "X")], "'X' at 0.400 s begins before"),
        ([word(0.1, 1.2)], "ends after the audio"),
        ([word(0.5, 0.5)], "has the duration 0"),
        ([word(1.0, 1.02)], "has the duration 0"),
    ],
)
def test_invalid_tiers_are_named(tmp_path, words, message):
    with pytest.raises(TextGridError, match=message):
        write_textgrid({"words": words}, 1.0, tmp_path / "a")
    with pytest.raises(
        TextGridError, match=r"tier words: a TextGrid cannot have a duration of 0\.0 s"
    ):
        write_textgrid({"words": []}, 0.0, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
