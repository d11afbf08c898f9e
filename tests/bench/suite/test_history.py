from dataclasses import replace

import pytest

from toolkit.bench.instruments.harness import BenchmarkError, Row, Table
from toolkit.bench.suite import history
from toolkit.bench.suite.history import SuiteRun, append, quantities, read
from toolkit.bench.suite.measure import Measured

CPU = {"cpu": "8086", "cpus": 1, "system": "Linux", "memory_gib": 1}


def run(ratio, figure=1.0, quick=False, cpu="8086", spread=0.0):
    rows = (Row("limit", 2.0, 1.0, 0.0), Row("ours", 2 * ratio, ratio, spread))
    table = Table(
        "frames", "limit", 3, rows, "Speed", ("a note",), {"size": figure}, CPU | {"cpu": cpu}
    )
    return SuiteRun("2026-01-02T03:04:05+00:00", quick, {"train": Measured(table, 1.5, 2**20)})


def test_runs_come_back_from_their_file(tmp_path):
    path = tmp_path / "new" / "history.jsonl"
    assert read(path) == []
    runs = [run(0.5), SuiteRun("later", True, {}, {"align": "no room"})]
    for one in runs:
        append(path, one)
    assert read(path) == runs


@pytest.mark.parametrize("line", ["{", "[]", '{"time": "now"}', '{"measured": {"a": 1}}'])
def test_a_damaged_history_is_told_with_its_line(tmp_path, line):
    path = tmp_path / "history.jsonl"
    append(path, run(0.5))
    with open(path, "a") as file:
        file.write(line + "\n")
    with pytest.raises(BenchmarkError, match=r"history\.jsonl: line 2 .* move it away"):
        read(path)


def test_a_ratio_is_compared_with_the_median_of_the_last_runs():
    values = [9.0, 1.0, 1.0, 1.2, 0.8, 1.0]  # the first is too long ago
    [ours, size] = quantities([*map(run, values), run(0.89)])
    assert (ours.name, ours.earlier, ours.before) == ("ours", tuple(values), 1.0)
    assert ours.worse
    assert not size.worse
    assert not quantities([run(1.0), run(0.91)])[0].worse
    assert not quantities([run(1.0), run(0.89, spread=0.05)])[0].worse  # within what it varies
    assert not quantities([run(0.5)])[0].worse  # nothing to compare with


def test_a_figure_is_worse_when_it_rises():
    def worse(before, now):
        [_, size] = quantities([run(1, before), run(1, now)])
        return size.worse

    assert worse(1.0, 1.11)
    assert not worse(1.0, 1.09)
    assert not worse(0.1, 0.14)  # by less than `LEAST`
    assert worse(-0.1, 0.0)
    assert history.LEAST == 0.05


def test_only_runs_of_the_same_size_and_machine_are_compared():
    others = [run(9.0, quick=True), run(9.0, cpu="6502"), SuiteRun("", False, {}, {"train": "no"})]
    assert quantities([*others, run(1.0)])[0].earlier == ()
    assert quantities([*others, run(2.0), run(1.0)])[0].earlier == (2.0,)


def test_ratios_to_another_baseline_are_not_compared():
    """Where kaldifeat is installed, features are compared with it instead of torch's."""
    before, after = run(1.0), run(0.5)
    table = after.measured["train"].table
    rows = (replace(table.rows[0], name="other limit"), table.rows[1])
    table = replace(table, baseline="other limit", rows=rows)
    after.measured["train"] = replace(after.measured["train"], table=table)
    ours = quantities([before, after])[0]
    assert (ours.name, ours.earlier, ours.worse) == ("ours", (), False)
    assert quantities([before, after, run(0.5)])[0].earlier == (1.0,)
