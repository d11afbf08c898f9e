"""Word lattices as text for other programs: Kaldi's compact lattices, HTK's SLF, OpenFst."""

from collections.abc import Callable

import numpy as np

from toolkit.fsa.lattice_store import WeightsUsed
from toolkit.fsa.word_lattice import NO_WORD, WordLattice

FRAME = "1"
"""What stands for a frame where Kaldi has a transition id of its model."""
Symbol = Callable[[int], str]


def kaldi_text(utterance: str, lattice: WordLattice, decoding: WeightsUsed) -> str:
    """A compact lattice as `lattice-copy ark:- ark,t:-` prints it, word ids for words.

    Costs are negated logarithms, the acoustic ones not scaled. The strings have as many ids as the
    arc has frames; the ids are all 1, since Kaldi's transition ids belong to Kaldi's models.
    """
    last = lattice.num_states - 1
    frames = np.rint(lattice.times / decoding.frame_shift).astype(int)
    lines = [f"{utterance} "]
    ending = lattice.target == last
    final = [f"{last}"] if lattice.words[ending].any() else []
    for a in range(lattice.num_arcs):
        source, target, word = (int(x[a]) for x in (lattice.source, lattice.target, lattice.words))
        string = "_".join([FRAME] * int(frames[target] - frames[source]))
        weight = f"{-lattice.graph[a]:.9g},{-lattice.acoustic[a]:.9g},{string}"
        if ending[a] and word == NO_WORD:
            lines.append(f"{source}\t{weight}")
        else:
            lines.append(f"{source}\t{target}\t{word}\t{weight}")
    return "\n".join([*lines, *final, "", ""])


def slf(utterance: str, lattice: WordLattice, decoding: WeightsUsed, symbol: Symbol) -> str:
    """A lattice in HTK's standard lattice format, words on links, natural logarithms."""
    lines = [
        "VERSION=1.0",
        f"UTTERANCE={_htk(utterance)}",
        f"lmscale=1 acscale={decoding.acoustic_scale:g} wdpenalty={decoding.word_penalty:g}",
        f"N={lattice.num_states} L={lattice.num_arcs}",
    ]
    lines += [f"I={state} t={time:.3f}" for state, time in enumerate(lattice.times)]
    for a in range(lattice.num_arcs):
        word = "!NULL" if lattice.words[a] == NO_WORD else _htk(symbol(int(lattice.words[a])))
        lines.append(
            f"J={a} S={lattice.source[a]} E={lattice.target[a]} W={word} "
            f"a={lattice.acoustic[a]:.9g} l={lattice.graph[a]:.9g}"
        )
    return "\n".join([*lines, ""])


def _htk(text: str) -> str:
    """Text as HTK reads it: a quotation mark in front, and each backslash, has one before it."""
    text = text.replace("\\", "\\\\")
    return f"\\{text}" if text[:1] in ("'", '"') else text


def openfst_text(lattice: WordLattice, decoding: WeightsUsed, symbol: Symbol) -> str:
    """An acceptor as `fstcompile --acceptor --isymbols=words.txt` takes it.

    Costs are the negated scores of the arcs with the weights of the best path.
    """
    costs = -lattice.scores(decoding.acoustic_scale, decoding.word_penalty)
    lines = [
        f"{source}\t{target}\t{symbol(word)}\t{cost:.9g}"
        for source, target, word, cost in zip(
            lattice.source.tolist(),
            lattice.target.tolist(),
            lattice.words.tolist(),
            costs.tolist(),
            strict=True,
        )
    ]
    return "\n".join([*lines, f"{lattice.num_states - 1}", ""])
