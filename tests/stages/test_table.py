"""The table of `--list`."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from toolkit.stages.listing import WIDTH, Row, table_lines

DONE = Row("1", "Write the manifests", "done", "", "0.3 s", "", "train 1263")
WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=30), max_size=40).map(" ".join)


def test_stages_that_fit_have_one_line_each():
    stale = replace(DONE, stage="2", kind="stale", reason=": `a` 1 -> 2", result="")
    assert table_lines([DONE, stale]) == [
        "stage  title                state              time   result",
        "1      Write the manifests  done               0.3 s  train 1263",
        "2      Write the manifests  stale: `a` 1 -> 2  0.3 s",
    ]
    head, first = table_lines([replace(DONE, code="commit 1")])
    assert head.split() == ["stage", "title", "state", "time", "code", "result"]
    assert first.endswith("0.3 s  commit 1  train 1263")


def test_a_long_reason_widens_only_its_own_row():
    reason = ": " + " ".join(["text of the language model"] * 10)
    _, first, second, *below = table_lines(
        [DONE, replace(DONE, stage="2", kind="stale", reason=reason)]
    )
    assert first == "1      Write the manifests  done   0.3 s  train 1263"
    assert second == "2      Write the manifests  stale  0.3 s  train 1263"
    assert " ".join(" ".join(below).split()) == f"stale{reason}"


def test_codes_are_explained_below_the_table():
    rows = [replace(DONE, stage=str(n), code="commit 1", result="x" * 80) for n in (1, 2)]
    assert table_lines(rows)[-1] == "code of 1, 2: commit 1"


@given(
    rows=st.lists(
        st.builds(
            Row,
            stage=st.integers(0, 99).map(str),
            title=WORDS.map(lambda t: t or "T"),
            kind=st.sampled_from(["done", "failed 100 %"]),
            reason=WORDS.map(lambda t: t and f": {t}"),
            time=st.sampled_from(["", "10 h 02 min"]),
            code=WORDS,
            result=WORDS,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_table_is_never_too_wide_and_loses_nothing(rows):
    table = table_lines(rows)
    assert max(map(len, table)) <= WIDTH
    words = " ".join(table).split()
    for row in rows:
        assert set(f"{row.reason} {row.result} {row.code}".split()) - {":"} <= set(words)
