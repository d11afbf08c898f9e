import json
from dataclasses import replace

import pytest
import torch

from toolkit.align.store import LowRateAlignments
from toolkit.features.low_frame_rate import stack
from toolkit.fsa.lfmmi import lfmmi
from toolkit.fsa.numerator import Chunk, NumeratorMaker, PhoneTimes
from toolkit.models.config import LstmConfig, TdnnfConfig
from toolkit.models.lstm import LstmModel
from toolkit.models.scorer import batch_logits, load_log_priors
from toolkit.models.store import load_model
from toolkit.train.config import ChunkConfig, CrossEntropyConfig, LfmmiConfig, SpecAugmentConfig
from toolkit.train.cross_entropy import train_cross_entropy
from toolkit.train.errors import TrainingError
from toolkit.train.lfmmi import LfmmiBatch, LfmmiLoss, first_head

TWO_VIEWS = {
    "specaugment": SpecAugmentConfig(time_masks=2.0, time_width=3),
    "consistency": 0.2,
    "boost": 0.3,
}


def history(folder):
    timed = ("frames_per_second", "seconds", "data_wait")
    records = json.loads((folder / "history.json").read_text())
    return [{k: v for k, v in record.items() if k not in timed} for record in records]


def test_learns_the_phones_and_leaves_a_network_of_one_head(planted, config, tmp_path):
    speech = planted()
    headline = speech.train(tmp_path, replace(config, epochs=6))
    records = history(tmp_path)
    assert records[0]["valid_objective"] < headline["objective"] < 0
    assert headline["objective"] > -0.1
    assert headline["utterances"] + 2 == len(speech.states.targets)
    names = {path.name for path in tmp_path.iterdir()} - {"checkpoints", "tensorboard"}
    assert names == {
        "config.json", "model.safetensors", "priors.json", "history.json", "excluded.tsv",
        "headline.json",
    }  # fmt: skip
    model = load_model(tmp_path)
    assert model.config.output_dim == speech.senones.num_pdfs == len(load_log_priors(tmp_path))
    assert len(load_log_priors(tmp_path).unique()) == 1
    # The network that is left has the criterion that was reported, on utterances that it has not
    # seen; whole ones, so that it is another number.
    unseen, values, frames = planted(8, seed=1), [], 0
    maker = NumeratorMaker(speech.senones, speech.denominator, 5)
    for name, raw in unseen.features.features.items():
        inputs = stack(raw)
        times = PhoneTimes.of(unseen.states.load(name), speech.topology)
        numerator = maker.lattice(times, Chunk(0, 0, len(inputs)))
        if numerator is None:  # a trigram that the training data lack
            continue
        scores = batch_logits(model, [inputs])[0][None]
        lengths = torch.tensor([len(inputs)])
        value = lfmmi(scores, lengths, [numerator], speech.denominator, 0.1)
        values.append(float(value.objective))
        frames += len(inputs)
    assert len(values) >= 6
    assert sum(values) / frames > -0.15
    assert speech.train(tmp_path, replace(config, epochs=6)) == headline


@pytest.mark.long
@pytest.mark.parametrize("regularised", [{}, TWO_VIEWS], ids=["one view", "two views"])
def test_a_killed_run_ends_with_the_same_bits(
    planted, config, regularised, tmp_path, interrupt_after
):
    config = replace(config, epochs=3, checkpoint_seconds=0, average_epochs=2, **regularised)
    reports = interrupt_after()
    headline = planted().train(tmp_path / "whole", config, progress=reports)
    middle = reports.reports // 2
    for step in (3, middle, reports.reports - 3):
        killed = tmp_path / f"{step}"
        with pytest.raises(KeyboardInterrupt):
            planted().train(killed, config, progress=interrupt_after(step))
        assert list((killed / "checkpoints").iterdir())
        if step == middle:
            with pytest.raises(TrainingError, match="leak"):
                planted().train(killed, replace(config, leak=0.2))
            changed = planted()
            changed.denominator = replace(
                changed.denominator, weight=2 * changed.denominator.weight
            )
            with pytest.raises(TrainingError, match="denominator"):
                changed.train(killed, config)
        continued = planted().train(killed, config)
        assert continued["objective"] == headline["objective"]
        assert history(killed) == history(tmp_path / "whole")
        folders = [killed, tmp_path / "whole"]
        assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1


