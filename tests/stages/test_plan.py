from dataclasses import dataclass, field

import pytest

from tests.markers import make_marker
from toolkit.config.settings import NO_EFFECT_ON_RESULTS, result_parameters
from toolkit.stages.declaration import Stage
from toolkit.stages.directory import RunDirectory
from toolkit.stages.marker import Progress, Provenance
from toolkit.stages.plan import Planner, State, join_reasons, plan
from toolkit.storage.digests import Content, digest_bytes
from toolkit.storage.paths import overlap


@dataclass(frozen=True)
class Train:
    epochs: int = 4
    warm: bool = True
    rate: float = 1.0
    note: str = "x"
    workers: int = field(default=2, metadata=NO_EFFECT_ON_RESULTS)


@dataclass(frozen=True)
class Config:
    ce: Train = field(default_factory=Train)
    seed: int = 0


def marker(number=1, inputs=(), outputs=(), parameters=None):
    def contents(names):
        return {name: Content(1, digest_bytes(b"1")) for name in names}

    return make_marker(
        number,
        "title",
        parameters=parameters,
        inputs=contents(inputs),
        outputs=contents(outputs),
    )


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "exp").mkdir()
    return RunDirectory(tmp_path / "exp")


def stage(number, title="title", **options):
    return Stage(number, title, print, **options)


def state(directory, config=None, number=1):
    return Planner(directory, [stage(number)], config or Config()).state(stage(number))


def put(directory, *names):
    for name in names:
        (directory.root / name).write_text("1")


def test_a_stage_is_done_when_everything_matches(directory):
    put(directory, "in", "out")
    ce_parameters = {"epochs": 4, "warm": True, "rate": 1, "note": "x"}
    marker(1, ["in"], ["out"], {"ce": ce_parameters, "seed": 0}).write(directory.marker(1))
    assert state(directory).done
    assert state(directory, number=2) == State("pending")


def test_the_marker_of_a_renumbered_stage_is_not_used_for_another(directory):
    marker(2).write(directory.marker(2))
    new = stage(2, "new", when="seed")
    renumbered = Planner(directory, [new, stage(3, "title")], Config(seed=1))
    moved = renumbered.state(new)
    assert (moved.kind, moved.why) == (
        "stale",
        "its marker is from stage 3, which had this number before",
    )
    reworded = Planner(directory, [stage(2, "reworded"), stage(3, "other")], Config())
    assert reworded.state(stage(2, "reworded")).done
    # The other stage's outputs are none of this one's, which has nothing to lose if it is off.
    put(directory, "out")
    marker(2, outputs=["out"]).write(directory.marker(2))
    assert renumbered.outputs(2) == []
    assert reworded.outputs(2) == ["out"]
    assert Planner(directory, renumbered.stages, Config(seed=0)).state(new).kind == "stale"


@pytest.mark.parametrize(
    ("recorded", "config", "why"),
    [
        ({"seed": 1}, Config(), "`seed` 1 -> 0"),
        ({"ce": {"epochs": 4}}, Config(), "`ce.note` (x) is a new parameter; "),
        (
            {"ce": {"epochs": 6, "warm": True, "rate": 1.0, "note": "x", "old": 3}},
            Config(),
            "`ce.epochs` 6 -> 4; `ce.old` is no longer a parameter",
        ),
        ({"gone": 1}, Config(), "`gone` is no longer a parameter"),
        ({"ce": {"epochs": 4, "warm": 1, "rate": 1, "note": "x"}}, Config(), "`ce.warm` 1 -> true"),
        (
            {"ce": {"epochs": 4, "warm": True, "rate": 1.0, "note": "a" * 99 + "b"}},
            Config(Train(note="a" * 99 + "c")),
            "`ce.note` changed",
        ),
    ],
)
def test_a_changed_parameter_is_named_with_both_values(directory, recorded, config, why):
    marker(1, parameters=recorded).write(directory.marker(1))
    present = state(directory, config)
    assert present.kind == "stale"
    assert present.why.startswith(why)


