"""Recognition piece by piece against recognition of the whole."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from toolkit.decode.bundle import BundleError
from toolkit.decode.config import EndpointConfig
from toolkit.decode.decoded import DecodedUtterance
from toolkit.decode.recogniser import NetworkRecogniser
from toolkit.decode.stream import (
    Latency,
    NetworkScoreStream,
    StreamResult,
    recognise_stream,
)
from toolkit.errors import ToolkitError
from toolkit.features.frontend import FrontendError
from toolkit.features.shards import CmnState
from toolkit.features.silence import counted_frames


def pieces(x, size):
    return [x[begin : begin + size] for begin in range(0, len(x), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("kind", ["lstm", "tdnnf"])
def test_scores_are_those_of_the_whole(bundle, kind, size):
    model = NetworkRecogniser(bundle(kind=kind)).model
    generator = torch.Generator().manual_seed(size)
    scorer, mean = NetworkScoreStream(model), None
    for frames in (1, 2, 5, 9, 100, 101):
        features = 17 + 3 * torch.randn(frames, 8, generator=generator)
        whole = model.log_likelihoods(features, mean)
        assert whole.std() > 0.5
        scores = [scorer.push(piece) for piece in pieces(features, size)]
        scores.append(scorer.end_utterance())
        assert torch.cat(scores).shape == whole.shape
        assert torch.allclose(torch.cat(scores), whole, atol=3e-4)  # of scores of up to hundreds
        # The normaliser's state goes on to the next utterance, the network's does not.
        mean = (mean or CmnState.empty(8)).after(features, counted_frames(features, "fbank"))
        assert scorer.mean.frames == mean.frames
        assert torch.allclose(scorer.mean.sum, mean.sum, rtol=1e-12)


def stream_results(recogniser, samples, size, **options):
    stream = recogniser.stream(**options)
    results = [stream.push(piece) for piece in pieces(samples, size)]
    return [*results, stream.finish()]


def test_non_finite_scores_are_an_error(bundle, babble):
    recogniser = NetworkRecogniser(bundle())
    with torch.no_grad():
        recogniser.model.model.output.bias[0] = math.inf
    stream = recogniser.stream()
    with pytest.raises(ToolkitError, match="outputs are not finite"):
        stream.push(babble(1, 2.0))


@pytest.mark.parametrize("size", [160, 2560, 16000])
@pytest.mark.parametrize("kind", ["lstm", "tdnnf"])
def test_the_final_text_is_that_of_all_samples(bundle, babble, kind, size):
    recogniser = NetworkRecogniser(bundle(kind=kind))
    texts = set()
    for seed in range(7):
        samples = babble(seed, 0.5 + seed / 4)[: -100 - seed]
        results = stream_results(recogniser, samples, size)
        assert all(result.final is None for result in results[:-1])
        final = results[-1].final
        assert final == DecodedUtterance(results[-1].text, None, 0.0, round(results[-1].end, 3))
        assert results[-1].text == recogniser.recognise(samples)
        assert results[-1].end == pytest.approx(len(samples) / 16000, abs=0.01)
        texts.add(results[-1].text)
        assert size == 16000 or any(result.text for result in results[:-1])
    assert len(texts) >= 3


def test_details_are_those_of_all_samples(bundle, babble):
    recogniser = NetworkRecogniser(bundle())
    samples = babble(1, 3.0)
    utterance = stream_results(recogniser, samples, 1600, details=True)[-1].final
    features = recogniser.frontend(samples)
    assert utterance == recogniser.recognise_features(features, details=True).placed(0.0, 3.0)
    assert len(utterance.words) == len(utterance.text.split()) >= 2
    for word in utterance.words:
        assert 0 <= word.start_s < word.end_s <= 3.0
        assert 0 < word.confidence < 1


class Schedule:
    """Calls silent what a list says, row by row."""

    def __init__(self, rows):
        self.rows = list(rows)

    def __call__(self, log_likelihoods):
        rows = [self.rows.pop(0) for _ in log_likelihoods]
        return torch.tensor(rows, dtype=torch.float32)


def test_an_utterance_ends_after_a_pause_behind_speech(bundle, babble):
    recogniser = NetworkRecogniser(bundle())
    # Silence alone ends nothing; 20 rows of it behind speech do.
    recogniser.silence = Schedule([1] * 30 + [0] * 20 + [1] * 40 + [0] * 200)
    results = stream_results(recogniser, babble(2, 4.0), 480, endpoint=EndpointConfig(0.6))
    finals = [result for result in results if result.final is not None]
    assert len(finals) == 2
    assert finals[0].onset == pytest.approx(0.9)
    assert finals[0].start == 0
    # 70 rows, two of which are the look-ahead's, and half a window that is waited for.
    assert 2.1 <= finals[0].end <= 2.25
    assert finals[1].start == finals[0].end
    assert finals[1].end == pytest.approx(4.0, abs=0.011)
    assert finals[1].onset > finals[1].start


def test_no_utterance_is_longer_than_allowed(bundle, babble):
    recogniser = NetworkRecogniser(bundle())
    results = stream_results(
        recogniser, babble(3, 5.0), 1600, endpoint=EndpointConfig(0.6, longest=1.5)
    )
    spans = [result.end - result.start for result in results if result.final is not None]
    assert len(spans) >= 4
    assert max(spans) < 1.8
    assert sum(spans) == pytest.approx(5.0, abs=0.011)


def test_words_end_with_their_utterance(bundle, babble):
    """A row of scores is of three frames, of which the last one may lack some."""
    recogniser, short = NetworkRecogniser(bundle()), EndpointConfig(0.6, longest=0.7)
    finals = [
        result
        for seed in range(4)
        for result in stream_results(
            recogniser, babble(seed, 1.5), 1600, endpoint=short, details=True
        )
        if result.final is not None
    ]
    assert all(result.end - result.start == pytest.approx(0.75, abs=0.05) for result in finals)
    assert sum(len(result.final.words) for result in finals) > 4
    for result in finals:
        for word in result.final.words:
            assert result.start - 1e-9 <= word.start_s <= word.end_s <= result.end + 1e-9


def test_endpoints_that_never_come_are_refused():
    for settings in ({"silence": 0.0}, {"longest": -1.0}, {"silence": float("nan")}):
        with pytest.raises(ValueError, match=r"must be (above 0|a number)"):
            EndpointConfig(**settings)


def test_unsupported_requests_are_refused_at_once(bundle):
    with pytest.raises(BundleError, match="a unidirectional LSTM or a TDNN-F"):
        NetworkRecogniser(bundle(kind="blstm")).stream()
    whole = NetworkRecogniser(bundle())
    whole.model.normaliser = replace(whole.model.normaliser, scope="whole")
    with pytest.raises(BundleError, match="normalised with earlier frames only"):
        whole.stream()
    with pytest.raises(FrontendError, match="fewer than one window"):
        stream_results(NetworkRecogniser(bundle()), torch.zeros(100), 50)


def test_latency_assumes_that_pieces_arrive_in_real_time():
    texts = ["", "", "YES", "YES", "YES NO"]
    ends = [0.5, 1.0, 1.5, 2.0, 2.5]
    results = [
        StreamResult(t, None, 0.0, e, 0.8 if e > 1 else None)
        for t, e in zip(texts, ends, strict=True)
    ]
    last = StreamResult("YES NO", DecodedUtterance("YES NO"), 0.0, 2.5, 0.8)
    stream = SimpleNamespace(push=lambda block: results.pop(0), finish=lambda: last)
    # The third piece takes two seconds, all others a tenth.
    times = iter([0.0, 0.1, 1.0, 1.1, 2.0, 4.0, 4.0, 4.1, 5.0, 5.1, 6.0, 6.1])
    latency = Latency()
    shown_results = list(recognise_stream([None] * 5, stream, lambda: next(times), latency))
    assert [(result.text, result.final is not None) for result in shown_results] == [
        ("YES", False),
        ("YES NO", False),
        ("YES NO", True),
    ]
    # 1.5 s have been spoken when the third begins, which ends at 3.5; three more take 0.3.
    assert latency.first == pytest.approx(3.5 - 0.8)
    assert latency.final == pytest.approx(3.8 - 2.5)
    assert latency.real_time_factor == pytest.approx(2.5 / 2.5)
    assert "real-time factor 1.000, first words 2.70 s" in latency.summary()
