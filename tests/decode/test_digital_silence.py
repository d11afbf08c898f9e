"""Recognition of recordings with spans of zeros: no words in them, and none lost around them."""

import logging

import pytest
import soundfile
import torch

from toolkit.decode.recogniser import NetworkRecogniser
from toolkit.decode.sources import Inputs
from toolkit.decode.transcribe import transcribe
from toolkit.decode.words import PENALTY, SilenceGate, silence_pdfs
from toolkit.hmm.config import TreeConfig
from toolkit.hmm.phone_sets import RootGroup
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.hmm.tree_growing import TreeStatistics, build_tree

ZEROS = torch.zeros(16000)


def test_the_gate_lowers_all_but_silence_in_silent_rows_alone():
    silent = torch.tensor([True, False, False])
    features = torch.full((60, 4), -15.9)
    features[:9] = 10.0  # three rows of sound, then 20 frames of silence that may hold a word
    scores = torch.randn(20, 3)
    whole = SilenceGate("fbank", silent, 3, 1)
    whole.push(features)
    gated = whole(scores)
    first = 10  # the row of the frames 30, 31, 32: more than 20 after the sound
    assert torch.equal(gated[:first], scores[:first])
    assert torch.equal(gated[:, 0], scores[:, 0])
    expected = scores[first:, 1:].minimum(scores[first:, :1]) - PENALTY
    assert torch.equal(gated[first:, 1:], expected)
    # Rows that come later than their frames, in pieces.
    stream = SilenceGate("fbank", silent, 3, 1)
    rows = []
    for begin in range(0, 60, 15):
        stream.push(features[begin : begin + 15])
        ready = range(max(0, begin // 3 - 2), 20 if begin == 45 else (begin + 15) // 3 - 2)
        rows.append(stream(scores[list(ready)]))
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
