"""Real file systems that are full or read-only."""

import os
import subprocess

import pytest


@pytest.fixture
def mount(tmp_path):
    """Mount a small file system; skip if that is not permitted."""
    mounted = []

    def mount_at(path, *options):
        path.mkdir(parents=True, exist_ok=True)
        command = ["mount", *options, str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mounting is not permitted; test_interruption.py fakes the errors")
        mounted.append(path)

    yield mount_at
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_is_reported_and_freeing_space_continues(sample, finished, mount):
    mount(sample.exp, "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    assert sample.main("--stop-stage", 2).status == 0
    ballast = sample.exp / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    result = sample.main()
    assert result.status == 1
    assert "the disk is full" in result.output
    assert "run the same command again" in result.output
    assert "Traceback" not in result.output
    assert sample.main("--list").status == 0
    ballast.unlink()
    result = sample.main()
    assert result.status == 0, result.output
    assert sample.outputs() == finished
    assert sample.leftovers() == []


def test_a_disk_that_fills_up_during_training_is_reported(sample, finished, mount):
    mount(sample.exp, "-t", "tmpfs", "-o", "size=128k", "tmpfs")
    result = sample.main("--set", "train.epochs=200")
    assert result.status == 1
    assert "stage 3 (Train the model) failed: the disk is full" in result.output
    subprocess.run(["mount", "-o", "remount,size=1m", str(sample.exp)], check=True)
    result = sample.main()
    assert result.status == 0, result.output
    assert sample.outputs() == finished


def test_a_read_only_directory_is_reported_and_can_be_listed(sample, mount):
    assert sample.main("--stop-stage", 3).status == 0
    mount(sample.exp, "--bind", str(sample.exp))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(sample.exp)], check=True)
    result = sample.main()
    assert result.status == 1
    assert "cannot be written (Read-only file system)" in result.output
    assert "--exp DIR" in result.output
    assert "Traceback" not in result.output
    assert sample.main("--list").output.count("done") == 3
    assert "5 Decode the test split: would run: never run" in sample.main("--dry-run").output
    assert sample.main("--exp", sample.folder / "elsewhere").status == 0


def test_a_directory_of_another_user_is_reported(sample):
    sample.exp.mkdir(parents=True)
    sample.exp.chmod(0o555)
    if os.access(sample.exp, os.W_OK):  # the superuser writes anywhere

        def become_nobody():
            os.setresuid(65534, 65534, 65534)

        sample.folder.chmod(0o777)
        for parent in sample.folder.parents:
            if not os.stat(parent).st_mode & 0o001:
                parent.chmod(os.stat(parent).st_mode | 0o011)
        result = sample.main(setup=become_nobody)
    else:
        result = sample.main()
    assert result.status == 1
    assert f"{sample.exp}/stages cannot be written (Permission denied)" in result.output
    assert "Traceback" not in result.output


def test_a_run_directory_that_is_a_file_is_reported(sample):
    sample.exp.parent.mkdir(parents=True)
    sample.exp.write_text("")
    result = sample.main()
    assert result.status == 1
    assert result.output.startswith("error: ")
    assert "Not a directory" in result.output
