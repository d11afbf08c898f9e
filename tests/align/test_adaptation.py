"""fMLLR undoes the distortion of each speaker's frames."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.align import adapt as adapt_module
from toolkit.align.adapt import (
    SpeakerStatistics,
    accumulate_fmllr,
    adapt,
    adapt_speakers,
    compose,
    refined,
)
from toolkit.align.em import partition_utterances, sum_statistics, training_data
from toolkit.align.scorer import GmmScorer
from toolkit.features.gmm_features import apply_affine, load_transforms
from toolkit.hmm.gmm_system import GmmSystem
from toolkit.hmm.transforms import estimate_fmllr

DISTORTIONS = {
    "anna": (torch.eye(3), torch.zeros(3)),
    "bert": (torch.tensor([[1.2, 0.3, 0.0], [-0.2, 0.9, 0.1], [0.0, 0.2, 0.8]]), torch.ones(3)),
    "carl": (torch.tensor([[0.8, 0.0, -0.3], [0.1, 1.1, 0.0], [0.2, 0.0, 1.3]]), torch.zeros(3)),
}


@pytest.fixture(scope="module")
def distorted(draw):
    """`speech` with an affine distortion of each speaker's frames."""
    return draw(distort=DISTORTIONS)


class KnownAlignments:
    """Drawn speech with its true alignments."""

    def __init__(self, drawn, folder, config):
        folder.mkdir()
        self.drawn, self.config = drawn, config
        self.partitions = partition_utterances(drawn.transcripts, folder)
        for partition in self.partitions:
            partition.save({u: drawn.states[u] for u, _ in partition.transcripts})

    def adapt(self, system):
        with training_data(self.partitions, self.drawn.lang, self.config.em, jobs=1) as data:
            return adapt(data, system)


def log_likelihood(drawn, transforms, log_likelihoods, senones):
    """Log-likelihood per speech frame, in the feature space before the speakers' transforms."""
    total = frames = 0.0
    for utterance, states in drawn.states.items():
        spoken = (states >= 10).nonzero()[:, 0]  # two silences of five states
        scores = log_likelihoods(utterance)[spoken, senones.pdfs(states)[spoken]]
        total += float(scores.sum())
        frames += len(spoken)
        transform = transforms.get(utterance.partition("-")[0])
        if transform is not None:
            total += len(spoken) * float(transform[:, :-1].slogdet().logabsdet)
    return total / frames


def system_log_likelihood(drawn, system):
    def scores(utterance):
        return system.gmm.log_likelihoods(system.features.load(utterance))

    return log_likelihood(drawn, system.features.transforms, scores, system.senones)


def test_fmllr_undoes_known_distortions(training, speech, distorted, tmp_path):
    clean = KnownAlignments(speech, tmp_path / "plain", training.configs["sat"])
    moved = KnownAlignments(distorted, tmp_path / "moved", training.configs["sat"])
    unadapted = training.system("tri", cepstra=distorted.cepstra)
    adapted, reference = moved.adapt(unadapted), clean.adapt(training.system("tri"))
    assert sorted(adapted.features.transforms) == ["anna", "bert", "carl"]
    # A speaker's best transform, behind the inverse of the distortion, is the best one of the
    # distorted frames: either way they end up in the same places.
    for utterance in speech.states:
        expected = reference.features.load(utterance)
        torch.testing.assert_close(adapted.features.load(utterance), expected, atol=0.2, rtol=0)
    unadapted_likelihood = system_log_likelihood(distorted, unadapted)
    adapted_likelihood = system_log_likelihood(distorted, adapted)
    assert adapted_likelihood > unadapted_likelihood + 2  # measured: from -17.0 to -10.1
    volumes = {s: 3 * float(m.slogdet().logabsdet) for s, (m, _) in DISTORTIONS.items()}
    lengths = {u: int((states >= 10).sum()) for u, states in speech.states.items()}
    volume = sum(volumes[u.partition("-")[0]] * n for u, n in lengths.items())
    expected = system_log_likelihood(speech, reference) - volume / sum(lengths.values())
    assert adapted_likelihood == pytest.approx(expected, abs=0.01)


def test_a_second_estimate_does_not_lower_the_likelihood(training, distorted, tmp_path):
    moved = KnownAlignments(distorted, tmp_path / "moved", training.configs["sat"])
    first_estimate = moved.adapt(training.system("tri", cepstra=distorted.cepstra))
    second_estimate = moved.adapt(first_estimate)
    assert (
        system_log_likelihood(distorted, second_estimate)
        >= system_log_likelihood(distorted, first_estimate) - 1e-5
    )