def test_the_loss_is_the_criterion_and_in_training_its_regularisers(planted):
    speech = planted(2)
    batch = speech.batch()
    model = LstmModel(LstmConfig(12, 2 * speech.senones.num_pdfs, hidden=8, layers=1, lookahead=0))
    loss, stats = LfmmiLoss(speech.denominator, 0.1, 0.3, 0.7)(model.eval(), batch)
    assert loss == -stats["objective"]
    training, _ = LfmmiLoss(speech.denominator, 0.1, 0.3, 0.7)(model.train(), batch)
    scores = first_head(model)(batch.inputs)[0][:, batch.left_context :]
    squares = sum((scores[n, :t] ** 2).sum() for n, t in enumerate(batch.chunk_lengths.tolist()))
    expected = -stats["objective"] + 0.3 * stats["cross_entropy"] + 0.35 * squares
    torch.testing.assert_close(training.double(), expected.double())
    assert stats["weight"] == batch.frames
    boosted = LfmmiLoss(speech.denominator, 0.1, 0.3, 0.7, boost=0.5)
    assert boosted(model, batch)[0] > training
    assert boosted(model.eval(), batch)[0] == loss  # what is told of held-out speech


def test_two_views_have_a_loss_each_and_the_divergence_between_them(planted):
    speech = planted(2)
    batch = speech.batch()
    model = LstmModel(LstmConfig(12, 2 * speech.senones.num_pdfs, hidden=8, layers=1, lookahead=0))
    objective = LfmmiLoss(speech.denominator, 0.1, 0.3, 0.7, consistency=0.4)
    flipped = replace(batch, inputs=batch.inputs.flip(2))
    first_loss, _ = objective(model.train(), batch)
    second_loss, _ = objective(model, flipped)
    loss, stats = objective(model, LfmmiBatch.of_views([batch, flipped]))
    divergence = 0.0
    for n, length in enumerate(batch.chunk_lengths.tolist()):
        rows = slice(batch.left_context, batch.left_context + length)
        first, second = (
            model(x.inputs[n : n + 1])[0][0, rows, speech.senones.num_pdfs :].log_softmax(1)
            for x in (batch, flipped)
        )
        divergence += float(((first.exp() - second.exp()) * (first - second)).sum().detach())
    assert divergence > 0
    torch.testing.assert_close(stats["divergence"].item(), divergence, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(loss.item(), (first_loss + second_loss).item() + 0.4 * divergence)
    assert stats["weight"] == 2 * batch.frames
    same, stats = objective(model, LfmmiBatch.of_views([batch, batch]))
    assert stats["divergence"] == 0
    torch.testing.assert_close(same, 2 * first_loss)


@pytest.mark.parametrize(
    "wrong", [{"leak": -0.1}, {"tolerance": -1}, {"l2": -1.0}, {"consistency": 0.2}]
)
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LfmmiConfig(**wrong)


def test_any_network_of_the_common_interface_is_trained(planted, config, tmp_path):
    model = TdnnfConfig(hidden=12, bottleneck=6, strides=(1, 0, 3), final=6)
    with pytest.raises(ValueError, match="right_context"):
        replace(config, model=model)
    pieces = replace(config.chunks, left_context=3, right_context=3)
    speech = planted(12)
    small = replace(config, model=model, chunks=pieces)
    assert -0.6 < speech.train(tmp_path, small)["objective"] < 0
    assert load_model(tmp_path).config.output_dim == speech.senones.num_pdfs


def test_the_criterion_beats_cross_entropy_on_ambiguous_frames(planted, config, tmp_path):
    """Features show the phone faintly; the phone before helps to predict it."""
    speech = planted(noise=1.0)
    small = replace(config, epochs=4)
    speech.train(tmp_path / "mmi", small)
    frames = CrossEntropyConfig(
        epochs=4,
        initial_rate=small.initial_rate,
        final_rate=small.final_rate,
        valid_utterances=4,
        model=small.model,
        chunks=ChunkConfig(frames=12, left_context=2, chunks_per_batch=8),
    )
    aligned = LowRateAlignments(speech.states, speech.topology, speech.senones)
    count = speech.senones.num_pdfs
    arguments = speech.features, aligned, speech.normaliser, frames, count, tmp_path / "ce"
    train_cross_entropy(*arguments)
    values = {}
    unseen = planted(8, seed=1, noise=1.0)
    maker = NumeratorMaker(speech.senones, speech.denominator, 5)
    for name in ("mmi", "ce"):
        model, priors = load_model(tmp_path / name), load_log_priors(tmp_path / name)
        values[name] = 0.0
        for utterance, raw in unseen.features.features.items():
            inputs = stack(raw)
            times = PhoneTimes.of(unseen.states.load(utterance), speech.topology)
            numerator = maker.lattice(times, Chunk(0, 0, len(inputs)))
            if numerator is not None:
                scores = (batch_logits(model, [inputs])[0] - priors)[None]
                lengths = torch.tensor([len(inputs)])
                value = lfmmi(scores, lengths, [numerator], speech.denominator, 0.0)
                values[name] += float(value.objective)
    # The log posteriors of the right phones, given equally long trainings.
    assert values["mmi"] > values["ce"] + 10
