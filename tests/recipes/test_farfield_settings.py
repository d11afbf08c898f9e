"""Settings of the far-field recipe, and what its stages make of them."""

import re
from importlib import import_module, resources
from pathlib import PurePath
from types import SimpleNamespace

import pytest

pytest.importorskip("pyroomacoustics")

from lhotse import Recording
from lhotse.audio import AudioSource

from recipes.farfield_ssl.config import PARTS, PROFILES
from recipes.steps.settings import HybridConfig
from tests.dummies import setting_of
from toolkit.config.settings import apply_overrides
from toolkit.corpus.findings import write_exclusions
from toolkit.corpus.manifest import make_cut, write_cuts
from toolkit.features.extract import pack_shards
from toolkit.parallel.config import ParallelError
from toolkit.parallel.strategy import make_strategy
from toolkit.pipeline.shards import write_manifests


def make_utterance(speaker, number, seconds=5.0):
    """Return a cut of `seconds` s."""
    id = f"{speaker}-{number:02d}"
    source = AudioSource("file", [0], f"{id}.flac")
    recording = Recording(id, [source], 16000, int(16000 * seconds), seconds)
    return make_cut(id, recording, "T", speaker)


def test_the_grid_reaches_below_the_chosen_scales():
    usual = HybridConfig().decode
    for profile in PROFILES.values():
        assert profile().decode.scales == (0.15, *usual.scales)


def test_mini_decodes_books_with_a_wide_beam():
    from recipes.librispeech.config import PROFILES as LIBRISPEECH

    assert PROFILES["mini"]().decode.beam == LIBRISPEECH["mini"]().decode.beam
    assert PROFILES["mini"]().decode.beam.max_active > PROFILES["demo"]().decode.beam.max_active


def test_array_sets_are_decoded_by_several_processes(tmp_path, monkeypatch):
    """Three minutes of four speakers make four shards."""
    from recipes.steps import farfield

    cuts = [make_utterance(f"s{n % 4}", n) for n in range(36)]
    for name in ("DP1", "DP1-raw", "DP1-array"):
        write_cuts(cuts, tmp_path / f"data/{name}.jsonl")
    write_exclusions([], tmp_path / "check/excluded.tsv")
    shards = []

    def extract(cuts, config, out, jobs, device):
        assert (out.name, device) == ("DP1-raw", "cuda")
        shards.append(len(pack_shards(cuts, config.hours_per_shard)))
        raise KeyboardInterrupt

    monkeypatch.setattr(farfield, "PLACEMENTS", ("DP1",))
    monkeypatch.setattr(farfield, "enhanced_cuts", lambda arrays, out: arrays)
    monkeypatch.setattr(farfield, "extract", extract)
    config = PROFILES["mini"]()
    run = SimpleNamespace(
        config=config,
        setting=setting_of(config),
        jobs=2,
        make=tmp_path.joinpath,
        need=tmp_path.joinpath,
        need_audio=lambda manifest: {},
        device="cuda",
    )
    with pytest.raises(KeyboardInterrupt):
        farfield.decode_arrays(run, "student_smbr", tmp_path)
    assert shards == [4]


