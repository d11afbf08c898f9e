import json

import numpy as np
import pytest
import torch

from toolkit.features.low_frame_rate import centre, stack
from toolkit.models.config import LstmConfig
from toolkit.models.lstm import LstmModel
from toolkit.models.scorer import log_posteriors
from toolkit.models.store import save_model
from toolkit.ssl.config import CalibrationConfig
from toolkit.ssl.targets import TargetError
from toolkit.ssl.teacher_evaluation import (
    BINS,
    TEMPERATURES,
    Reliability,
    TemperatureSweep,
    TrainedModel,
    measure_calibration,
)


def draw_logits(frames=4000, classes=6, sharpen=1.0, seed=0):
    """Return logits [T, C] sharpened by `sharpen`, and classes [T] drawn before sharpening."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(frames, classes, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return logits * sharpen, targets


def summary(logits, targets, parts=3):
    sums = TemperatureSweep()
    for x, y in zip(logits.chunk(parts), targets.chunk(parts), strict=True):
        sums.add(x, y)
    return sums.summary()


def test_calibration_equals_brute_force():
    logits, targets = draw_logits(300, sharpen=1.7)
    result = summary(logits, targets)
    p = logits.softmax(-1).numpy()
    gaps = np.zeros(BINS)
    for row, target in zip(p, targets.tolist(), strict=True):
        best = row.argmax()
        gaps[min(int(row[best] * BINS), BINS - 1)] += row[best] - (best == target)
    assert result["ece"] == pytest.approx(np.abs(gaps).sum() / 300)
    assert result["frame_accuracy"] == pytest.approx(np.mean(p.argmax(1) == targets.numpy()))
    nll = torch.nn.functional.cross_entropy(logits, targets)
    assert result["nll"] == pytest.approx(float(nll))
    losses = [
        float(torch.nn.functional.cross_entropy(logits / temperature, targets))
        for temperature in TEMPERATURES
    ]
    assert result["nll_at_temperature"] == pytest.approx(min(losses))
    assert result["temperature"] == TEMPERATURES[int(np.argmin(losses))]


@pytest.mark.parametrize("sharpen", [0.5, 1.0, 2.0, 3.0])
def test_the_temperature_says_how_much_too_sharp_the_logits_are(sharpen):
    result = summary(*draw_logits(20_000, sharpen=sharpen))
    assert result["temperature"] == pytest.approx(sharpen, rel=0.1)
    assert result["ece_at_temperature"] < 0.02
    if sharpen != 1:
        assert result["ece"] > 0.05


def test_a_posterior_of_one_has_a_bin():
    reliability = Reliability()
    reliability.add(np.array([1.0, 0.0]), np.array([True, False]))
    assert reliability.rows()[-1] == (1, 1.0, 1.0)
    assert reliability.rows()[0] == (1, 0.0, 0.0)
    assert reliability.error == 0


@pytest.fixture
def judge(normaliser, tmp_path):
    torch.manual_seed(0)
    model = LstmModel(LstmConfig(15, 6, hidden=8, layers=1, lookahead=1))
    model.output.weight.data *= 5
    save_model(tmp_path / "model", model)
    normaliser.save(tmp_path / "normaliser.json")
    return TrainedModel(tmp_path / "model", tmp_path / "normaliser.json"), model


def test_a_teacher_is_measured_on_stored_features(judge, make_synthetic, normaliser, tmp_path):
    synthetic, (teacher, model) = make_synthetic(8), judge
    del synthetic.targets["u003"]
    config, out = CalibrationConfig(), tmp_path / "out"
    calibration = measure_calibration(teacher, synthetic.folder, synthetic, config, out)
    store, logits, targets = synthetic.store, [], []
    for name in synthetic.ids:
        x = stack(normaliser.apply(store.load(name), store.cmn_state(name)))
        logits.append(log_posteriors(model, [x])[0])
        targets.append(synthetic.load(name)[centre(store.num_frames(name))].long())
    expected = summary(torch.cat(logits), torch.cat(targets))
    assert calibration == pytest.approx(expected, rel=1e-5)
    written = json.loads((out / "calibration.json").read_text())
    assert sum(frames for frames, _, _ in written.pop("bins")) == calibration["frames"]
    assert written == calibration
    assert (out / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_mismatched_or_missing_alignments_are_refused(judge, make_synthetic, tmp_path):
    synthetic = make_synthetic(4)
    arguments = judge[0], synthetic.folder, synthetic, CalibrationConfig(), tmp_path / "out"
    synthetic.targets["u001"] = synthetic.targets["u001"] + 6
    with pytest.raises(TargetError, match="u001: its alignment contains senone"):
        measure_calibration(*arguments)
    synthetic.targets["u001"] = synthetic.targets["u001"][:-1]
    with pytest.raises(TargetError, match=r"u001: its alignment has \d+ frames"):
        measure_calibration(*arguments)
    synthetic.targets.clear()
    with pytest.raises(TargetError, match="to use them as references"):
        measure_calibration(*arguments)
    with pytest.raises(ValueError, match="utterances"):
        CalibrationConfig(0)
