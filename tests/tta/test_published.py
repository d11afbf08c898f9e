import pytest

from toolkit.tta.tables import published, published_tables


@pytest.mark.parametrize("item", sorted(published_tables()))
def test_rows_are_as_wide_as_their_heads(item):
    table = published(item)
    assert table.title
    assert table.source
    assert table.place
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert len({row[:2] for row in table.rows}) == len(table.rows)


@pytest.mark.parametrize(
    ("item", "slips"),
    [("A32", {("Sys2$", "CER 8"), ("Sys10$", "WER 22")}), ("A34", {("Sys10$", "WER 20")})],
)
def test_printed_percentages_follow_from_the_minutes_but_for_known_slips(item, slips):
    table = published(item)
    base = table.rows[0]
    wrong = set()
    for row, percent in zip(table.rows, table.percent, strict=True):
        for n, printed in enumerate(percent, 1):
            assert (row[n] is None) == (printed is None)
            if printed is not None and round(100 * row[n] / base[n]) != printed:
                wrong.add((row[0], table.columns[n]))
    assert wrong == slips
    assert table.errata


def test_relative_costs_follow_from_the_totals():
    rows = published("A29").rows
    for row in rows:
        assert row[4] == round(row[1] / rows[0][1], 2)
        assert row[2] + row[3] < row[1]


def test_batches_are_split_evenly():
    gpus = {"Sys1$": 4, "Sys2$": 4, "Sys10$": 2}
    for platform, total, each, _, _ in published("A10").rows:
        assert total == each * gpus[platform]


def test_the_speed_up_of_hierarchical_adpsgd_does_not_follow_from_a_week():
    table = published("B5")
    week, best = table.row("one GPU")["hours"], table.row("H-ADPSGD")["hours"]
    assert round(week / best) == 32
    assert round(40 * best) == 208
    assert "208" in table.errata[0]


def test_unknown_rows_and_items_are_errors():
    with pytest.raises(KeyError):
        published("A32").row("Sys3$")
    with pytest.raises(KeyError):
        published("Z1")
