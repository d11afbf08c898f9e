"""The hybrid recipe, killed at random moments."""

import random
import signal
from dataclasses import replace

import pytest

from tests.recipes.librispeech_run import GMMS, streaming

pytest.importorskip("soundfile")

pytestmark = pytest.mark.long


@pytest.mark.timeout(2700)
def test_a_run_killed_repeatedly_ends_with_the_same_results(quick, commands, tmp_path):
    """After kill -9 at random moments, a run with more jobs gives the same results."""
    root = tmp_path / "exp"
    arguments = (*commands.quick, "--exp", root, "--jobs")
    soon = random.Random(20)
    moments = {
        "stages/02.json": soon.uniform(0, 2),
        ".partial/07/mono/checkpoint.safetensors": 0,
        ".partial/09/tri/checkpoint.safetensors": 0,
        # While the transforms of the first system are made ready, and again a little later.
        ".partial/11/lda_mllt/ali.0004.safetensors": 0,
        ".partial/11/lda_mllt/checkpoint.safetensors": 0,
        ".partial/13/sat/checkpoint.safetensors": 0,
        "stages/14.json": soon.uniform(0, 2),
        ".partial/18/lstm_ce/checkpoints/epoch-*": 0,
        ".partial/20/denominators/train/lattices/lattices.*": 0,
        ".partial/21/lstm_smbr/checkpoints/epoch-*": 0,
        # Whose features were written before, and are not written again.
        ".partial/25/blstm/checkpoints/epoch-*": 0,
        ".partial/27/chain/checkpoints/epoch-*": 0,
    }
    kills, done = 0, set()
    for number, (pattern, delay) in enumerate(moments.items()):
        result = commands.kill(root, pattern, delay, *arguments, 2 + number % 2)
        assert result.status in (0, -signal.SIGKILL), result.errors
        assert not done & {*result.stages("==")}, "what was done is done again"
        done_now = {int(path.stem) for path in root.glob("stages/[0-9][0-9].json")}
        assert done <= done_now
        done = done_now
        kills += result.status == -signal.SIGKILL
    assert kills >= 8
    last = commands.run(*arguments, 2)
    assert last.status == 0, last.errors
    rows, files = replace(quick, root=root).results()
    expected = quick.results()
    assert rows == expected[0]
    important_files = {f"{system}/gmm.safetensors" for system in (*GMMS, "final/aligner")}
    important_files |= {f"final/{streaming(quick)['name']}/model/model.safetensors"}
    important_files |= {"decode/lstm_ce/test/text", "senones/tree.json"}
    assert important_files <= files.keys()
    assert files.keys() == expected[1].keys()
    assert [name for name in files if files[name] != expected[1][name]] == []
    assert not [path for path in (root / ".partial").rglob("*") if path.is_file()]
