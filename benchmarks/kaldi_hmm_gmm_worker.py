"""Worker script of `benchmarks.peers`, run by a Python that has kaldi-hmm-gmm.

That Python does not have the toolkit. Arguments: the input file that `peers` wrote, and the
output file for the pdfs. The script prints `ready`. For every line `align` on standard input it
aligns all utterances once; for every line `accumulate` it sums up the statistics of EM along the
true pdfs. It then prints the processor time in seconds. It needs a process without k2, since
kaldi-hmm-gmm and k2 contain different copies of OpenFst.
"""

import sys
from time import process_time
from typing import Any

import kaldi_hmm_gmm
import kaldifst
import numpy as np

# Kaldi's beams for alignment, adapted to log-likelihoods that are not scaled by 0.1.
BEAM, RETRY_BEAM = 100.0, 400.0


def make_model(task: dict[str, np.ndarray]) -> kaldi_hmm_gmm.AmDiagGmm:
    """Make the acoustic model."""
    model = kaldi_hmm_gmm.AmDiagGmm()
    bounds = task["sizes"].cumsum()[:-1]
    parts = (np.split(task[name], bounds) for name in ("weights", "means", "variances"))
    for weights, means, variances in zip(*parts):  # noqa: B905 - may be an old Python
        pdf = kaldi_hmm_gmm.DiagGmm(len(means), means.shape[1])
        pdf.set_weights(weights)
        pdf.set_invvars_and_means(1.0 / variances, means)
        pdf.compute_gconsts()
        model.add_pdf(pdf)
    return model


def make_graph(arcs: np.ndarray) -> kaldifst.StdVectorFst:
    """Make a graph of arcs [n, 3]: source, target, and pdf + 1, or -1 for a final weight."""
    graph = kaldifst.StdVectorFst()
    for _ in range(int(arcs[:, :2].max()) + 1):
        graph.add_state()
    graph.start = 0
    for source, target, label in arcs.tolist():
        if label < 0:
            graph.set_final(source, 0.0)
        else:
            graph.add_arc(source, kaldifst.StdArc(label, label, 0.0, target))
    return graph


def align(model: Any, graph: Any, features: np.ndarray) -> list[int]:
    """Return the pdfs [T] of the best path; empty if there is no path."""
    config = kaldi_hmm_gmm.AlignConfig(BEAM, RETRY_BEAM, False)
    scores = kaldi_hmm_gmm.DecodableAmDiagGmmUnmapped(model, features)
    alignment = kaldi_hmm_gmm.align_utterance_wrapper(
        config, "", 1.0, graph, scores, 0, 0, 0, 0.0, 0
    )
    return [label - 1 for label in alignment[5]]


def accumulate(model: Any, features: np.ndarray, pdfs: np.ndarray) -> float:
    """Sum up the statistics of frames [T, D] along pdfs [T]; return their log-likelihood."""
    statistics = kaldi_hmm_gmm.AccumAmDiagGmm()
    statistics.init(model, int(kaldi_hmm_gmm.GmmUpdateFlags.kGmmAll))
    for x, pdf in zip(features, pdfs.tolist()):  # noqa: B905 - may be an old Python
        statistics.accumulate_for_gmm(model, x, pdf, 1.0)
    return statistics.tot_log_like


def main(task_file: str, out: str) -> None:
    """Answer requests until the input ends."""
    with np.load(task_file) as stored:
        task = dict(stored)
    model = make_model(task)
    graphs = [make_graph(arcs) for arcs in np.split(task["arcs"], task["arc_bounds"])]
    features = np.split(task["features"], task["frame_bounds"])
    print("ready", flush=True)
    for line in sys.stdin:
        begin = process_time()
        if line.strip() == "align":
            paths = [align(model, graph, x) for graph, x in zip(graphs, features)]  # noqa: B905
            seconds = process_time() - begin
            np.save(out, np.array([pdf for path in paths for pdf in path]))
        elif line.strip() == "accumulate":
            likelihood = accumulate(model, task["features"], task["pdfs"])
            seconds = process_time() - begin
            np.save(out, np.array(likelihood))
        else:
            raise ValueError(line)
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
