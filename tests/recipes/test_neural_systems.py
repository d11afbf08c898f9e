"""Which systems the LSTM language model rescores."""

from types import SimpleNamespace

import pytest

from recipes.steps.decoding import DecodedSystem, neural_systems
from toolkit.corpus.split import Splits
from toolkit.errors import ToolkitError
from toolkit.score.results import Result, record_results

SYSTEMS = [
    DecodedSystem("mono"),
    DecodedSystem("sat", first_pass="mono", has_nbest=True),
    DecodedSystem("lstm", "fbank"),
    DecodedSystem("blstm", "fbank"),
]


@pytest.fixture
def run(tmp_path):
    """A run with errors by pass: the BLSTM is the best network on dev in its last pass."""
    (tmp_path / "data").mkdir()
    Splits("train", ("dev",), ("test",)).save(tmp_path / "data/splits.json")
    errors = {"mono": [(1, 1)], "sat": [(9, 9), (8, 8)]}
    errors |= {"lstm": [(3, 1), (7, 1)], "blstm": [(5, 9), (6, 9)]}
    for system, passes in errors.items():
        rows = [
            Result(
                system,
                split,
                lm,
                wer=0.0,
                cer=0.0,
                insertions=0,
                deletions=0,
                substitutions=count,
                ref_words=10,
                rtf=0.1,
                command="",
            )
            for lm, counts in zip(("3gram", "4gram"), passes, strict=False)
            for split, count in zip(("dev", "test"), counts, strict=True)
        ]
        path = tmp_path / "decode" / system / "rows.json"
        path.parent.mkdir(parents=True)
        record_results(path, rows)
    config = SimpleNamespace(neural=True, neural_systems=())
    return SimpleNamespace(config=config, need=tmp_path.joinpath)


def names(run):
    return [system.name for system in neural_systems(run, SYSTEMS)]


def test_the_best_system_on_dev_after_rescoring_is_selected(run):
    assert names(run) == ["blstm"]


def test_the_simplest_of_equal_systems_is_selected(run):
    path = run.need("decode/sat/rows.json")
    path.write_text(path.read_text().replace('"sub": 8', '"sub": 6'))
    assert names(run) == ["sat"]


def test_the_setting_selects_other_systems(run):
    run.config.neural_systems = ("lstm", "mono")
    assert names(run) == ["mono", "lstm"]
    run.config.neural_systems = ("lstm", "chain")
    with pytest.raises(ToolkitError, match=r"contains chain, which .* mono, sat, lstm, blstm"):
        neural_systems(run, SYSTEMS)


def test_no_system_is_selected_without_the_language_model(run):
    run.config.neural = False
    assert names(run) == []
