from dataclasses import replace

import pytest

from toolkit.models.store import load_model
from toolkit.parallel.strategy import Strategy
from toolkit.train import specaugment
from toolkit.train.config import CtcTrainingConfig, UtteranceMaskConfig
from toolkit.train.ctc.training import train_ctc
from toolkit.train.errors import TrainingDataError
from toolkit.train.runlog import (
    Created,
    Evaluated,
    Finished,
    Saved,
    Sentences,
    Step,
    Swapped,
    Utilisation,
    read_run_log,
)


def test_it_learns_to_spell(ctc_toy, tmp_path):
    config = replace(ctc_toy.config, epochs=12)
    headline = ctc_toy.train(tmp_path, config, about={"name": "toy"}, batch=4)
    assert headline["cer"] < 10
    assert headline["excluded"] == 0
    steps = read_run_log(tmp_path).of(Step)
    throughput = sum(s.examples for s in steps) / sum(s.seconds_in_step for s in steps)
    assert headline["examples_per_second"] == pytest.approx(throughput)
    records = ctc_toy.history(tmp_path)
    assert records[-1]["loss"] < records[0]["loss"] / 5
    best = max(records, key=lambda record: record["valid_accuracy"])
    assert headline["cer"] == best["valid_cer"]
    model = load_model(tmp_path)
    assert (model.config.input_dim, model.config.output_dim) == (5, 30)
    measured = ctc_toy.evaluation(model)
    assert measured["cer"] == pytest.approx(headline["cer"])
    assert measured["wer"] == pytest.approx(headline["wer"])
    log = read_run_log(tmp_path)
    assert log.created.about == {"name": "toy"}
    assert (log.created.batch, log.created.devices) == (4, 1)
    assert [e.epoch for e in log.of(Evaluated)] == [*range(1, 13)]
    for name in ("cer", "cer_usual"):
        error_rates = [getattr(event, name) for event in log.of(Evaluated)]
        assert error_rates == [record[f"valid_{name}"] for record in records]
    assert all(e.cer <= e.cer_usual for e in log.of(Evaluated))
    assert measured["cer_usual"] == pytest.approx(best["valid_cer_usual"])
    assert not list(tmp_path.glob("checkpoints/*.safetensors"))
    assert ctc_toy.train(tmp_path, config) == headline  # told again, it does nothing
    assert read_run_log(tmp_path).starts == 1


def test_the_log_has_every_state(ctc_toy, tmp_path):
    ctc_toy.train(tmp_path, evaluator="swap")  # 3 epochs of 6 iterations
    log = read_run_log(tmp_path)
    assert [e.step for e in log.of(Step)] == [3, 6, 9, 12, 15, 18]
    assert [e.examples for e in log.of(Step)] == [12] * 6
    assert [e.step for e in log.of(Sentences)] == [4, 8, 12, 16]
    assert [e.step for e in log.of(Saved)] == [5, 6, 10, 12, 15, 18]
    assert [(e.step, e.to) for e in log.of(Swapped)] == [
        (step, to) for step in (6, 12, 18) for to in ("evaluation", "training")
    ]
    assert [(e.step, e.epoch) for e in log.of(Evaluated)] == [(6, 1), (12, 2), (18, 3)]
    assert log.events[-1] == Finished(log.seconds, 18, 3)
    seconds = [event.seconds for event in log.events]
    assert seconds == sorted(seconds)
    assert all(len(e.references) == len(e.hypotheses) == 4 for e in log.of(Sentences))
    assert all(set(e.references[0]) <= set("ABC ") for e in log.of(Sentences))
    # two step events make an epoch
    losses = [(a.loss + b.loss) / 2 for a, b in zip(*[iter(log.of(Step))] * 2, strict=True)]
    assert losses == pytest.approx([record["loss"] for record in ctc_toy.history(tmp_path)])
    # and the states together the time
    seconds_in_states = sum(e.seconds_in_step for e in log.of(Step))
    seconds_in_states += sum(getattr(event, "duration", 0.0) for event in log.events)
    assert 0.3 * log.seconds < seconds_in_states <= log.seconds + 0.01


