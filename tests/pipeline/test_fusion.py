import pytest
from sample_steps import Reverse, ReverseConfig

from toolkit.pipeline.local import LocalExecutor
from toolkit.pipeline.step import FusedStep, Partition, output_prefix, step_digest


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.glob("*/*") if p.parent.name[0] != "_"}


@pytest.fixture
def steps():
    return [Reverse(ReverseConfig(repeat=n, name=f"step{n}")) for n in (1, 2, 3)]


def test_fused_steps_write_the_bytes_of_steps_run_one_by_one(tmp_path, steps, make_partitions):
    partitions = step_partitions = make_partitions(2, bad={1})
    executor = LocalExecutor()
    for step in steps:
        results = executor.run(step, step_partitions, str(tmp_path / step.name))
        step_partitions = [
            Partition(p.id, result.outputs)
            for p, result in zip(step_partitions, results, strict=True)
        ]
    fused = FusedStep(steps, keep=["step1"])
    fused_results = executor.run(fused, partitions, str(tmp_path / "fused"))
    for name in ("step1", "step3"):
        assert contents(tmp_path / "fused" / name) == contents(tmp_path / name)
    assert not (tmp_path / "fused/step2").exists()
    assert [len(result.outputs) for result in fused_results] == [4, 2]
    assert fused_results[1].failures == (("1-1.bin", "holds\nbad"),)
    assert fused_results[0].about["step2"]["bytes"] * 3 == fused_results[0].about["bytes"]
    assert executor.run(fused, partitions, str(tmp_path / "fused")) == fused_results


def test_the_digest_depends_on_the_steps_and_the_stored_outputs(steps):
    fused = FusedStep(steps)
    assert fused.name == "step1+step2+step3"
    digests = {
        step_digest(step)
        for step in (fused, FusedStep(steps, ["step1"]), FusedStep(steps[:2]), steps[0])
    }
    assert len(digests) == 4
    assert output_prefix(fused, "s3://x/").startswith("s3://x/step1+step2+step3-")


def test_invalid_fusions_are_refused(steps):
    with pytest.raises(ValueError, match="two steps"):
        FusedStep(steps[:1])
    with pytest.raises(ValueError, match="different names"):
        FusedStep([steps[0], steps[0]])
    with pytest.raises(ValueError, match=r"\['other'\]"):
        FusedStep(steps, keep=["other"])
