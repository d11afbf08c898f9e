import math

import pytest

from toolkit.pipeline.plan import Cluster, PlanError, nodes_for, plan, planned_figures
from toolkit.pipeline.rates import Rates, RatesError, StepRate
from toolkit.pipeline.report import PlanReport, plan_page, print_plan

RATES = Rates(
    {
        "select": StepRate(1e6, 2e5, 2e5),
        "extract": StepRate(1000.0, 115.2e6, 46e6),
        "shuffle": StepRate(4000.0, 46e6, 46e6),
        "stats": StepRate(4000.0, 46e6, 0.0),
        "targets": StepRate(60.0, 46e6, 10e6),
        "repartition": StepRate(9000.0, 56e6, 56e6),
    }
)


def step_of(pipeline_plan, name):
    return next(step for step in pipeline_plan.steps if step.name == name)


def test_costs_of_a_step_equal_values_computed_by_hand():
    cluster = Cluster(nodes=2, cores=10, network=1e12, price=3.0)
    pipeline_plan = plan(1000, cluster, RATES, fuse=False)
    extract = step_of(pipeline_plan, "extract")
    assert extract.partitions == 200  # of 5 h, ten waves of 20
    calls = 1 + 5 * 115.2e6 / 32e6 + 2 + 1  # the list, spans of audio, cuts and features, marker
    computing, transfer = 5 * 3.6, 5 * (115.2e6 + 46e6) / 50e6
    seconds = 10 * (computing + calls * 0.2 + transfer + 0.1)
    assert extract.seconds == pytest.approx(seconds)
    assert extract.calls == pytest.approx(200 * calls)
    assert extract.cost == pytest.approx(2 * 3.0 * seconds / 3600)
    assert extract.bound == "computing"
    assert pipeline_plan.seconds == pytest.approx(sum(step.seconds for step in pipeline_plan.steps))


def test_fusing_saves_passes_and_keeps_the_computing():
    cluster = Cluster(nodes=10)
    apart, fused = (plan(1e5, cluster, RATES, fuse=fuse) for fuse in (False, True))
    assert fused.fused == ("extract", "shuffle", "stats")
    assert apart.fused == ()
    bytes_apart, bytes_fused = (
        sum(step.read + step.written for step in pipeline_plan.steps)
        for pipeline_plan in (apart, fused)
    )
    assert bytes_apart - bytes_fused == pytest.approx(fused.saved)
    assert fused.saved == pytest.approx(1e5 * 3 * 46e6)  # features: out, in, and in once more
    assert fused.seconds < apart.seconds


def test_an_object_per_utterance_waits_for_calls():
    pipeline_plan = plan(1e6, Cluster(), RATES, aggregated=False)
    extract = step_of(pipeline_plan, "extract+shuffle+stats")
    assert extract.bound == "calls"
    assert extract.calls > 1e9  # one per utterance (C35)
    aggregated = step_of(plan(1e6, Cluster(), RATES), "extract+shuffle+stats")
    assert extract.seconds > 10 * aggregated.seconds


def test_a_thin_network_bounds_the_cluster():
    pipeline_plan = plan(1e4, Cluster(network=1e6), RATES)
    extract = step_of(pipeline_plan, "extract+shuffle+stats")
    assert extract.bound == "network"
    assert extract.seconds == pytest.approx(1e4 * (115.2e6 + 46e6) / (50 * 1e6))


def test_targets_run_on_devices_where_there_are_any():
    rates = RATES.with_speed("targets", 5000.0, device=True)
    assert step_of(plan(1e6, Cluster(devices=8), rates), "targets").workers == 50 * 8
    assert step_of(plan(1e6, Cluster(devices=8), RATES), "targets").workers == 50 * 16


def test_the_plan_gives_the_papers_counts():
    figures = planned_figures(plan(1e6, Cluster(), RATES), RATES)
    assert figures["files of 5 h"] == "200,000"
    assert figures["training partitions of 2 h"] == "500,000"
    assert figures["audio"] == "115.2 TB, 1e+09 utterances"


