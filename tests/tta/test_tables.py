"""The tables of times to accuracy, and the published ones."""

import json
from dataclasses import replace

import pytest

from toolkit.score.results import Result, record_results
from toolkit.tta.config import TtaConfig
from toolkit.tta.machine import Price
from toolkit.tta.runs import BenchRunError, read_platforms
from toolkit.tta.tables import (
    cost_table,
    duration,
    efficiency_table,
    final_table,
    minutes,
    price_table,
    published,
    published_price_table,
    published_table,
    published_tables,
    rent_table,
    rules_table,
    stage_table,
    sweep_table,
    tta_table,
)


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


CONFIG = TtaConfig(cer=(12, 8), wer=(24,), epochs=3)
CURVES = {"slow": dict(step=4.0), "fast": dict(step=2.0)}


@pytest.fixture
def platforms(training):
    """`slow` takes 46.75 s for an epoch, `fast` 26.75 s; 12 % after four epochs, 8 % never."""
    folders = {name: training(name, **options) for name, options in CURVES.items()}
    prices = [
        Price("slow", total=1000.0, devices=600.0, as_of="2026"),
        Price("fast", total=3000.0, per_hour=6.0),
    ]
    return read_platforms([str(folder) for folder in folders.values()], prices)


def cells(table):
    return [[(cell.text, cell.detail) for cell in row.cells] for row in table.rows]


def test_tta_in_minutes_with_percentages_of_the_first(platforms):
    slow, fast = (3 + 4 * 46.75) / 60, (3 + 4 * 26.75) / 60
    share = f"{100 * fast / slow:.0f} %"
    table = tta_table(platforms, CONFIG, "TTA")
    assert cells(table) == [
        [("slow", ""), (f"{slow:.2f}", "100 %"), ("NA", ""), (f"{slow:.2f}", "100 %")],
        [("fast", ""), (f"{fast:.2f}", share), ("NA", ""), (f"{fast:.2f}", share)],
    ]
    assert [cell.best for cell in table.rows[1].cells] == [False, True, False, True]
    assert not any(cell.best for cell in table.rows[0].cells)


def test_three_rules_are_below_one_another(platforms):
    table = rules_table(platforms, CONFIG)
    assert [row.cells[0].text for row in table.rows] == ["slow", "", "", "fast", "", ""]
    dawnbench = table.rows[1].cells
    assert dawnbench[2].text == f"{(3 + 3 * 46.75) / 60:.2f}"
    assert dawnbench[3].text == f"{(3 + 5 * 46.75) / 60:.2f}"  # 8 % in the last epoch alone
    assert [cell.text for cell in table.rows[2].cells[1:]] == ["MLPerf", "NA", "NA", "NA"]


def test_the_table_has_price_and_performance(platforms):
    slow, fast = 3 + 4 * 46.75, 3 + 4 * 26.75
    relative = f"{3 * fast / slow:.2f}"
    assert cells(price_table(platforms, CONFIG))[1][1:] == [
        (relative, ""),
        ("NA", ""),
        (relative, ""),
    ]
    assert cells(cost_table(platforms))[1][1:3] == [("3,000.00", ""), ("3.00", "")]
    rent = cells(rent_table(platforms, CONFIG))
    assert len(rent) == 1
    assert rent[0][2] == (f"{6 * fast / 3600:.2f}", "")


def test_prices_in_different_currencies_are_not_compared(platforms):
    slow, fast = platforms
    fast = replace(fast, price=replace(fast.price, currency="EUR"))
    assert cells(price_table([slow, fast], CONFIG))[1][1:] == [("NA", "")] * 3
    table = cost_table([slow, fast])
    assert cells(table)[1][1:3] == [("3,000.00 EUR", ""), ("NA", "")]
    assert cells(table)[0][1:3] == [("1,000.00 USD", ""), ("1.00", "")]


def test_small_rents_keep_two_digits(training):
    platforms = read_platforms([f"cheap={training('a')}"], [Price("cheap", per_hour=0.05)])
    tta = platforms[0].tta(*CONFIG.targets[0], CONFIG.epochs)
    assert cells(rent_table(platforms, CONFIG))[0][2] == (f"{tta / 60 * 0.05:.2g}", "")


def test_without_prices_the_tables_have_no_prices(training):
    platforms = read_platforms([str(training("a"))])
    assert price_table(platforms, CONFIG) is None
    assert cost_table(platforms) is None
    assert rent_table(platforms, CONFIG) is None


def test_the_table_has_hardware_and_training_efficiency(platforms):
    row = efficiency_table(platforms, CONFIG).rows[1]
    assert [cell.text for cell in row.cells[:3]] == ["fast", "8", "4"]
    assert row.cells[-1].text == "320"  # four epochs of ten batches of 8
    unreached = efficiency_table(platforms, TtaConfig(cer=(1,), wer=()))
    assert unreached.rows[0].cells[-1].text == "NA"


def test_published_tables_are_marked_and_keep_their_printed_numbers():
    table = published_table("A32")
    assert table.published
    assert cells(table)[1][2] == ("1,118", "62 %")  # as printed, the slip is told below
    assert any("68 %" in remark for remark in table.remarks)
    assert cells(table)[2][3] == ("NA", "")
    assert cells(published_table("A33"))[0][1] == ("17.90", "")
    assert cells(published_table("A29"))[1][3] == ("97.98", "")


def test_published_costs_are_prices_times_minutes():
    relative = 25999.00 * 511 / (2605.29 * 820)
    assert cells(published_price_table())[2][2] == (f"{relative:.2f}", "")
    assert len(published_price_table().columns) == len(published("A32").columns) + 1


def test_final_rates_come_from_the_recipes_results(training, tmp_path):
    folder = training("exp/one")
    result = Result("ctc", "dev", "3gram", 7.1, 2.5, 1, 1, 1, 40, 0.1, "run_ctc.py")
    record_results(folder / "results.json", [result])
    platforms = read_platforms([str(folder)])
    assert cells(final_table(platforms)) == [
        [("one", ""), ("ctc", ""), ("3gram", ""), ("7.10", "")]
    ]
    platforms_without_results = read_platforms([str(training("other"))])
    assert final_table(platforms_without_results) is None
    assert cells(final_table(platforms_without_results, [result]))[0][1:] == [
        ("ctc", ""),
        ("3gram", ""),
        ("7.10", ""),
    ]
    assert stage_table(platforms) is None


def test_sweeps_are_read_and_others_refused(tmp_path):
    path = tmp_path / "sweep.json"
    path.write_text(
        json.dumps({"rows": [{"width": 1024, "seconds": 9, "wer": 24.75, "cer": 8.993}]})
    )
    assert cells(sweep_table(path)) == [[("1,024", ""), ("9", ""), ("24.75", ""), ("8.993", "")]]
    assert sweep_table(path).title == "Beam width against time and accuracy"
    path.write_text(json.dumps({"split": "dev-clean", "rows": []}))
    assert sweep_table(path).title == "Beam width against time and accuracy on dev-clean"
    path.write_text('{"rows": [{"width": 64}]}')
    with pytest.raises(BenchRunError, match=r"not a sweep.*tta sweep"):
        sweep_table(path)


def test_times_are_written_with_three_digits_and_a_unit_that_suits():
    assert [minutes(x) for x in (None, 2450.4, 12.34, 1.036)] == ["NA", "2,450", "12.3", "1.04"]
    assert [duration(x) for x in (0.5, 48, 750, 11520, 207360)] == [
        *("0.5 s", "48 s", "12.5 min", "3.2 h", "2.4 d"),
    ]