def test_the_log_has_the_last_iterations_of_an_epoch(ctc_toy, tmp_path):
    config = replace(ctc_toy.config, log_every=4)  # 3 epochs of 6 iterations
    headline = ctc_toy.train(tmp_path / "four", config, evaluator="swap")
    log = read_run_log(tmp_path / "four")
    assert [(e.step, e.epoch) for e in log.of(Step)] == [
        (4, 1), (6, 1), (8, 2), (12, 2), (16, 3), (18, 3)
    ]  # fmt: skip
    assert log.examples == 18 * ctc_toy.data.batch
    first = log.of(Evaluated)[0]
    assert sum(e.examples for e in log.of(Step) if e.seconds <= first.seconds) == 6 * 4
    assert headline["examples_per_second"] > 0
    config = replace(ctc_toy.config, log_every=100)  # more than there are
    assert ctc_toy.train(tmp_path / "all", config)["examples_per_second"] > 0


class OneOfTwo(Strategy):
    """A process that trains on half of the batches."""

    world_size = 2


def test_the_batch_in_the_log_is_that_of_all_processes(ctc_toy, tmp_path):
    config = replace(ctc_toy.config, epochs=1)
    ctc_toy.train(tmp_path, config, strategy=OneOfTwo(), batch=ctc_toy.data.batch)
    log = read_run_log(tmp_path)
    assert (log.created.batch, log.created.devices) == (8, 2)
    assert [event.examples for event in log.of(Step)] == [3 * 8]


def test_the_average_of_epochs_is_measured_as_epochs_are(ctc_toy, tmp_path):
    config = replace(ctc_toy.config, epochs=6, average_epochs=3)
    headline = ctc_toy.train(tmp_path, config)
    assert ctc_toy.evaluation(load_model(tmp_path))["wer"] == pytest.approx(headline["wer"])


def test_background_logging_runs_during_training(ctc_toy, tmp_path):
    ended = []

    class BackgroundLogging:
        def __init__(self, write):
            write(Utilisation(cpu=(0.5,)))

        def __enter__(self):
            return self

        def __exit__(self, *error):
            ended.append(True)

    ctc_toy.train(tmp_path, replace(ctc_toy.config, epochs=1), background_logging=BackgroundLogging)
    log = read_run_log(tmp_path)
    assert [type(e) for e in log.events[:2]] == [Created, Utilisation]
    assert ended == [True]


def test_training_needs_held_out_data(ctc_toy, tmp_path):
    with pytest.raises(TrainingDataError, match="held-out"):
        train_ctc(ctc_toy.data, [], ctc_toy.recognition, ctc_toy.config, tmp_path)


def test_a_warp_knows_the_edges_of_the_filters(ctc_toy, tmp_path, monkeypatch):
    edges_of_calls = []

    def warp(inputs, factors, bins, edges):
        edges_of_calls.append(edges)
        return inputs

    monkeypatch.setattr(specaugment, "warp_mel", warp)
    config = replace(
        ctc_toy.config, epochs=1, specaugment=UtteranceMaskConfig(warp=0.1, mel_bins=2)
    )
    ctc_toy.train(tmp_path, config, edges=(20.0, 4000.0))
    assert len(edges_of_calls) == 6
    assert set(edges_of_calls) == {(20.0, 4000.0)}


@pytest.mark.parametrize(
    "changes",
    [
        {"amp": "bf16"},
        {"optimizer": "adadelta", "initial_rate": 1.0, "final_rate": 1.0},
        {"loss_per": "labels"},
        {"specaugment": UtteranceMaskConfig(warp=0.1, cepstra=0.5, mel_bins=4), "consistency": 0.2},
        {"specaugment": UtteranceMaskConfig(time_masks=1.0, time_width=2)},
        {"specaugment": UtteranceMaskConfig(time_masks=1.0, time_width=2), "consistency": 0.2},
    ],
)
def test_variants_learn(ctc_toy, tmp_path, changes):
    config = replace(ctc_toy.config, epochs=2, **changes)
    ctc_toy.train(tmp_path, config)
    first, second = ctc_toy.history(tmp_path)
    assert second["loss"] < first["loss"]


@pytest.mark.parametrize(
    "wrong", [{"loss_per": "frames"}, {"log_every": 0}, {"epochs": 0}, {"consistency": 0.2}]
)
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CtcTrainingConfig(**wrong)
