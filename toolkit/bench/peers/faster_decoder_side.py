"""kaldi_decoder.FasterDecoder on the benchmark's task: run by a Python that has it.

Arguments: a file that `toolkit.bench.peers.faster_decoder` wrote, and where to put the paths. The
process says `ready`, then for every line `beam max_active` on its standard input decodes all
utterances once and says how much processor time that took, in seconds. It stays away from the
process with k2: the two carry different copies of OpenFst.
"""

import json
import sys
from time import process_time

import kaldi_decoder
import kaldifst
import numpy as np


def make_graph(arcs: np.ndarray, written: np.ndarray, scores: np.ndarray) -> kaldifst.StdVectorFst:
    """A graph of arcs [n, 3]: source, target, pdf + 1 or -1 into the final state."""
    graph = kaldifst.StdVectorFst()
    for _ in range(int(arcs[:, :2].max()) + 1):
        graph.add_state()
    graph.start = 0
    rows = zip(arcs.tolist(), written.tolist(), (-scores).tolist())  # noqa: B905 - may be old
    for (source, target, label), output, cost in rows:
        if label < 0:
            graph.set_final(source, cost)
        else:
            graph.add_arc(source, kaldifst.StdArc(label, output, cost, target))
    return graph


def decode(decoder: kaldi_decoder.FasterDecoder, scores: np.ndarray) -> list[int]:
    """The output labels of the best path, or of the best beginning when none is complete."""
    decoder.decode(kaldi_decoder.DecodableCtc(scores))
    found, path = decoder.get_best_path()
    return list(kaldifst.get_linear_symbol_sequence(path)[2]) if found else []


def main(task_file: str, out: str) -> None:
    """Serve until the input ends."""
    with np.load(task_file) as stored:
        task = dict(stored)
    graph = make_graph(task["arcs"], task["written"], task["graph_scores"])
    scores = [np.ascontiguousarray(x) for x in np.split(task["scores"], task["bounds"])]
    print("ready", flush=True)
    for line in sys.stdin:
        beam, max_active = line.split()
        options = kaldi_decoder.FasterDecoderOptions(beam=float(beam), max_active=int(max_active))
        decoder = kaldi_decoder.FasterDecoder(graph, options)
        before = process_time()
        paths = [decode(decoder, x) for x in scores]
        taken = process_time() - before
        with open(out, "w") as file:
            json.dump(paths, file)
        print(taken, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
