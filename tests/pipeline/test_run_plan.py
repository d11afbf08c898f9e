"""`toolkit pipeline run`: one command from a lake to training shards."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml
from click.testing import CliRunner

from tests.pipeline.synthetic_lake import SyntheticLakeConfig, make_lake
from toolkit.commands.pipeline import pipeline
from toolkit.config.settings import ConfigError
from toolkit.corpus.manifest import make_cut, probe_recording
from toolkit.errors import ToolkitError
from toolkit.features.config import FrontendConfig
from toolkit.features.normalise import Cmvn
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.models.store import save_model
from toolkit.pipeline.config import (
    ExecutorSection,
    PrepareConfig,
    RepartitionConfig,
    SelectConfig,
    TargetsSection,
)
from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.objects import ObjectStore
from toolkit.pipeline.prepare import (
    RunPlanError,
    make_features,
    make_training_shards,
    open_executor,
    read_plan,
    run_plan,
)
from toolkit.pipeline.steps.targets import Teacher

BINS = 4
HOURS_PER_FILE = 0.001
STEPS = ["sample", "group", "extract+shuffle+stats", "targets", "repartition"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A lake of 8 s, a teacher and its normaliser, and the digests of each step without a plan."""
    folder, cuts = tmp_path_factory.mktemp("plan"), []
    for number in range(16):
        path = folder / f"u{number}.wav"
        noise = np.random.default_rng(number).uniform(-0.5, 0.5, 8000)
        soundfile.write(path, noise, 16000)
        recording, _ = probe_recording(path, f"u{number}")
        cuts.append(make_cut(f"u{number}", recording, "", f"s{number % 4}"))
    store = ObjectStore()
    make_lake(cuts, store, str(folder / "lake"), SyntheticLakeConfig(buckets=1, interval_days=90))
    torch.manual_seed(0)
    save_model(folder / "teacher", LstmModel(LstmConfig(3 * BINS, 7, hidden=8, layers=1)))
    frontend, base = FrontendConfig(num_mel_bins=BINS), str(folder / "apart")
    config = PrepareConfig(SelectConfig(hours_per_file=HOURS_PER_FILE), frontend)
    with LocalExecutor() as executor:
        features, normaliser = make_features(
            str(folder / "lake"), config, executor, store, f"{base}/features"
        )
        (folder / "normaliser.json").write_text(normaliser.to_json())
        teacher = Teacher.at(store, folder / "teacher", folder / "normaliser.json")
        list(
            make_training_shards(
                features,
                teacher,
                TargetsSection(k=3),
                RepartitionConfig(HOURS_PER_FILE),
                frontend,
                executor,
                store,
                f"{base}/targets",
            )
        )
    assert Cmvn.load(folder / "normaliser.json").to_json() == normaliser.to_json()
    return folder


def write_plan(place, out, name="plan.yaml", **changes):
    plan = {
        "lake": "lake",
        "out": out,
        "prepare": {
            "select": {"hours_per_file": HOURS_PER_FILE},
            "frontend": {"num_mel_bins": BINS},
        },
        "teacher": "teacher",
        "normaliser": "normaliser.json",
        "targets": {"k": 3},
        "repartition": {"hours": HOURS_PER_FILE},
        **changes,
    }
    (place / name).write_text(yaml.safe_dump(plan))
    return str(place / name)


def digests(base):
    """The digest of each step's output below a folder."""
    summaries = [json.loads(path.read_text()) for path in Path(base).rglob("_summary.json")]
    return {summary["step"]: summary["output_digest"] for summary in summaries}


@pytest.mark.long
def test_a_plan_gives_the_outputs_of_the_steps_without_one(place, tmp_path):
    plan = write_plan(place, str(tmp_path / "out"), jobs=2)
    page = tmp_path / "page.html"
    result = CliRunner().invoke(pipeline, ["run", plan, "--page", str(page)])
    assert result.exit_code == 0, result.output
    assert set(digests(place / "apart")) == set(STEPS)
    assert digests(tmp_path / "out") == digests(place / "apart")
    assert "5 steps" in result.output
    assert "extract+shuffle+stats: 2 of 2 partitions" in result.stderr
    assert "repartition" in page.read_text()
    again = CliRunner().invoke(pipeline, ["run", plan, "--json"])
    report = json.loads(again.stdout)
    assert [step["step"] for step in report["steps"]] == STEPS
    total = report["total"]
    assert total["steps"] == 5
    assert total["kept"] == total["done"] == total["partitions"] > 5
    assert total["bytes"] == sum(step["bytes"] for step in report["steps"]) > 0
    assert total["retries"] == 0


KILLED = """
import os, sys
from toolkit.cli import main
from toolkit.pipeline import executor
write = executor.write_summary
def kill(config, step, *others):
    if step.name == {step!r}:
        os.kill(os.getpid(), 9)
    write(config, step, *others)
executor.write_summary = kill
if __name__ == "__main__":
    sys.argv = ["toolkit", "pipeline", "run", {plan!r}]
    main()
"""


KILLED_STEPS = STEPS if "PIPELINE_PROOFS" in os.environ else STEPS[2:3]  # all take minutes


