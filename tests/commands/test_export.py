"""`toolkit export` as it is typed."""

import json

from click.testing import CliRunner

from toolkit.cli import main
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.models.store import save_model


def run(*arguments):
    return CliRunner().invoke(main, ["export", *map(str, arguments)])


def test_writes_a_model_and_says_how_close_it_is(tmp_path):
    model, out = tmp_path / "lstm", tmp_path / "out"
    save_model(model, LstmModel(LstmConfig(input_dim=4, output_dim=3, hidden=5, layers=1)))
    result = run("--model", model, "--format", "torchscript", "--out", out)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{out}: log-posteriors within ")
    assert sorted(path.name for path in out.iterdir()) == ["metadata.json", "model.pt"]
    assert json.loads((out / "metadata.json").read_text())["kind"] == "lstm"


def test_a_folder_without_a_model_is_named(tmp_path):
    result = run("--model", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr
    assert not (tmp_path / "out").exists()