def test_missing_spark_is_reported_before_the_first_stage(tmp_path, monkeypatch, capsys):
    from recipes.farfield_ssl.run import recipe
    from toolkit.pipeline import spark

    monkeypatch.setattr(spark, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as exit_:
        recipe.main(["--set", "executor.kind=spark", "--exp", str(tmp_path / "exp")])
    assert exit_.value.code == 1
    assert "pip install -e '.[spark]'" in capsys.readouterr().err
    assert not list(tmp_path.glob("exp/stages/[0-9]*"))


def test_missing_storage_is_reported_before_the_first_stage(tmp_path, capsys):
    from recipes.farfield_ssl.run import recipe

    with pytest.raises(SystemExit) as exit_:
        recipe.main(["--set", "storage=s4://bucket/folder", "--exp", str(tmp_path / "exp")])
    assert exit_.value.code == 1
    assert "does not support s4://" in capsys.readouterr().err
    assert not list(tmp_path.glob("exp/stages/[0-9]*"))


def test_full_trains_in_parallel():
    """BMUF trains the student (C12), synchronous SGD the models of labelled data."""
    config = PROFILES["full"]()
    for section in ("baseline", "teacher", "sequence", "self_trained"):
        assert getattr(config, section).parallel.method == "ssgd"
    assert config.student.parallel.method == "bmuf"


@pytest.mark.parametrize("recipe", ["farfield_ssl", "librispeech"])
def test_without_a_parallel_method_the_message_names_the_recipes_settings(recipe, monkeypatch):
    config = import_module(f"recipes.{recipe}.config").PROFILES["demo"]()
    monkeypatch.setattr("toolkit.processes.ranks.world_size", lambda: 2)
    with pytest.raises(ParallelError) as error:
        make_strategy(config.sequence.parallel)
    named = re.search("such as (.*) or (.*)$", str(error.value))
    sections = [*named[1].split(", "), named[2]]
    assert any(hasattr(getattr(config, name, None), "parallel") for name in sections)
    assert "--set ce." not in str(error.value)


def test_the_student_learns_from_the_same_labelled_speech_as_the_baseline(tmp_path, monkeypatch):
    """It uses the copies too, and the targets of the last round of alignment."""
    from recipes.steps import learning

    for name in ("FeatureStore", "Senones.load"):
        monkeypatch.setattr(f"recipes.steps.learning.{name}", lambda path: path)
    monkeypatch.setattr("recipes.steps.learning.OffsetAlignments.open", lambda last, senones: last)
    monkeypatch.setattr(learning, "AugmentedAlignments", lambda *of: of)
    monkeypatch.setattr(learning, "targets", lambda run, aligner: aligner)

    def labelled(*overrides):
        config = apply_overrides(PROFILES["demo"](), overrides, tmp_path)
        run = SimpleNamespace(config=config, setting=setting_of(config), need=PurePath)
        return learning.labelled_speech(run, "gmm", "first")

    train, copies = PurePath("fbank/train"), PurePath("fbank/copies")
    last = PurePath("first/rounds/1")
    assert labelled() == ([train], ["gmm"])
    assert labelled("augment.speeds=0.9") == ([train, copies], ["gmm", ("gmm", copies)])
    assert labelled("align.rounds=2") == ([train], [last])
    assert labelled("align.rounds=2", "augment.speeds=0.9")[1] == [last, (last, copies)]


@pytest.mark.parametrize(
    ("objective", "beside"), [("ce", {14, 15, 16, 24, 25, 26, 27}), ("lfmmi", set())]
)
def test_stages_run_in_parallel_only_with_training_stages(objective, beside, tmp_path):
    """Otherwise they would use half of the jobs while nothing else runs."""
    from recipes.farfield_ssl.run import recipe

    config = apply_overrides(PROFILES["demo"](), [f"objective={objective}"], tmp_path)
    assert {s.number for s in recipe.stages if s.runs_in_background(config)} == beside


def test_the_breakdown_has_every_earlier_stage_once():
    from recipes.farfield_ssl.run import recipe

    numbers = [number for stages in PARTS.values() for number in stages]
    assert sorted(numbers) == [stage.number for stage in recipe.stages][:-1]
    style = resources.files("toolkit.report").joinpath("page.css").read_text()
    assert all(f".c{number} " in style for number in range(len(PARTS)))


@pytest.mark.parametrize(
    ("objective", "left_out"),
    [("ce", {31, 32, 33, 34, 35, 36}), ("lfmmi", {17, 18, 19, *range(22, 31)})],
)
def test_the_breakdown_has_no_times_of_disabled_stages(objective, left_out, tmp_path, monkeypatch):
    """Disabled stages may have run with earlier settings."""
    from recipes.farfield_ssl import run

    breakdowns = []
    farfield = run.steps.farfield
    monkeypatch.setattr(farfield, "write_breakdown", lambda run, parts: breakdowns.append(parts))
    monkeypatch.setattr(farfield, "compare_placements", lambda run, baseline, systems: {})
    config = apply_overrides(PROFILES["demo"](), [f"objective={objective}"], tmp_path)
    run.results(SimpleNamespace(config=config))
    (parts,) = breakdowns
    assert list(parts) == list(PARTS)
    assert {n for stages in parts.values() for n in stages} == set(range(1, 39)) - left_out


def test_the_student_gets_as_many_prior_frames_as_the_baseline(tmp_path, monkeypatch):
    from recipes.steps import learning

    prior_frames = []

    def make_features(lake, config, executor, store, base):
        prior_frames.append(config.stats.prior_frames)
        write_manifests(store, str(tmp_path / "made"), [], None)
        return learning.ShardSet(str(tmp_path / "made"), (), ()), None

    monkeypatch.setattr(learning, "make_features", make_features)
    config = apply_overrides(PROFILES["demo"](), ["prior_frames=77"], tmp_path)
    places = {"make": tmp_path.joinpath, "need": tmp_path.joinpath}
    settings = {"config": config, "setting": setting_of(config)}
    learning.prepare_unlabelled(SimpleNamespace(jobs=1, **settings, **places))
    assert prior_frames == [77]
