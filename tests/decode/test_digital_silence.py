"""Recognition of recordings with spans of zeros: no words in them, and none lost around them."""

import logging

import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.decode.recogniser import NetworkRecogniser
from toolkit.decode.sources import Inputs
from toolkit.decode.transcribe import transcribe
from toolkit.decode.words import PENALTY, SilenceGate, silence_pdfs
from toolkit.features.silence import SilentSpans
from toolkit.hmm.config import TreeConfig
from toolkit.hmm.phone_sets import RootGroup
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree_growing import TreeStatistics, build_tree

ZEROS = torch.zeros(16000)


def test_the_gate_lowers_all_but_silence_at_the_edges_of_silence():
    silent = torch.tensor([True, False, False])
    features = torch.full((60, 4), -15.9)
    features[:10] = 10.0  # then 20 frames of silence that may hold a word
    gate, scores = SilenceGate("fbank", silent, 3, 0, keep=0), torch.randn(20, 3)
    assert len(gate.push_utterance(features)) == 30
    gated = gate(scores[:10])
    # Frames 30 and on are silent, hence rows 10 and on.
    assert torch.equal(gated[:10], scores[:10])
    assert torch.equal(gated[10:], torch.tensor([[0.0, -PENALTY, -PENALTY]]).expand(10, 3))
    # The row of frames 27 to 29 is silent with frame 30 in its middle, as for wide rows.
    gate = SilenceGate("fbank", silent, 3, 3, keep=0)
    gate.push_utterance(features)
    edge = gate(scores[:10])[9]
    assert edge[0] == scores[9, 0]
    assert torch.equal(edge[1:], scores[9, 1:].minimum(scores[9, :1]) - PENALTY)


