"""LDA + MLLT inside the training of a system; the estimates have tests of their own."""

from dataclasses import replace

import pytest
import torch

from toolkit.align.em import (
    accumulate_gmm,
    partition_utterances,
    speech_frames,
    speech_mask,
    training_data,
)
from toolkit.align.train_gmm import accumulate_lda, accumulate_mllt
from toolkit.hmm.transforms import LdaError, LdaStatistics


@pytest.fixture
def data(training, speech, tmp_path):
    """The training data with its true alignments."""
    partitions = partition_utterances(speech.transcripts, tmp_path)
    for partition in partitions:
        partition.save({u: speech.states[u] for u, _ in partition.transcripts})
    with training_data(partitions, speech.lang, training.configs["lda_mllt"].em, jobs=1) as data:
        yield data


def test_lda_and_mllt_use_only_speech_frames(training, speech, data):
    system = training.system("lda_mllt")
    frames = sum(int((states >= 10).sum()) for states in speech.states.values())  # 2 silences of 5
    lda = data.accumulate(accumulate_lda, features=system.features, senones=system.senones)
    assert lda.count.sum() == frames
    assert data.accumulate(accumulate_mllt, system=system).beta == frames
    silent = torch.cat([system.senones.pdfs(torch.arange(s, s + 5)) for s in (0, 5)])
    assert lda.count[silent].sum() == 0


def test_lda_statistics_equal_those_of_all_frames_pooled(training, speech, data):
    system = training.system("tri")
    statistics = data.accumulate(accumulate_lda, features=system.features, senones=system.senones)
    x = torch.cat([system.features.load(u) for u in speech.states])
    states = torch.cat(list(speech.states.values()))
    pdfs = torch.cat([system.senones.pdfs(s) for s in speech.states.values()])
    speech_frames = speech_mask(states, speech.topology)
    expected = LdaStatistics.zeros(system.senones.num_pdfs, 9)
    expected.accumulate(x[speech_frames], pdfs[speech_frames])
    torch.testing.assert_close(statistics.count, expected.count)
    torch.testing.assert_close(statistics.first, expected.first)
    torch.testing.assert_close(statistics.second, expected.second)


def test_speech_frames_are_paired_with_their_utterances_pdfs(training, speech):
    senones = training.system("tri").senones
    batch = [speech.states["anna-00"], speech.states["bert-03"]]
    places = torch.arange(sum(map(len, batch)))[:, None]
    spoken_frames, pdfs = speech_frames(
        places, batch, torch.ones(len(places), dtype=torch.bool), senones
    )
    expected = [
        (len(batch[0]) * i + t, int(senones.pdfs(states)[t]))
        for i, states in enumerate(batch)
        for t in range(len(states))
        if states[t] >= 10
    ]
    assert list(zip(spoken_frames[:, 0].tolist(), pdfs.tolist(), strict=True)) == expected


def test_mllt_raises_the_training_likelihood(training, data, tmp_path):
    """Compare per frame and in one feature space: add the log-determinant of the rotation."""
    config = training.configs["lda_mllt"]
    unrotated, rotated = tmp_path / "plain", training.root / "lda_mllt"
    training("lda_mllt", unrotated, config=replace(config, mllt=()))
    likelihoods = {}
    for folder in (unrotated, rotated):
        system = training.system("lda_mllt", folder)
        sums = data.accumulate(accumulate_gmm, system=system)
        likelihoods[folder] = sums.log_likelihood / sums.frames
    lda_projection, mllt_projection = (
        training.system("lda_mllt", f).features.frontend.projection.double()
        for f in (unrotated, rotated)
    )
    matrix = mllt_projection @ torch.linalg.pinv(lda_projection)
    torch.testing.assert_close(matrix @ lda_projection, mllt_projection, atol=1e-5, rtol=1e-4)
    likelihoods[rotated] += float(matrix.slogdet().logabsdet)
    assert likelihoods[rotated] > likelihoods[unrotated] + 0.1  # measured: -10.21 and -10.55


def test_dimensions_are_those_of_the_configuration(training):
    features = training.system("lda_mllt").features
    assert features.frontend.projection.shape == (5, 3 * 9)
    assert features.dimension == 5
    assert training.system("lda_mllt").gmm.means.shape[1] == 5


def test_more_dimensions_than_the_spliced_frames_have_are_refused(training, tmp_path):
    config = replace(training.configs["lda_mllt"], dimension=28)
    with pytest.raises(LdaError, match="28 dimensions: only 27"):
        training("lda_mllt", tmp_path, config=config)
