import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from toolkit import cli
from toolkit.features.low_frame_rate import low_rate_length, stack
from toolkit.models.config import BlstmConfig, LstmConfig
from toolkit.models.lstm import BlstmModel, LstmModel
from toolkit.models.scorer import log_posteriors
from toolkit.models.store import save_model
from toolkit.ssl.config import ChoiceConfig
from toolkit.ssl.targets import TargetError
from toolkit.ssl.teacher_evaluation import (
    Row,
    TrainedModel,
    choose_k,
    sample_utterances,
    smallest_sufficient,
    table,
    train_output_layer,
)

SENONES = 40


@pytest.fixture(scope="module")
def judges(normaliser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    normaliser.save(folder / "normaliser.json")
    torch.manual_seed(0)
    teacher = BlstmModel(BlstmConfig(15, SENONES, hidden=8, layers=1))
    student = LstmModel(LstmConfig(15, SENONES, hidden=8, layers=1, lookahead=1))
    for model, name in ((teacher, "teacher"), (student, "student")):
        model.output.weight.data *= 6
        save_model(folder / name, model)
    return tuple(
        (TrainedModel(folder / name, folder / "normaliser.json"), model.eval())
        for name, model in (("teacher", teacher), ("student", student))
    )


@pytest.fixture(scope="module")
def synthetic(make_synthetic):
    return make_synthetic(10)


def test_the_choice_of_k_equals_brute_force_in_float64(judges, synthetic, normaliser, tmp_path):
    (teacher, teaching), (student, _) = judges
    config = ChoiceConfig(ks=(1, 5, 20), utterances=6)
    rows = choose_k(teacher, student, synthetic.folder, config, tmp_path)
    assert [row.k for row in rows] == [1, 5, 20, SENONES]
    store, names = synthetic.store, sample_utterances(synthetic.store.ids, 6)
    inputs = [stack(normaliser.apply(store.load(n), store.cmn_state(n))) for n in names]
    p = torch.cat([log_posteriors(teaching, [x])[0] for x in inputs]).double().exp()
    for row in rows:
        k_best = torch.zeros_like(p).scatter(1, p.topk(row.k).indices, p.topk(row.k).values)
        rebuilt = k_best / k_best.sum(-1, keepdim=True)
        error = float((rebuilt - p).abs().sum(-1).mean() / 2)
        assert row.tail_mass == pytest.approx(float(1 - k_best.sum(-1).mean()), rel=2e-3, abs=1e-7)
        assert row.reconstruction_error == pytest.approx(error, rel=2e-3, abs=1e-3)
    changes = [row.loss_change for row in rows]
    assert abs(changes[-1]) < 1e-3
    assert changes[0] > 0.003
    full = rows[0].student_loss / (1 + changes[0])
    assert [row.student_loss / full - 1 for row in rows] == pytest.approx(changes)
    hours = sum(store.cut(name).duration for name in names) / 3600
    frames = sum(low_rate_length(store.num_frames(name)) for name in names)
    stored = [row.bytes_per_hour * hours for row in rows]
    # 4k + 2 bytes per frame, and what the tar adds does not depend on k but by padding
    added = [size - frames * (4 * row.k + 2) for size, row in zip(stored, rows, strict=True)]
    assert min(added) > 6 * 1024
    assert max(added) - min(added) < 12 * 1024
    written = json.loads((tmp_path / "choice_of_k.json").read_text())
    assert written == [row.__dict__ for row in rows]
    assert len((tmp_path / "choice_of_k.tsv").read_text().splitlines()) == 5
    assert (tmp_path / "choice_of_k.png").read_bytes().startswith(b"\x89PNG")


def test_an_output_layer_reaches_the_entropy_of_its_targets():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(3000, 8, generator=generator) * 2 - 1
    logits = hidden @ (0.7 * torch.randn(8, 12, generator=generator))
    every = torch.arange(12).expand_as(logits)
    data = hidden[:2000], every[:2000], logits[:2000], hidden[2000:], logits[2000:]
    entropy = float(torch.distributions.Categorical(logits=logits[2000:]).entropy().mean())
    loss = train_output_layer(*data)
    assert entropy - 1e-4 < loss < entropy + 0.03  # 0.5 at first
    assert train_output_layer(*data) == loss


def test_too_few_utterances_are_refused(judges, make_synthetic, tmp_path):
    synthetic = make_synthetic(1, shards=1)
    with pytest.raises(TargetError, match="1 utterances"):
        choose_k(judges[0][0], judges[1][0], synthetic.folder, ChoiceConfig(), tmp_path)


def test_the_smallest_k_with_little_change_is_chosen():
    def row(k, change):
        return Row(k, 1.0, 0.0, 0.0, 1.0, change)

    rows = [row(1, -0.5), row(2, 0.001), row(5, -0.02), row(10, 0.009), row(40, 0.0)]
    assert smallest_sufficient(rows) == 10
    assert smallest_sufficient([row(1, 0.0), row(2, 0.0)]) == 1
    assert smallest_sufficient([row(1, 0.5), row(2, 0.0)]) == 2
    assert len({len(line) for line in table(rows)}) == 1


def test_the_command(judges, synthetic, tmp_path):
    arguments = [
        "ssl", "choose-k", "--teacher", judges[0][0].model, "--student", judges[1][0].model,
        "--teacher-normaliser", judges[0][0].normaliser, "--features", synthetic.folder,
        "--k", 3, "--k", 10, "--utterances", 3, "--out", tmp_path,
    ]  # fmt: skip
    result = CliRunner().invoke(cli.main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["k", "3", "10", "40"]
    assert lines[4].startswith("With k = ")
    assert np.isfinite(float(lines[1].split()[4]))


@pytest.mark.parametrize("wrong", [{"ks": ()}, {"ks": (0,)}, {"utterances": 1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ChoiceConfig(**wrong)