def test_speakers_without_statistics_keep_their_transforms(training, distorted, tmp_path):
    moved = KnownAlignments(distorted, tmp_path / "moved", training.configs["sat"])
    adapted = moved.adapt(training.system("tri", cepstra=distorted.cepstra)).features
    assert len(adapted.transforms) == 3
    transforms = refined([SpeakerStatistics({})], [[]], adapted)
    assert {*transforms} == {*adapted.transforms}
    assert all(
        torch.equal(transforms[speaker], adapted.transforms[speaker]) for speaker in transforms
    )


def test_each_transform_is_estimated_after_the_speakers_last_partition(
    training, distorted, tmp_path, monkeypatch
):
    data = KnownAlignments(distorted, tmp_path / "moved", training.configs["sat"])
    system = training.system("tri", cepstra=distorted.cepstra)
    totals = sum_statistics(accumulate_fmllr(p, system) for p in data.partitions).by_speaker
    partitions_done = []

    def estimate(statistics):
        partitions_done.append(len(accumulated))
        return estimate_fmllr(statistics)

    accumulated = []

    def accumulate(partition, system):
        accumulated.append(partition)
        return accumulate_fmllr(partition, system)

    monkeypatch.setattr(adapt_module, "estimate_fmllr", estimate)
    monkeypatch.setattr(adapt_module, "accumulate_fmllr", accumulate)
    transforms = data.adapt(system).features.transforms
    assert len(data.partitions) == 8
    assert partitions_done == [3, 6, 8]  # of three speakers, each with a third of the utterances
    assert {s: w.tolist() for s, w in transforms.items()} == {
        s: estimate_fmllr(total)[0].float().tolist() for s, total in totals.items()
    }


def test_speakers_of_few_frames_stay_as_they_are(training, draw, tmp_path):
    few = draw(utterances=3, distort=DISTORTIONS)  # some 160 frames of speech each, 500 are needed
    data = KnownAlignments(few, tmp_path / "few", training.configs["sat"])
    transforms = data.adapt(training.system("tri", cepstra=few.cepstra)).features.transforms
    for transform in transforms.values():
        assert torch.equal(transform, torch.eye(9, 10))


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_compose_applies_one_transform_after_the_other(seed, dimension):
    generator = torch.Generator().manual_seed(seed)
    outer, inner = torch.randn(2, dimension, dimension + 1, generator=generator).double()
    x = torch.randn(4, dimension, generator=generator).double()
    one_by_one = apply_affine(outer, apply_affine(inner, x))
    torch.testing.assert_close(apply_affine(compose(outer, inner), x), one_by_one)


def test_two_passes_raise_the_likelihood_of_unseen_speakers(training, draw, tmp_path):
    unseen = draw(seed=2, utterances=14, distort=DISTORTIONS)
    hypotheses = dict(unseen.transcripts)
    hypotheses["bert-03"] = []  # nothing recognised
    hypotheses["carl-00"] = ["AX"] * 40  # no path
    out = tmp_path / "fmllr" / "dev.safetensors"
    out.parent.mkdir()
    adapt_speakers(
        *(GmmSystem.load(training.root / name, unseen.cepstra) for name in ("sat", "lda_mllt")),
        hypotheses,
        unseen.lang,
        training.configs["sat"].em,
        out,
        jobs=1,
    )
    assert [path.name for path in out.parent.iterdir()] == ["dev.safetensors"]
    transforms = load_transforms(out)
    assert sorted(transforms) == ["anna", "bert", "carl"]
    assert {tuple(w.shape) for w in transforms.values()} == {(5, 6)}
    senones = training.system("sat").senones
    likelihoods = []
    for path in (None, out):
        scorer = GmmScorer(training.root / "sat", unseen.cepstra, path)
        applied = transforms if path else {}
        likelihoods.append(log_likelihood(unseen, applied, scorer.log_likelihoods, senones))
    assert likelihoods[1] > likelihoods[0] + 1  # measured: from -14.6 to -11.7


def test_training_speakers_keep_the_transforms_of_the_last_iteration(training):
    system = training.system("sat")
    assert sorted(system.features.transforms) == ["anna", "bert", "carl"]
    assert {tuple(w.shape) for w in system.features.transforms.values()} == {(5, 6)}
    assert load_transforms(training.root / "lda_mllt" / "fmllr.safetensors") == {}