@pytest.mark.parametrize("options", [{}, {"hours_per_file": 0.5}, {"aggregated": False}])
def test_nodes_for_is_the_least_number(options):
    nodes = nodes_for(7.6, plan(1e6, Cluster(), RATES, **options), RATES)
    around = (nodes - 1, nodes)
    seconds = [plan(1e6, Cluster(nodes=n), RATES, **options).seconds for n in around]
    assert seconds[0] > 7.6 * 86400 >= seconds[1]
    with pytest.raises(PlanError, match="not enough"):
        nodes_for(1e-6, plan(1e6, Cluster(), RATES), RATES)


def test_intervals_and_measured_fusion_carry_over():
    steps = {name: rate for name, rate in RATES.steps.items() if name in ("select", "repartition")}
    steps["extract+shuffle+stats"] = StepRate(800.0, low=400.0, high=1600.0, measured_on="a pilot")
    steps["targets"] = StepRate(60.0)
    cluster = Cluster(nodes=1, cores=2, latency=0.0, bandwidth=1e18, network=1e18)
    pipeline_plan = plan(100.0, cluster, Rates(steps))
    extract = step_of(pipeline_plan, "extract+shuffle+stats")
    waves = [10 * (5 * 3600 / speed + 0.1) for speed in (1600, 800, 400)]
    assert [extract.least, extract.seconds, extract.most] == pytest.approx(waves)
    assert extract.measured_on == "a pilot"
    least, most = pipeline_plan.interval
    assert (most - least) == pytest.approx(waves[2] - waves[0])
    assert pipeline_plan.saved is None
    assert pipeline_plan.features_seconds == pytest.approx(
        step_of(pipeline_plan, "select").seconds + extract.seconds
    )
    with pytest.raises(PlanError, match="no rates for extract, shuffle, stats"):
        plan(100.0, cluster, Rates(steps), fuse=False)


def test_the_page_has_every_step_and_what_a_day_takes():
    steps = RATES.steps | {"targets": StepRate(60.0, low=50.0, high=70.0, measured_on="<noise>")}
    rates = Rates(steps, measured={"cpu": "A core", "date": "2026-11-26"})
    cluster = Cluster(price=2.0)
    report = PlanReport(plan(1e6, cluster, rates), plan(1e6, cluster, rates, fuse=False), rates)
    page = plan_page(report)
    assert "1,000,000 hours on 50 nodes of 16 cores" in page
    for step in report.plan.steps:
        assert f'<th scope="row">{step.name}</th>' in page
    assert "&lt;noise&gt;" in page
    nodes = nodes_for(1.0, report.plan, rates)
    assert f"{nodes:,} such nodes would take at most a day, for up to {nodes * 48:,}." in page
    assert "a core as fast as one of A core (2026-11-26)" in page


def test_a_narrow_terminal_cuts_no_cell(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal
    monkeypatch.setenv("COLUMNS", "60")
    report = PlanReport(plan(1e6, Cluster(price=2.0), RATES), None, RATES)
    print_plan(report)
    stdout = capsys.readouterr().out
    assert "…" not in stdout
    assert all(cell in stdout for cells in report.rows() for cell in cells)


def test_a_plan_that_no_number_of_nodes_can_finish_says_so():
    slow = Rates(RATES.steps | {"targets": StepRate(0.01)})
    report = PlanReport(plan(1e6, Cluster(), slow), None, slow)
    assert any(text.startswith("1 days are not enough") for text in report.sentences())


def test_rates_round_trip_and_missing_ones_are_named(tmp_path):
    RATES.save(tmp_path / "rates.json")
    assert Rates.load(tmp_path / "rates.json") == RATES
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(RatesError, match="toolkit pipeline measure"):
        Rates.load(tmp_path / "bad.json")
    for wrong in ('{"select": {"speed": 0}}}', '{}, "seconds_per_utterance": 0}'):
        (tmp_path / "bad.json").write_text('{"steps": ' + wrong)
        with pytest.raises(RatesError, match=r"bad.json: not a file of rates .*above 0"):
            Rates.load(tmp_path / "bad.json")
    with pytest.raises(PlanError, match="extract"):
        plan(1.0, Cluster(), Rates({"select": StepRate(1.0)}))
    assert math.isinf(RATES.with_speed("stats", math.inf).steps["stats"].speed)
