from contextlib import nullcontext
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.align import ctm_textgrid
from toolkit.align.ctm_textgrid import CtmEntry, CtmError, TimedToken, read_ctm, write_ctm

FIELD = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1).filter(
    lambda text: len(text.split()) == 1 and text.strip() == text and not text.startswith(";;")
)
MILLISECONDS = st.integers(0, 10_000_000)
CONFIDENCE = st.none() | st.just(0.5)


def row_of(entry):
    token = TimedToken(entry.token, entry.start, entry.end, entry.confidence)
    return entry.utterance, entry.channel, [token]


def test_lines_have_kaldis_format(tmp_path):
    words = [TimedToken("IT'S", 0.0, 0.13), TimedToken("SO", 0.13, 0.13 + 1 / 3, 0.98765)]
    rows = [("a-1", "1", words), ("b", "A", [TimedToken("ÜBER", 3661.5, 3661.51, 1.0)])]
    write_ctm(rows, tmp_path / "x" / "words.ctm")
    assert (tmp_path / "x" / "words.ctm").read_text(encoding="utf-8").splitlines() == [
        "a-1 1 0.000 0.130 IT'S",
        "a-1 1 0.130 0.333 SO 0.9877",
        "b A 3661.500 0.010 ÜBER 1.0000",
    ]


def test_tokens_are_written_as_they_are_generated(tmp_path, monkeypatch):
    lines = []

    class StubFile:
        def writelines(self, new_lines):
            for line in new_lines:
                lines.append(line)

    monkeypatch.setattr(ctm_textgrid, "open_atomically", lambda path: nullcontext(StubFile()))
    num_lines_written = []
    tokens = (num_lines_written.append(len(lines)) or TimedToken("w", n, n + 1) for n in range(3))
    write_ctm([("u", "1", tokens)], tmp_path / "x.ctm")
    assert (num_lines_written, len(lines)) == ([0, 1, 2], 3)


@given(st.lists(st.tuples(FIELD, FIELD, MILLISECONDS, MILLISECONDS, FIELD, CONFIDENCE)))
def test_written_entries_are_read_back(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "round.ctm"
    entries = [CtmEntry(u, c, s / 1000, d / 1000, t, p) for u, c, s, d, t, p in rows]
    write_ctm(map(row_of, entries), path)
    read_entries = read_ctm(path)
    assert [(e.utterance, e.channel, e.token, e.confidence) for e in read_entries] == [
        (e.utterance, e.channel, e.token, e.confidence) for e in entries
    ]
    for actual, expected in zip(read_entries, entries, strict=True):
        assert actual.start == pytest.approx(expected.start, abs=1e-6)
        assert actual.end == pytest.approx(expected.end, abs=1e-6)


@given(st.lists(st.floats(0.0, 100.0), min_size=2, max_size=20))
def test_adjacent_tokens_stay_adjacent_after_rounding(tmp_path_factory, times):
    path = tmp_path_factory.getbasetemp() / "touch.ctm"
    times = sorted(times)
    pairs = list(pairwise(times))
    write_ctm([("u", "1", [TimedToken("w", *pair) for pair in pairs])], path)
    milliseconds = [
        (round(1000 * e.start), round(1000 * e.start) + round(1000 * e.duration))
        for e in read_ctm(path)
    ]
    assert all(a[1] == b[0] for a, b in pairwise(milliseconds))


def test_comments_blank_lines_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "a.ctm"
    path.write_bytes(b"\xef\xbb\xbf;; made by hand\r\n\r\nu 1 0.5 .25 W 0.5\r\n  \nu\tA 1 2 V\n")
    assert read_ctm(path) == [
        CtmEntry("u", "1", 0.5, 0.25, "W", 0.5),
        CtmEntry("u", "A", 1.0, 2.0, "V"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"u 1 0.5 0.25", "4 fields"),
        (b"u 1 0.5 0.25 A B C", "7 fields"),
        (b"u 1 x 0.25 A", "start 'x'"),
        (b"u 1 0.5 nan A", "duration 'nan'"),
        (b"u 1 -0.5 0.25 A", "start -0.5"),
        (b"u 1 0.5 0.25 A B", "confidence 'B'"),
        (b"u 1 0.5 0.25 \xff", r"not UTF-8: `u 1 0.5 0.25 \\xff`"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "bad.ctm"
    path.write_bytes(b"u 1 0 1 A\n" + line + b"\n")
    with pytest.raises(CtmError, match=f"bad.ctm:2: {message}"):
        read_ctm(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CtmError, match=r"none\.ctm: no such file"):
        read_ctm(tmp_path / "none.ctm")


@pytest.mark.parametrize(
    "entry",
    [
        CtmEntry("u", "1", -0.1, 0.2, "W"),
        CtmEntry("u", "1", 0.1, -0.2, "W"),
        CtmEntry("u", "1", float("nan"), 0.2, "W"),
        CtmEntry("u", "1", 0.0, float("inf"), "W"),
        CtmEntry("u v", "1", 0.0, 0.2, "W"),
        CtmEntry("u", "1", 0.0, 0.2, ""),
        CtmEntry("u", "", 0.0, 0.2, "W"),
        CtmEntry(";;u", "1", 0.0, 0.2, "W"),
    ],
)
def test_an_unwritable_field_is_refused_and_nothing_written(tmp_path, entry):
    with pytest.raises(CtmError):
        write_ctm([("a", "1", [TimedToken("W", 0.0, 1.0)]), row_of(entry)], tmp_path / "a.ctm")
    assert list(tmp_path.iterdir()) == []
