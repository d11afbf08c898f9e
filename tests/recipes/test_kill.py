"""kill -9 at random moments, then the same command again: nothing is lost and nothing differs."""

import random
import signal
import time

import pytest

pytest.importorskip("k2")
pytest.importorskip("kaldifeat")


def written(root, pattern, delay=0.0):
    """Tell whether a file has been there for `delay` seconds."""
    seen = []

    def when():
        if not seen and any(root.glob(pattern)):
            seen.append(time.monotonic())
        return bool(seen) and time.monotonic() >= seen[0] + delay

    return when


@pytest.mark.timeout(1200)
def test_killed_again_and_again_it_ends_with_the_same_results(finished, commands, tmp_path):
    root = tmp_path / "exp"
    arguments = (*commands.demo, "--exp", root, "--jobs")
    dice = random.Random(20)

    def soon_after(stage):
        return written(root, f"stages/{stage:02d}.json", dice.uniform(0, 2))

    def checkpoint(stage, system):
        return written(root, f".partial/{stage:02d}/{system}/checkpoint.safetensors")

    moments = [
        soon_after(2),
        checkpoint(7, "mono"),
        checkpoint(9, "tri"),
        # While the transforms of the first system are made ready, and again a little later.
        written(root, ".partial/11/lda_mllt/ali.0004.safetensors"),
        checkpoint(11, "lda_mllt"),
        checkpoint(13, "sat"),
        soon_after(14),
        written(root, ".partial/17/lstm_ce/checkpoints/epoch-*"),
        written(root, ".partial/19/denominators/train/lattices/lattices.*"),
        written(root, ".partial/20/lstm_smbr/checkpoints/epoch-*"),
    ]
    kills, done = 0, set()
    for number, when in enumerate(moments):
        result = commands.kill(when, *arguments, 1 + number % 2)  # workers must die too
        assert result.status in (0, -signal.SIGKILL), result.errors
        assert not done & {*result.stages("==")}, "what was done is done again"
        found = {int(path.stem) for path in root.glob("stages/[0-9][0-9].json")}
        assert done <= found
        done = found
        kills += result.status == -signal.SIGKILL
    assert kills >= 8
    last = commands.run(*arguments, 1)
    assert last.status == 0, last.errors
    rows, files = type(finished)(root, last, 0.0).results()
    expected_rows, expected_files = finished.results()
    assert rows == expected_rows
    assert files.keys() == expected_files.keys()
    assert [name for name in files if files[name] != expected_files[name]] == []
    assert not [path for path in (root / ".partial").rglob("*") if path.is_file()]
