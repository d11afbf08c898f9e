import re
import sys

import numpy as np
import pytest
import torch

from benchmarks import peers
from benchmarks.peers import PeerUnavailableError
from benchmarks.synthetic import SyntheticSpeech
from toolkit.align.force_align import TrainingGraph
from toolkit.fsa.fst import fst_from_arcs
from toolkit.hmm.gmm import Gmm, GmmStatistics

STUB = """
import sys
import numpy as np
task = np.load(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    {answer}
    np.save(sys.argv[2], task["arcs"][:, 2] if line == "align\\n" else task["pdfs"].sum())
    print(0.25, flush=True)
"""


@pytest.fixture(scope="module")
def speech():
    return SyntheticSpeech.make(words=200)


@pytest.mark.long
def test_compares_all_cases(monkeypatch, ticking_clock):
    from benchmarks import align

    ticking_clock(align)
    monkeypatch.delenv(peers.KALDI_HMM_GMM_VARIABLE, raising=False)
    sizes = align.Sizes(utterances=3, seconds=3.0, repeats=1, long_seconds=90.0)
    table = align.benchmark(sizes)
    whole = table.row(align.OURS)
    assert whole.ratio == 1.0
    assert {"graphs alone", align.SEARCH, align.BOTH} < {r.name for r in table.rows}
    assert {row.rate for row in table.rows} == {whole.rate}  # s of speech, the same for all
    assert whole.rate >= 3 * 3.0
    _, factors, correctness, missing, hour = table.notes
    assert f"{1 / whole.rate:.5f} (target: at most 0.001" in factors
    assert float(re.search(r"([\d.]+)% of the frames", correctness)[1]) > 95
    assert "not installed" in missing
    assert "pip install kaldi-hmm-gmm==" in missing
    assert "2 min" in hour  # a minute and a half, rounded
    assert "under 2 GB, met" in hour


def test_synthetic_speech_sounds_like_its_model(speech):
    spoken = speech.utterance(3, 8.0)
    assert 8.0 <= len(spoken.features) / 100 < 9.5
    scores = speech.gmm.log_likelihoods(spoken.features)
    best = scores.argmax(1) == speech.senones.pdfs(spoken.states)
    assert 0.45 < best.float().mean() < 0.75  # as with real speech, see SPREAD
    redrawn = SyntheticSpeech.make(words=200).utterance(3, 8.0)
    assert redrawn.words == spoken.words
    assert torch.equal(redrawn.features, spoken.features)
    assert not torch.equal(speech.utterance(4, 8.0).features[:500], spoken.features[:500])


def test_synthetic_model_has_the_size_asked_for():
    gmm = SyntheticSpeech.make(words=200, leaves=2, gaussians=3, dimension=5).gmm
    assert gmm.num_pdfs == 39 * 3 * 2 + 2 * 5
    assert gmm.means.shape[1] == 5
    assert set(torch.bincount(gmm.owner).tolist()) == {2, 3, 4}
    totals = torch.zeros(gmm.num_pdfs).index_add_(0, gmm.owner, gmm.weights)
    torch.testing.assert_close(totals, torch.ones(gmm.num_pdfs))


@pytest.fixture
def task():
    gmm = Gmm(torch.arange(9), torch.ones(9), torch.zeros(9, 2), torch.ones(9, 2))
    fst = fst_from_arcs([(0, 0, 1, 0, 0.0), (0, 1, 2, 0, 0.0)], finals=[1])
    pdfs = torch.tensor([4, 4, 4, 7, 7])
    return gmm, [TrainingGraph(fst, torch.tensor([4, 7]))], [torch.zeros(5, 2)], [pdfs]


def replace_worker(monkeypatch, tmp_path, answer):
    """Replace the script that needs kaldi-hmm-gmm."""
    (tmp_path / "kaldi_hmm_gmm_worker.py").write_text(STUB.format(answer=answer))
    monkeypatch.setattr(peers, "__file__", str(tmp_path / "process.py"))
    monkeypatch.setattr(peers, "KALDI_HMM_GMM_CHECK", "")
    monkeypatch.setenv(peers.KALDI_HMM_GMM_VARIABLE, sys.executable)


def test_worker_gets_graphs_over_the_models_pdfs_and_is_timed(monkeypatch, tmp_path, task):
    replace_worker(monkeypatch, tmp_path, "pass")
    with peers.KaldiHmmGmm(*task, tmp_path) as aligner:
        aligner.align()
        aligner.align()
        assert aligner.processor_seconds == 0.5
        assert aligner.pdfs.tolist() == [5, 8, -1]
        aligner.accumulate()
        assert aligner.processor_seconds == 0.75
        assert aligner.log_likelihood == 26


@pytest.mark.parametrize("answer", ["raise SystemExit(1)", "import time; time.sleep(60)"])
def test_a_worker_that_crashes_or_hangs_is_reported(monkeypatch, tmp_path, task, answer):
    replace_worker(monkeypatch, tmp_path, answer)
    with peers.KaldiHmmGmm(*task, tmp_path) as aligner:
        aligner.timeout = 0.5
        with pytest.raises(PeerUnavailableError, match="crashed, or gave no answer"):
            aligner.align()


@pytest.mark.parametrize(
    ("python", "pinned", "reason"),
    [
        (sys.executable, "no-such-distribution==1.0", "PackageNotFoundError"),
        (sys.executable, "numpy==0.1", "numpy .* is installed"),
        ("no-such-python", "numpy==0.1", "No such file"),
    ],
)
def test_a_python_without_kaldi_is_reported(monkeypatch, tmp_path, task, python, pinned, reason):
    monkeypatch.setenv(peers.KALDI_HMM_GMM_VARIABLE, python)
    monkeypatch.setattr(peers, "KALDI_HMM_GMM_PINNED", (pinned,))
    with pytest.raises(PeerUnavailableError, match=reason):
        peers.KaldiHmmGmm(*task, tmp_path)


def test_kaldis_own_paths_are_those_of_exhaustive_search_and_its_likelihood_is_ours(
    monkeypatch, tmp_path, task
):
    gmm, graphs, _, pdfs = task
    gmm = Gmm(gmm.owner, gmm.weights, torch.arange(9.0)[:, None].expand(9, 2), gmm.variances)
    x = torch.tensor([[4.0, 4.0], [4.0, 5.0], [7.0, 6.5], [4.5, 4.5], [7.0, 7.0]])
    try:
        aligner = peers.KaldiHmmGmm(gmm, graphs, [x], pdfs, tmp_path)
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    with aligner:
        aligner.align()
        # Pdf 4 loops, pdf 7 ends: only the last frame can be 7.
        assert np.array_equal(aligner.pdfs, [4, 4, 4, 4, 7])
        aligner.accumulate()
        sums = GmmStatistics.zeros(9, 2)
        gmm.accumulate(x, pdfs[0], sums)
        assert aligner.log_likelihood == pytest.approx(sums.log_likelihood)