@pytest.mark.long
def test_after_a_kill_the_same_command_gives_the_same_outputs(place, tmp_path):
    out = tmp_path / "out"
    plan = write_plan(place, str(out), name="killed.yaml")
    paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    for step in KILLED_STEPS:
        script = tmp_path / "run.py"
        script.write_text(KILLED.format(step=step, plan=plan))
        ended = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True)
        assert ended.returncode == -9, ended.stderr
        assert step not in digests(out)
        markers = list(out.rglob(f"{step}-*/_done/*"))
        assert markers
        markers[0].unlink()  # as if it had been killed before this one
    result = CliRunner().invoke(pipeline, ["run", plan, "--json"])
    assert result.exit_code == 0, result.output
    assert digests(out) == digests(place / "apart")
    steps = {step["step"]: step for step in json.loads(result.stdout)["steps"]}
    last = steps[KILLED_STEPS[-1]]
    assert last["kept"] == last["partitions"] - 1


def test_spark_gives_the_outputs_of_local_processes(place, tmp_path):
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    spark = {
        "kind": "spark",
        "spark": {"master": "local-cluster[2,1,1024]", "executor_memory": "512m"},
    }
    plan = write_plan(place, str(tmp_path / "out"), name="spark.yaml", executor=spark)
    result = CliRunner().invoke(pipeline, ["run", plan])
    assert result.exit_code == 0, result.output
    assert digests(tmp_path / "out") == digests(place / "apart")


def test_a_plan_on_s3_gives_the_same_digests(place, s3):
    executor = {"settings": {"store": {"options": s3.config.options}}}
    plan = write_plan(place, f"{s3.base}/out", name="s3.yaml", executor=executor, jobs=2)
    result = CliRunner().invoke(pipeline, ["run", plan, "--json"])
    assert result.exit_code == 0, result.output
    steps = json.loads(result.stdout)["steps"]
    assert {step["step"]: step["output_digest"] for step in steps} == digests(place / "apart")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"lake": ""}, RunPlanError, "lake must be set"),
        ({"teacher": None, "normaliser": None}, RunPlanError, "teacher and normaliser must be set"),
        ({"steps": ["targets"]}, ConfigError, "steps"),
        ({"jobs": 0}, ConfigError, "jobs"),
        ({"laek": "x"}, ConfigError, "laek"),
        ({"device": "gpu"}, ConfigError, "device"),
        ({"targets": {"k": 0}}, ConfigError, "`k` is 0"),
        ({"targets": {"offsets": [0, 3]}}, ConfigError, "offsets"),
    ],
)
def test_faulty_plans_are_refused(place, changes, error, message):
    path = write_plan(place, "out", name="faulty.yaml", **changes)
    with pytest.raises(error, match=message):
        read_plan(path)


def test_an_argument_is_not_called_an_option(place):
    for name in ("missing.yaml", "laek.yaml"):
        if name == "laek.yaml":
            write_plan(place, "out", name=name, laek="x")
        with pytest.raises(ConfigError) as error:
            read_plan(place / name)
        assert str(place / name) in str(error.value)
        assert "--config" not in str(error.value)


def test_relative_paths_are_resolved_against_the_plan(place):
    plan = read_plan(write_plan(place, "s3://bucket/out", name="paths.yaml", steps=["features"]))
    assert (plan.lake, plan.out) == (str(place / "lake"), "s3://bucket/out")
    assert plan.teacher == place / "teacher"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": "techer"}, "techer/config.json: no such file"),
        ({"normaliser": "fbank"}, "fbank: no such file"),
        ({"device": "cuda:99"}, r"`device` is cuda:99, but torch finds \d+ GPUs"),
    ],
)
def test_missing_inputs_of_targets_are_refused_before_features_are_made(
    place, tmp_path, changes, message
):
    path = write_plan(place, str(tmp_path / "out"), name="lacking.yaml", **changes)
    with pytest.raises(ToolkitError, match=message):
        run_plan(read_plan(path), [])
    assert not (tmp_path / "out").exists()


def test_a_plan_uses_one_gpu_or_all(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    slots = [open_executor(ExecutorSection(), 2, name).slots for name in ("cuda", "cuda:1", "cpu")]
    assert slots == [("cuda:0", "cuda:1", "cuda:2"), ("cuda:1",), ("cpu", "cpu")]


def test_teachers_of_several_runs_are_stored_beside_each_other(place):
    """The file of the normaliser may have the name of a file of the model."""
    store, url = ObjectStore(), f"memory://{place.name}/teacher"
    first = Teacher.at(store, place / "teacher", place / "normaliser.json", url)
    second = Teacher.at(store, place / "teacher", place / "teacher/config.json", url)
    for teacher in (first, second):
        for ref in (teacher.config, teacher.weights, teacher.normaliser):
            assert store.get(ref)
    assert second.normaliser.path == second.config.path != first.normaliser.path
    torch.manual_seed(1)
    save_model(place / "other", LstmModel(LstmConfig(3 * BINS, 7, hidden=8, layers=1)))
    Teacher.at(store, place / "other", place / "normaliser.json", url)
    assert store.get(first.weights)