class LookingAhead:
    """Scores a row of three frames by their first value, once `lookahead` later rows are known."""

    def __init__(self, lookahead):
        self.lookahead, self.frames = lookahead, torch.zeros(0, 4)

    def push(self, frames):
        self.frames = torch.cat([self.frames, frames])
        ready = max(0, len(self.frames) // 3 - self.lookahead)
        return self.take(ready)

    def finish(self):
        return self.take(-(-len(self.frames) // 3))

    def take(self, rows):
        first_frames, self.frames = self.frames[: 3 * rows : 3], self.frames[3 * rows :]
        return first_frames[:, :3]


@given(
    st.lists(st.tuples(st.integers(1, 130), st.booleans()), min_size=1, max_size=6),
    st.integers(0, 4),
    st.lists(st.integers(1, 50), min_size=1, max_size=9),
)
def test_long_silence_is_left_out_of_what_the_model_scores(runs, lookahead, sizes):
    """Whatever the pieces, rows of the model stay in place, and the others are silence."""
    frames = [torch.full((n, 4), -15.9) if zeros else torch.randn(n, 4) + 9 for n, zeros in runs]
    features, outputs = torch.cat(frames), torch.tensor([True, False, False])
    is_silent = SilentSpans("fbank").push(features)
    # Rows are counted from the first sound.
    first = int(is_silent.to(torch.int8).cumprod(0).sum())
    skipped = first % 3 if first < len(features) else 0
    num_rows = -(-(len(features) - skipped) // 3)
    whole = SilenceGate("fbank", outputs, 3, 1, lookahead)
    scored = whole.push_utterance(features)
    gated = whole(scored[::3, :3])
    assert len(gated) == num_rows
    for row in range(num_rows):
        begin = 3 * row + (skipped if 3 * row >= first - skipped else 0)
        silent = is_silent[begin : begin + 3]
        added = torch.equal(gated[row], torch.tensor([0.0, -PENALTY, -PENALTY]))
        assert added == (len(silent) == 3 and bool(silent.all()))
        if not added and not silent[min(1, len(silent) - 1)]:
            assert torch.equal(gated[row], features[begin, :3])
    # Of each silence at most 20 frames, an incomplete row and the lookahead are scored.
    num_zeros = sum(n for n, zeros in runs if zeros)
    assert len(scored) <= len(features) - num_zeros + len(runs) * (20 + 5 + 3 * lookahead)
    # In pieces.
    stream, model = SilenceGate("fbank", outputs, 3, 1, lookahead), LookingAhead(lookahead)
    rows, begin = [], 0
    for size in [*sizes, len(features)]:
        rows.append(stream(model.push(stream.push(features[begin : begin + size]))))
        begin += size
        complete = (min(begin, len(features)) - skipped) // 3
        # Rows wait only for the lookahead, and those before a long silence not for its end.
        assert sum(map(len, rows)) >= complete - lookahead
        tail = is_silent[: min(begin, len(features))][-3 * lookahead - 5 :]
        if complete > lookahead and tail.all():
            assert sum(map(len, rows)) >= complete
    rows.append(stream(model.push(stream.finish())))
    rows.append(stream(model.finish()))
    assert torch.equal(torch.cat(rows), gated)


def test_noise_is_no_silence_for_the_gate(recogniser):
    silent = silence_pdfs(recogniser.senones)
    phones = recogniser.senones.phone_of_pdf[silent].tolist()
    assert set(phones) == {recogniser.topology.silence}
    assert len(phones) == recogniser.topology.num_states(recogniser.topology.silence)


def test_silence_may_share_its_root_with_noise():
    topology = Topology(("A", "NOISE", "PAUSE"), silence_phones=("PAUSE", "NOISE"))
    statistics = TreeStatistics(2)
    states = torch.arange(topology.num_state_ids)
    phones = torch.tensor(topology.phone_of_state_id)
    statistics.accumulate(phones, states, phones, torch.randn(len(states), 2))
    roots = [RootGroup((1,), True), RootGroup((2, 3), False)]
    senones = Senones(topology, build_tree(statistics, topology, (), TreeConfig(), roots))
    silent = silence_pdfs(senones)
    assert silent.sum() == topology.silence_states
    assert set(senones.phone_of_pdf[silent].tolist()) == {2}


@pytest.mark.parametrize("kind", ["lstm", "tdnnf"])
@pytest.mark.parametrize("seconds", [0.3, 2, 10])
def test_zeros_have_no_words_and_a_note(bundle, kind, seconds, tmp_path, caplog):
    folder = bundle(kind=kind)
    samples = torch.zeros(int(16000 * seconds))
    assert NetworkRecogniser(folder).recognise(samples) == ""
    stream = NetworkRecogniser(folder).stream()
    texts = [stream.push(piece).text for piece in samples.split(1600)]
    assert set(texts) | {stream.finish().text} == {""}
    assert not stream.has_sound
    soundfile.write(tmp_path / "mute.wav", samples.numpy(), 16000)
    sources = Inputs().sources([str(tmp_path / "mute.wav")], None, tmp_path)
    with caplog.at_level(logging.WARNING):
        (transcript,) = transcribe(folder, sources)
    assert (transcript.text, transcript.fault) == ("", "")
    assert "mute.wav: nothing but digital silence" in caplog.text


@pytest.mark.parametrize("kind", ["lstm", "tdnnf"])
def test_no_word_begins_in_a_span_of_zeros(bundle, babble, kind):
    recogniser = NetworkRecogniser(bundle(kind=kind))
    in_speech = 0
    for seed in range(6):
        samples = torch.cat([ZEROS, babble(seed, 1.5), ZEROS, babble(seed + 9, 1.5), ZEROS])
        features = recogniser.frontend(samples)
        for word in recogniser.recognise_features(features, details=True).words:
            middle = (word.start_s + word.end_s) / 2
            assert 0.9 < middle < 2.8 or 3.4 < middle < 5.3, word
            in_speech += 1
    assert in_speech >= 6


@pytest.mark.parametrize("kind", ["lstm", "tdnnf"])
@pytest.mark.parametrize("size", [480, 7000])
def test_a_stream_with_zeros_has_the_words_of_the_whole(bundle, babble, kind, size):
    recogniser = NetworkRecogniser(bundle(kind=kind))
    for seed in range(3):
        samples = torch.cat([ZEROS, babble(seed, 1.5), ZEROS, babble(seed + 9, 1.0), ZEROS[:5000]])
        stream = recogniser.stream()
        for piece in samples.split(size):
            stream.push(piece)
        assert stream.finish().text == recogniser.recognise(samples) != ""
        assert stream.has_sound
