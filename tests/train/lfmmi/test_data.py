import numpy as np
import pytest
import torch

from toolkit.align.store import LowRateAlignments
from toolkit.features.low_frame_rate import stack
from toolkit.fsa.fst import FINAL
from toolkit.fsa.numerator import NumeratorMaker, PhoneTimes
from toolkit.models.config import LstmConfig
from toolkit.models.store import make_model
from toolkit.train.batches import ShardGroups
from toolkit.train.config import LfmmiChunkConfig, SpecAugmentConfig
from toolkit.train.corpus import Corpus
from toolkit.train.errors import TrainingDataError
from toolkit.train.lfmmi import LfmmiBatches, LfmmiChunkSampler, LfmmiLoss
from toolkit.train.specaugment import SpecAugmented


@pytest.fixture
def make(planted):
    def batches(seed=0, lookahead=2, times=None, **sizes):
        speech = planted(6)
        aligned = LowRateAlignments(speech.states, speech.topology, speech.senones)
        corpus = Corpus([(speech.features, aligned)], speech.normaliser, speech.senones.num_pdfs)
        times = times or {
            name: PhoneTimes.of(x, speech.topology) for name, x in speech.states.targets.items()
        }
        config = LfmmiChunkConfig(
            **{"max_frames": 12, "left_context": 3, "batch_frames": 64, **sizes}
        )
        maker = NumeratorMaker(speech.senones, speech.denominator, 2)
        groups = ShardGroups(corpus, 10_000, seed)
        sampler = LfmmiChunkSampler(config, lookahead, times, maker)
        return speech, LfmmiBatches(groups, sampler, seed)

    return batches


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_pieces_cover_every_frame_once_and_have_their_numerators(make, epoch):
    speech, data = make(right_context=1)
    frames = 0
    for batch in data.batches(epoch):
        frames += batch.frames
        lengths = batch.chunk_lengths
        assert lengths.max() <= 12
        assert batch.weights.sum(1).tolist() == lengths.tolist()
        for n, lattice in enumerate(batch.numerators):
            assert int(lattice.frame[lattice.labels == FINAL].max()) == lengths[n]
            whole = stack(speech.features.features[batch.ids[n]].half(), epoch % 3).float()
            scored = batch.inputs[n, 3 : 3 + int(lengths[n])]
            starts = [
                s
                for s in range(len(whole) - len(scored) + 1)
                if torch.equal(whole[s : s + len(scored)], scored)
            ]
            (start,) = starts
            rows = torch.arange(start - 3, start + batch.inputs.shape[1] - 3)
            assert torch.equal(batch.inputs[n], whole[rows.clamp(0, len(whole) - 1)])
            assert batch.lengths[n] == 3 + min(len(whole) - start, int(lengths[n]) + 1)
            # The aligned pdfs are among those of the numerator, frame by frame; except that every
            # numerator begins with an onset, while offset 2 begins in the first phone's rest.
            aligned = batch.targets[n, 3 : 3 + int(lengths[n])]
            for t, pdf in list(enumerate(aligned.tolist()))[int(start == 0) :]:
                assert pdf + 1 in lattice.labels[lattice.frame == t]
    expected = [len(stack(x, epoch % 3)) for x in speech.features.features.values()]
    assert frames == sum(expected)


def test_the_order_follows_from_seed_and_epoch_and_can_start_anywhere(make):
    def batch_contents(data, *position):
        return [(b.ids, b.chunk_lengths.tolist()) for b in data.batches(*position)]

    whole = batch_contents(make()[1], 1)
    assert batch_contents(make()[1], 1) == whole
    assert batch_contents(make()[1], 1, 2) == whole[2:]
    assert batch_contents(make(seed=1)[1], 1) != whole
    assert batch_contents(make()[1], 2) != whole


def test_pieces_without_a_numerator_are_left_out(make, caplog):
    # No phone follows itself in the denominator.
    lost = PhoneTimes(np.full(3000, 4, np.int32), 3 * np.arange(3000, dtype=np.int32), 9000)
    speech, _ = make()
    times = {n: PhoneTimes.of(x, speech.topology) for n, x in speech.states.targets.items()}
    _, data = make(times={**times, "utt001": lost})
    utterances = {name for batch in data.batches(0) for name in batch.ids}
    assert utterances == set(times) - {"utt001"}
    assert caplog.messages.count(caplog.messages[0]) == 1
    assert caplog.messages[0].count("of utt001") == 1
    list(data.batches(1))
    assert len(caplog.messages) == 1  # each utterance is named once
    _, none = make(times=dict.fromkeys(times, lost))
    with pytest.raises(TrainingDataError, match=r"all .* chunks, .*utt00"):
        list(none.batches(0))
    list(none.batches(0, start=1))  # what came before may have had some


def test_a_batch_without_numerators_counts_nothing(make, caplog):
    lost = PhoneTimes(np.full(3000, 4, np.int32), 3 * np.arange(3000, dtype=np.int32), 9000)
    speech, whole = make(batch_frames=1)
    times = {n: PhoneTimes.of(x, speech.topology) for n, x in speech.states.targets.items()}
    _, data = make(times={**times, "utt001": lost}, batch_frames=1)
    batches = list(data.batches(0))
    assert len(batches) == whole.num_steps(0) == len(list(whole.batches(0)))
    empty = [batch for batch in batches if not batch.numerators]
    assert empty
    assert {name for batch in empty for name in batch.ids_without_numerator} == {"utt001"}
    assert all(batch.frames == batch.weights.sum() == 0 for batch in empty)
    torch.manual_seed(0)
    config = LstmConfig(
        input_dim=empty[0].inputs.shape[2],
        output_dim=2 * speech.senones.num_pdfs,
        hidden=4,
        layers=1,
        lookahead=2,
    )
    model, objective = make_model(config), LfmmiLoss(speech.denominator, 0.1, 0.1, 1e-4)
    loss, stats = objective(model, empty[0])
    loss.backward()
    assert loss == 0
    assert stats["weight"] == 1
    assert stats.keys() == objective(model, next(b for b in batches if b.numerators))[1].keys()
    assert all(not parameter.grad.any() for parameter in model.parameters())
    (message,) = caplog.messages
    assert "most recently chunks of utt001: " in message


@pytest.mark.parametrize("wrong", [{"max_frames": 0}, {"left_context": -1}])
def test_impossible_configurations_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LfmmiChunkConfig(**wrong)


def test_two_views_of_a_piece_differ_only_in_their_masks(make):
    _, data = make()
    config = SpecAugmentConfig(time_masks=3.0, time_width=3)
    source = SpecAugmented(data, config, seed=0, views=2)
    hidden = 0
    for single, two_views in zip(data.batches(1), source.batches(1), strict=True):
        assert two_views.views == 2
        assert two_views.ids == single.ids * 2
        assert two_views.frames == 2 * single.frames
        for name in ("targets", "weights", "lengths", "chunk_lengths"):
            tensor = getattr(single, name)
            assert torch.equal(getattr(two_views, name), torch.cat([tensor, tensor])), name
        pairs = zip(two_views.numerators, (*single.numerators, *single.numerators), strict=True)
        assert all(np.array_equal(expected.scores, actual.scores) for expected, actual in pairs)
        first, second = two_views.inputs.chunk(2)
        for view in (first, second):
            masked = (view == 0).all(dim=2)
            hidden += int(masked.sum())
            assert torch.equal(view[~masked], single.inputs[~masked])
        assert not torch.equal(first, second)
    assert hidden
    again = next(SpecAugmented(data, config, seed=0, views=2).batches(1))
    assert torch.equal(again.inputs, next(source.batches(1)).inputs)