def test_parameters_that_the_stage_did_not_read_do_not_count(directory):
    marker(1, parameters={"seed": 0}).write(directory.marker(1))
    assert state(directory, Config(Train(epochs=9))).done


def test_settings_of_execution_are_no_parameters_of_a_stage(directory):
    parameters = {"ce": result_parameters(Train(workers=2))}
    assert parameters == {"ce": {"epochs": 4, "warm": True, "rate": 1.0, "note": "x"}}
    marker(1, parameters=parameters).write(directory.marker(1))
    assert state(directory, Config(Train(workers=9))).done


def test_a_damaged_marker_is_stale(directory):
    directory.stages.mkdir()
    directory.marker(1).write_text("{")
    assert str(state(directory)) == "stale: the marker is damaged"


def test_partial_outputs_show_how_far_they_are(directory):
    directory.write(directory.provenance(1), Provenance({"seed": 0}).to_json())
    assert str(state(directory)) == "partial"
    directory.write(directory.progress(1), Progress(31, 50, 1.0).to_json())
    assert str(state(directory)) == "partial 62 %"
    assert str(state(directory, Config(seed=3))) == "partial 62 %: will start over (`seed` 0 -> 3)"


def test_a_failed_stage_shows_its_message_until_it_is_done(directory):
    directory.write(directory.provenance(1), Provenance({"seed": 0}).to_json())
    directory.write(directory.progress(1), Progress(1, 2, 1.0).to_json())
    directory.stages.mkdir()
    directory.failure(1).write_text("ValueError: no\n\ntraceback")
    assert str(state(directory)) == "failed 50 %: ValueError: no"
    marker(1).write(directory.marker(1))
    assert state(directory).done


def test_an_interrupted_publication_counts_as_almost_done(directory):
    marker(1).write(directory.publishing(1))
    assert str(state(directory)).startswith("partial 100 %: the next run puts")


def done(number, inputs=(), outputs=()):
    return stage(number), State("done", marker=marker(number, inputs, outputs))


def stale(number, inputs=(), outputs=()):
    return stage(number), State("stale", "why", marker(number, inputs, outputs))


def actions(stages, forced=()):
    return [(planned.action, planned.why) for planned in plan(stages, forced)]


def test_a_plan_skips_what_is_done_and_runs_the_rest():
    begun = State("partial", percent=5)
    stages = [done(1), stale(2), (stage(3), State("pending")), (stage(4), begun)]
    assert actions(stages) == [
        ("skip", "done"),
        ("run", "why"),
        ("run", "never run"),
        ("run", "partial 5 %"),
    ]


def test_stages_downstream_of_a_changing_output_may_run():
    stages = [
        stale(1, outputs=["a"]),
        done(2, ["a/file"], ["b"]),
        done(3, ["b"], ["c"]),
        done(4, ["/outside"], ["d"]),
        done(5, ["d", "c"]),
    ]
    assert actions(stages) == [
        ("run", "why"),
        ("may run", "if stage 1 changes its outputs"),
        ("may run", "if stage 2 changes its outputs"),
        ("skip", "done"),
        ("may run", "if stage 3 changes its outputs"),
    ]


def test_a_stage_without_a_marker_may_write_outputs_of_no_other_stage():
    stages = [(stage(1), State("pending")), done(2, (), ["b"]), done(3, ["a"]), done(4, ["b"])]
    assert [action for action, _ in actions(stages)] == ["run", "skip", "may run", "skip"]


def test_force_makes_a_done_stage_run():
    assert actions([done(1, (), ["a"]), done(2, ["a"])], {1}) == [
        ("run", "forced"),
        ("may run", "if stage 1 changes its outputs"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a", "a", True),
        ("a", "a/b", True),
        ("a/b", "a", True),
        ("a", "ab", False),
        ("ab/c", "a", False),
    ],
)
def test_paths_overlap_when_one_contains_the_other(first, second, expected):
    assert overlap(first, second) is expected


def test_many_reasons_are_shortened():
    assert join_reasons(["a", "b"]) == "a; b"
    assert join_reasons(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"
