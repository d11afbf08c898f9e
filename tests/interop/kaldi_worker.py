"""Run Kaldi's code from wheels in a separate process: two copies of OpenFst conflict.

Reads a request in JSON from standard input and prints the answer in JSON.
"""

import json
import struct
import sys


def costs(fst, strings):
    """The costs of the best paths with given input and output labels; None without a path."""
    import kaldifst

    path_costs = []
    for read, written in strings:
        # Compositions want their inner sides sorted.
        input_acceptor = kaldifst.make_linear_acceptor(read)
        output_acceptor = kaldifst.make_linear_acceptor(written)
        machine = kaldifst.StdVectorFst.read(fst)
        kaldifst.arcsort(machine, sort_type="ilabel")
        composed = kaldifst.compose(input_acceptor, machine)
        kaldifst.arcsort(composed, sort_type="olabel")
        best = kaldifst.shortest_path(kaldifst.compose(composed, output_acceptor))
        path_costs.append(_path_cost(best))
    return path_costs


def _path_cost(path):
    import kaldifst

    if path.num_states == 0:
        return None
    return kaldifst.get_linear_symbol_sequence(path)[3].value


def describe(fst):
    """The numbers of states and arcs, the sorting of the arcs, the type and the start."""
    import kaldifst

    machine = kaldifst.StdVectorFst.read(fst)
    arcs = sum(machine.num_arcs(state) for state in range(machine.num_states))
    sort = [machine.is_ilabel_sorted, machine.is_olabel_sorted]
    return [machine.num_states, arcs, sort, [machine.type, machine.start]]


def determinizable(fst, first=None):
    """Whether Kaldi determinises a transducer, after composition with `first` if given."""
    import kaldifst

    machine = kaldifst.StdVectorFst.read(fst)
    if first is not None:
        machine = kaldifst.compose(kaldifst.StdVectorFst.read(first), machine)
    stopped = kaldifst.determinize_star(machine, max_states=1000000)
    return not stopped and machine.num_states > 0


def copy(fst, vector, const):
    """Write a transducer as OpenFst's types `vector` and `const`."""
    import kaldifst

    machine = kaldifst.StdVectorFst.read(fst)
    machine.write(vector)
    kaldifst.StdConstFst(machine).write(const)


def decode(graph, loglikes, scale, columns):
    """The words that FasterDecoder finds, by utterance."""
    import kaldi_decoder
    import kaldi_native_io
    import kaldifst
    import numpy as np

    options = kaldi_decoder.FasterDecoderOptions(beam=200.0, max_active=1000000)
    machine = kaldifst.StdVectorFst.read(graph)
    decoder = kaldi_decoder.FasterDecoder(machine, options)
    words_by_utterance = {}
    for name, matrix in kaldi_native_io.SequentialFloatMatrixReader(f"scp:{loglikes}"):
        scores = np.ascontiguousarray(np.array(matrix)[:, columns] * np.float32(scale))
        decoder.decode(kaldi_decoder.DecodableCtc(scores))
        reached, path = decoder.get_best_path()
        words_by_utterance[name] = (
            list(kaldifst.get_linear_symbol_sequence(path)[2]) if reached else None
        )
    return words_by_utterance


def model(text, tree, contexts):
    """Kaldi's transition model of a topology and a tree, and the pdfs of contexts."""
    import kaldi_hmm_gmm

    topology = kaldi_hmm_gmm.HmmTopology()
    topology.read(text)
    read = kaldi_hmm_gmm.ContextDependency.__new__(kaldi_hmm_gmm.ContextDependency)
    content = binary_tree(tree)
    read.__setstate__((list(struct.unpack(f"{len(content)}b", content)),))
    pdfs = [read.compute(phones, state)[1] for phones, state in contexts]
    transition_model = kaldi_hmm_gmm.TransitionModel(read, topology)
    ids = list(range(1, transition_model.num_transition_ids + 1))
    return [
        str(transition_model),
        [transition_model.transition_id_to_pdf(number) for number in ids],
        pdfs,
    ]


def transitions(text, tree):
    """Kaldi's transition model as text, and the pdf and phone of each id from 1 on."""
    import kaldi_hmm_gmm

    topology = kaldi_hmm_gmm.HmmTopology()
    topology.read(text)
    read = kaldi_hmm_gmm.ContextDependency.__new__(kaldi_hmm_gmm.ContextDependency)
    content = binary_tree(tree)
    read.__setstate__((list(struct.unpack(f"{len(content)}b", content)),))
    transition_model = kaldi_hmm_gmm.TransitionModel(read, topology)
    ids = range(1, transition_model.num_transition_ids + 1)
    return [
        str(transition_model),
        [transition_model.transition_id_to_pdf(number) for number in ids],
        [transition_model.transition_id_to_phone(number) for number in ids],
    ]


def binary_tree(tree):
    """A tree in Kaldi's binary format, the only one that this wheel reads."""
    tokens, content = iter(tree.split()), b""
    for token in tokens:
        if token == "[":
            members = [int(number) for number in iter(lambda: next(tokens), "]")]
            content += struct.pack("<bi", 4, len(members))
            content += b"".join(struct.pack("<i", number) for number in members)
        elif token == "TE":
            key, size = int(next(tokens)), int(next(tokens))
            content += b"TE " + struct.pack("<bi", 4, key) + struct.pack("<bI", -4, size)
        elif token.lstrip("-").isdigit():
            content += struct.pack("<bi", 4, int(token))
        else:
            content += token.encode() + b" "
    return content


if __name__ == "__main__":
    request = json.load(sys.stdin)
    print(json.dumps(globals()[request.pop("do")](**request)))
