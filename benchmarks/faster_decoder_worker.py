"""Worker script of `benchmarks.peers`, run by a Python that has kaldi_decoder.

Arguments: the input file that `peers` wrote, and the output file for the paths. The script
prints `ready`; for every line `beam max_active` on standard input it decodes all utterances once
and prints the processor time in seconds. It needs a process without k2, since kaldi_decoder and k2
contain different copies of OpenFst.
"""

import json
import sys
from time import process_time

import kaldi_decoder
import kaldifst
import numpy as np


def make_graph(arcs: np.ndarray, written: np.ndarray, scores: np.ndarray) -> kaldifst.StdVectorFst:
    """Make a graph of arcs [n, 3]: source, target, and pdf + 1, or -1 for a final weight."""
    graph = kaldifst.StdVectorFst()
    for _ in range(int(arcs[:, :2].max()) + 1):
        graph.add_state()
    graph.start = 0
    rows = zip(arcs.tolist(), written.tolist(), (-scores).tolist())  # noqa: B905 - may be an old Python
    for (source, target, label), output, cost in rows:
        if label < 0:
            graph.set_final(source, cost)
        else:
            graph.add_arc(source, kaldifst.StdArc(label, output, cost, target))
    return graph


def decode(decoder: kaldi_decoder.FasterDecoder, scores: np.ndarray) -> list[int]:
    """Return the output labels of the best path; of the best partial path if none is complete."""
    decoder.decode(kaldi_decoder.DecodableCtc(scores))
    is_decoded, path = decoder.get_best_path()
    return list(kaldifst.get_linear_symbol_sequence(path)[2]) if is_decoded else []


def main(task_file: str, out: str) -> None:
    """Answer requests until the input ends."""
    with np.load(task_file) as stored:
        task = dict(stored)
    graph = make_graph(task["arcs"], task["written"], task["graph_scores"])
    scores = [np.ascontiguousarray(x) for x in np.split(task["scores"], task["bounds"])]
    print("ready", flush=True)
    for line in sys.stdin:
        beam, max_active = line.split()
        options = kaldi_decoder.FasterDecoderOptions(beam=float(beam), max_active=int(max_active))
        decoder = kaldi_decoder.FasterDecoder(graph, options)
        begin = process_time()
        paths = [decode(decoder, x) for x in scores]
        seconds = process_time() - begin
        with open(out, "w") as file:
            json.dump(paths, file)
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
