"""Messages of the hybrid recipe for mistyped commands."""

import pytest

pytest.importorskip("soundfile")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "corpus.train_hour=1"], "did you mean `corpus.train_hours`?"),
        (["--set", "ce.epoch=3"], "unknown key `ce.epoch`; did you mean `ce.epochs`?"),
        (["--set", "bundle=blstm"], "do not train the system blstm, which is a value of `bundle`"),
        (["--set", "neural_systems=chain", "--set", "chain=false"], "not train the system chain"),
        (["--stage", "36"], "--stage 36: no such stage; did you mean 35 ("),
        (["--stage", "1o"], "--stage 1o: no such stage. Stages are numbered from 1 to 35"),
    ],
)
def test_a_typo_gets_a_suggestion(commands, tmp_path, arguments, message):
    result = commands.run(*arguments, "--exp", "exp", cwd=tmp_path)
    assert result.status == 1
    assert message in result.errors
    assert "Traceback" not in result.errors
    assert not (tmp_path / "exp").exists()
