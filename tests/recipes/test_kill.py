"""kill -9 at random moments, then the same command again: nothing is lost and nothing differs."""

import random
import signal
import time

import pytest

pytest.importorskip("k2")
pytest.importorskip("kaldifeat")


def after(seconds):
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() > deadline


def written(root, pattern):
    return lambda: any(root.glob(pattern))


@pytest.mark.timeout(900)
def test_killed_again_and_again_it_ends_with_the_same_results(finished, commands, tmp_path):
    root = tmp_path / "exp"
    arguments = (*commands.demo, "--jobs", 2, "--exp", root)
    dice = random.Random(20)

    def moment():
        return after(dice.uniform(0.1, 0.25) * finished.seconds)

    def killed(when):
        nonlocal done
        result = commands.kill(when, *arguments)
        assert result.status in (0, -signal.SIGKILL), result.errors
        assert not done & {*result.stages("==")}, "what was done is done again"
        found = {int(path.stem) for path in root.glob("stages/[0-9][0-9].json")}
        assert done <= found
        done = found
        return result.status == -signal.SIGKILL

    done = set()
    kills = sum(
        [
            killed(moment()),
            killed(moment()),
            killed(written(root, ".partial/07/mono/checkpoint.safetensors")),
            killed(moment()),
            killed(written(root, ".partial/13/lstm_ce/checkpoints/epoch-*")),
            killed(after(0.1 * finished.seconds)),
        ]
    )
    assert kills >= 5
    last = commands.run(*arguments)
    assert last.status == 0, last.errors
    rows, files = type(finished)(root, last, 0.0).results()
    expected_rows, expected_files = finished.results()
    assert rows == expected_rows
    assert files.keys() == expected_files.keys()
    assert [name for name in files if files[name] != expected_files[name]] == []
    assert not [path for path in (root / ".partial").rglob("*") if path.is_file()]
