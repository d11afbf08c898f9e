"""Reads and writes decoding graphs and other transducers in the formats of OpenFst and Kaldi."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from toolkit.align.scorer import Scorer
from toolkit.fsa.arrays import ragged_rows
from toolkit.fsa.config import Beam
from toolkit.fsa.decoding_graph import compile_graph, make_lexicon
from toolkit.fsa.fst import EPSILON, FINAL, Fst, GraphError
from toolkit.fsa.lattice import best_path
from toolkit.fsa.remove_epsilon import remove_epsilon
from toolkit.fsa.search import search_lattice
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.kaldi.archive import ArchiveWriter, entries, kaldi_native_io, read_matrix
from toolkit.kaldi.dict_lang import write_lang
from toolkit.kaldi.features import check_key
from toolkit.kaldi.model import KaldiTransitions, Transitions, topology_text, tree_text
from toolkit.lang.lang import Lang
from toolkit.lang.tables import SymbolTable
from toolkit.processes.bars import Bar
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import reading

MAGIC, _VERSION = 2125659606, 2
_EXPANDED, _MUTABLE = 0x1, 0x2
_INPUT_SORTED, _OUTPUT_SORTED = 0x10000000, 0x40000000
_STATE_WORDS, _ARC_WORDS = 3, 4


def dump_openfst(fst: Fst, by_output: bool = False) -> bytes:
    """Serialise a transducer in OpenFst's `vector` format with `standard` arcs.

    Costs are negated scores. Arcs to the final state become final costs; an arc that also writes
    words stays, and reads epsilon. An arc with several words becomes a sequence of arcs with one
    word each; all but the first read epsilon.

    Args:
      fst: the transducer; its `lm_scores` are not written.
      by_output: sort the arcs of each state by output labels, for the left side of a composition,
        instead of by input labels.
    """
    arcs, final_costs = _single_words(fst)
    source, target, read, written, cost = arcs
    # Sorted by source, then label, then target; lexsort takes the primary key last.
    order = np.lexsort((target, written if by_output else read, source))
    first = np.searchsorted(source[order], np.arange(len(final_costs) + 1))
    # The file as 32-bit words, floats by their bits.
    words = np.zeros(_STATE_WORDS * len(final_costs) + _ARC_WORDS * len(source), "<i4")
    # A state is its final cost, the number of its arcs in 64 bits, and its arcs. The states before
    # it take 3 words each, and the arcs before it take 4 each.
    at = _STATE_WORDS * np.arange(len(final_costs)) + _ARC_WORDS * first[:-1]
    # Only the lower 32 bits of the arc count are set: `words` is zero elsewhere.
    words[at], words[at + 1] = final_costs.view("<i4"), np.diff(first)
    # An arc is stored after the headers of its own and all earlier states.
    at = _STATE_WORDS * (source[order] + 1) + _ARC_WORDS * np.arange(len(source))
    for column, values in enumerate((read, written, cost.view("<i4"), target)):
        words[at + column] = values[order]
    properties = _EXPANDED | _MUTABLE | (_OUTPUT_SORTED if by_output else _INPUT_SORTED)
    start = 0 if len(final_costs) else -1
    numbers = struct.pack("<iiQqqq", _VERSION, 0, properties, start, len(final_costs), len(source))
    return (
        struct.pack("<i", MAGIC) + _text("vector") + _text("standard") + numbers + words.tobytes()
    )


def _text(name: str) -> bytes:
    """Serialise a string as OpenFst does: its length, then its bytes."""
    return struct.pack("<i", len(name)) + name.encode()


def _single_words(fst: Fst) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Split arcs with several words; return arcs (source, target, ..., cost) and final costs."""
    num_words, is_final = fst.word_counts, fst.labels == FINAL
    # A wordless arc to the final state becomes the final cost of its source state.
    is_final_cost = is_final & (num_words == 0)
    kept_arcs = np.flatnonzero(~is_final_cost)
    # The final state is dropped if no arc leads there any more.
    states = max(fst.num_states - (0 if is_final[kept_arcs].any() else 1), 0)
    # An arc of n words becomes max(n, 1) pieces; arrays below are [pieces].
    num_pieces = np.maximum(num_words[kept_arcs], 1)
    row, position = ragged_rows(num_pieces)
    arc_of_piece = kept_arcs[row]
    is_first, is_last = position == 0, position == num_pieces[row] - 1
    # Every piece of an arc but the last leads to a new state, from which the next piece begins.
    new_states = states + np.cumsum(~is_last) - 1
    source = np.where(
        is_first,
        fst.source[arc_of_piece],
        np.append(0, new_states[:-1]) if len(arc_of_piece) else new_states,
    )
    target = np.where(is_last, fst.target[arc_of_piece], new_states)
    # The first piece carries the input label and the cost, every piece one word.
    input_labels = np.where(
        is_first & (fst.labels[arc_of_piece] != FINAL), fst.labels[arc_of_piece], EPSILON
    )
    output_labels = np.zeros(len(arc_of_piece), np.int32)
    has_word = num_words[arc_of_piece] > 0
    output_labels[has_word] = fst.words[(fst.splits[arc_of_piece] + position)[has_word]]
    # Adding +0 turns -0 into 0, so that equal graphs give equal files.
    zero = np.float32(0)
    costs = np.where(is_first, -fst.scores[arc_of_piece], zero).astype("<f4") + zero
    final_costs = np.full(states + np.count_nonzero(~is_last), np.inf, "<f4")
    # Several final arcs of one state: the cheapest wins, as in the tropical semiring.
    np.minimum.at(final_costs, fst.source[is_final_cost], -fst.scores[is_final_cost] + zero)
    if is_final[kept_arcs].any():
        final_costs[fst.num_states - 1] = 0.0
    return (source, target, input_labels, output_labels, costs), final_costs


ADVICE = "give a transducer that OpenFst wrote as `vector` or `const`, with `standard` arcs"
_INPUT_SYMBOLS, _OUTPUT_SYMBOLS, _ALIGNED = 0x1, 0x2, 0x4
_ALIGNMENT = 16
ARC = np.dtype([("read", "<i4"), ("written", "<i4"), ("cost", "<f4"), ("target", "<i4")])
_CONST_STATE = np.dtype([("cost", "<f4"), ("first", "<u4"), ("arcs", "<u4"), ("silent", "<u4", 2)])
_VECTOR_STATE = 12
"""Size in bytes of a state: its final cost, and the number of its arcs in 64 bits."""


def load_openfst(path: Path) -> Fst:
    """Read an OpenFst transducer.

    Args:
      path: the file.

    Returns:
      A transducer whose scores are negated costs, without arcs of infinite cost, which are on no
      path. The start is state 0; the other states keep the file's order, and an added final state
      is the last.

    Raises:
      GraphError: the file is not such a transducer; the message names it.
    """
    with reading(path, GraphError, ADVICE, "not a transducer"):
        return _read(Path(path).read_bytes())


def _read(content: bytes) -> Fst:
    """Parse a transducer from the bytes of a file."""
    (magic,) = struct.unpack_from("<i", content)
    if magic != MAGIC:
        raise ValueError("it does not begin like an OpenFst file")
    at, kind = _read_text(content, 4)
    at, arc = _read_text(content, at)
    _, flags, _, start, states, arcs = struct.unpack_from("<iiQqqq", content, at)
    at += struct.calcsize("<iiQqqq")
    if kind not in ("vector", "const") or arc != "standard":
        raise ValueError(f"a {kind[:20]} of {arc[:20]} arcs")
    if flags & (_INPUT_SYMBOLS | _OUTPUT_SYMBOLS):
        raise ValueError("it contains symbol tables; clear them with fstsymbols")
    if not 0 <= start < states or states > len(content):
        raise ValueError("it has no states, or no start state")
    if kind == "const":
        # Aligned files pad states and arcs to multiples of 16 bytes.
        at += -at % _ALIGNMENT if flags & _ALIGNED else 0
        finals, source, table = _const(content, at, states, arcs, bool(flags & _ALIGNED))
    else:
        finals, source, table = _vector(content, at, states)
    if len(table) and not 0 <= table["target"].min() <= table["target"].max() < states:
        raise ValueError("an arc leads to a state that does not exist")
    if len(table) and min(table["read"].min(), table["written"].min()) < 0:
        raise ValueError("a label is negative")
    return _fst(start, finals, source, table)


def _read_text(content: bytes, at: int) -> tuple[int, str]:
    """Parse a string; return the offset after it, and the string."""
    (length,) = struct.unpack_from("<i", content, at)
    if not 0 <= length <= len(content):
        raise ValueError("a type name in its header has an invalid length")
    end = at + 4 + length
    return end, content[at + 4 : end].decode()


_Parts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Final cost of each state, [states]; source state of each arc, [arcs]; the arcs, `ARC` [arcs]."""


def _const(content: bytes, at: int, states: int, arcs: int, aligned: bool) -> _Parts:
    """Parse the states and arcs of a `const` transducer: all states, then all arcs."""
    table = np.frombuffer(content, _CONST_STATE, states, at)
    at += table.nbytes
    at += -at % _ALIGNMENT if aligned else 0
    counts = table["arcs"].astype(np.int64)
    # Arcs are read as one block, so the ranges of the states must be contiguous.
    if counts.sum() != arcs or (table["first"] != counts.cumsum() - counts).any():
        raise ValueError("the arcs of its states are not contiguous")
    source = np.repeat(np.arange(states), counts)
    return table["cost"], source, np.frombuffer(content, ARC, arcs, at)


def _vector(content: bytes, at: int, states: int) -> _Parts:
    """Parse the states and arcs of a `vector` transducer: each state, then its arcs."""
    costs, counts, pieces = [], [], []
    for _ in range(states):
        cost, count = struct.unpack_from("<fq", content, at)
        at += _VECTOR_STATE
        costs.append(cost)
        counts.append(count)
        end = at + ARC.itemsize * count
        if count < 0 or end > len(content):
            raise ValueError("it is truncated within the arcs")
        pieces.append(content[at:end])
        at = end
    source = np.repeat(np.arange(states), counts)
    return np.array(costs, np.float32), source, np.frombuffer(b"".join(pieces), ARC)


def _fst(start: int, finals: np.ndarray, source: np.ndarray, table: np.ndarray) -> Fst:
    """Build a transducer of this toolkit, with a single final state; see `load_openfst`."""
    final_state = len(finals)
    # Exchange the numbers of the start and of state 0: the start is state 0 here.
    new_state = np.arange(final_state + 1)
    new_state[[0, start]] = new_state[[start, 0]]
    ends = np.flatnonzero(np.isfinite(finals))
    if not len(ends):
        raise ValueError("it has no final state")
    # Cost infinity is the semiring's zero: no path passes such an arc.
    is_finite = table["cost"] != np.inf
    source, table = source[is_finite], table[is_finite]
    no_words = np.zeros(len(ends), np.int32)
    # A final cost becomes an arc labelled FINAL to the added final state.
    source = new_state[np.append(source, ends)]
    # Group the arcs by source; a stable sort keeps the file's order within a state.
    order = np.argsort(source, kind="stable")
    target = new_state[np.append(table["target"], np.full(len(ends), final_state))]
    labels = np.append(table["read"], np.full(len(ends), FINAL))
    words = np.append(table["written"], no_words)[order]
    # Scores are log-probabilities, costs their negation.
    scores = -np.append(table["cost"], finals[ends])
    if np.isnan(scores).any() or (scores == np.inf).any():
        raise ValueError("some of its costs are NaN or minus infinity")
    return Fst(
        source=source[order].astype(np.int32),
        target=target[order].astype(np.int32),
        labels=labels[order].astype(np.int32),
        scores=scores[order].astype(np.float32),
        splits=np.append(0, np.cumsum(words > 0)).astype(np.int32),
        words=words[words > 0].astype(np.int32),
    )


_LEAVES = -1


def with_transition_ids(graph: Fst, transitions: Transitions) -> Fst:
    """Convert a graph with transition states as inputs to one with transition ids.

    In this toolkit's graphs an arc reads the pdf of the state that it enters. In Kaldi's graphs it
    reads a transition of the state that it leaves, self-loops first (`reorder` is false). So arcs
    from the start read epsilon, and arcs at the end of a sentence read a transition. Words and
    scores stay on their arcs, because transitions have the cost 0.

    In a phone of a single state, an arc is a loop if it leads from a state to itself and writes no
    word.

    Args:
      graph: expanded with `transitions.states` (see `toolkit.fsa.expand.expand_phones_to_pdfs`).
      transitions: transitions of its senones.

    Returns:
      A graph with a path of T + 1 arcs for each path of T arcs; the first arc reads epsilon.
    """
    is_final = graph.labels == FINAL
    # [states] the label (transition state, from 1) read on entering each graph state; all arcs
    # into a state have the same label.
    label_of_state = np.zeros(graph.num_states, np.int64)
    label_of_state[graph.target[~is_final]] = graph.labels[~is_final]
    # Arcs from the start leave no HMM state, so they read no transition.
    from_start = graph.source == 0
    origin_states = label_of_state[graph.source[~from_start]]
    # Final arcs get a valid dummy label; their target is overwritten by _LEAVES below.
    target_labels = np.where(is_final, 1, graph.labels)[~from_start]
    target = transitions.state[target_labels - 1]
    # A self-loop stays in the phone; an arc to HMM state 0 that is not a loop enters a new phone.
    is_loop = (graph.source == graph.target) & ~graph.writes
    leaves_phone = is_final[~from_start] | ((target == 0) & ~is_loop[~from_start])
    labels = np.full(graph.num_arcs + 1, EPSILON, np.int32)
    # A transition id is determined by the transition state left and the HMM state entered.
    labels[:-1][~from_start] = transitions.ids(
        origin_states, np.where(leaves_phone, _LEAVES, target)
    )
    # One more arc: the former final state leads to the new one.
    labels[-1] = FINAL
    final_state = graph.num_states - 1
    return Fst(
        source=np.append(graph.source, final_state).astype(np.int32),
        target=np.append(graph.target, final_state + 1).astype(np.int32),
        labels=labels,
        scores=np.append(graph.scores, 0).astype(np.float32),
        splits=np.append(graph.splits, graph.splits[-1]).astype(np.int32),
        words=graph.words,
    )


Labels = Literal["transitions", "pdfs"]


def export_graph(
    lang: Path,
    arpa: Path,
    senones: Senones,
    out: Path,
    labels: Labels = "transitions",
    word_penalty: float = 0.0,
) -> dict[str, int]:
    """Compile a decoding graph for Kaldi, and write the other files that decoders need.

    The files are HCLG.fst; words.txt and phones.txt; num_pdfs, the number of columns of
    log-likelihoods; and in Kaldi's text form `tree` and `0.trans_mdl`, the transition model.
    Sentences have the same costs as in the toolkit's own graphs.

    Args:
      lang: folder of the lexicon.
      arpa: the language model.
      senones: the HMMs of the acoustic model.
      out: output folder.
      labels: input labels of the graph: transition ids of `0.trans_mdl`, or pdf + 1.
      word_penalty: score that is added per word; negative means fewer words.

    Returns:
      The numbers of states and arcs of the toolkit's own graph.
    """
    out, transitions = Path(out), Transitions(senones)
    if labels == "pdfs":
        graph = compile_graph(lang, arpa, senones)
        output_graph = graph
    else:
        graph = compile_graph(lang, arpa, transitions.states)
        output_graph = with_transition_ids(graph, transitions)
    write_atomically(out / "HCLG.fst", dump_openfst(_penalised(output_graph, word_penalty)))
    words = Lang.load(lang)
    words.words.write(out / "words.txt")
    words.phones.write(out / "phones.txt")
    write_atomically(out / "num_pdfs", f"{senones.num_pdfs}\n")
    write_atomically(out / "tree", tree_text(senones.tree, senones.topology))
    write_atomically(out / "0.trans_mdl", transitions.text())
    return {"states": graph.num_states, "arcs": graph.num_arcs}


def _penalised(graph: Fst, word_penalty: float) -> Fst:
    """Add the word penalty to each arc's score, once per word of the arc."""
    scores = graph.scores + np.float32(word_penalty) * graph.word_counts
    return replace(graph, scores=scores.astype(np.float32))


def write_lang_dir(lang: Lang, folder: Path, grammar: Fst | None = None) -> None:
    """Write a lang directory that Kaldi's validate_lang.pl accepts.

    In addition to `write_lang` it writes `topo`, the HMMs of the toolkit's GMMs; L.fst and
    L_disambig.fst, with <UNK> and with the vocabulary's probabilities if it has any; and G.fst.

    Args:
      lang: the vocabulary.
      folder: the directory to write.
      grammar: G, with the ids of `lang.words`; None: G.fst of an earlier export is removed.

    Raises:
      KaldiDictError: Kaldi refuses a word.
    """
    folder = Path(folder)
    write_lang(lang, folder)
    topology = Topology(tuple(lang.real_phones))
    write_atomically(folder / "topo", topology_text(topology))
    lexicon = make_lexicon(lang, unknown=True)
    spoken = _without_symbols(lexicon, lang.phones["#0"], lang.words["#0"])
    write_atomically(folder / "L.fst", dump_openfst(spoken, by_output=True))
    write_atomically(folder / "L_disambig.fst", dump_openfst(lexicon, by_output=True))
    if grammar is None:
        (folder / "G.fst").unlink(missing_ok=True)
    else:
        write_atomically(folder / "G.fst", dump_openfst(grammar))


def _without_symbols(lexicon: Fst, phone_disambig: int, word_disambig: int) -> Fst:
    """Remove loops of `#0` from L; turn other disambiguation symbols into epsilon.

    Args:
      lexicon: L with disambiguation symbols.
      phone_disambig: first phone id of the disambiguation symbols.
      word_disambig: word id of `#0`.
    """
    words_of_arcs = np.zeros(lexicon.num_arcs, np.int32)
    words_of_arcs[lexicon.writes] = lexicon.words[lexicon.splits[:-1][lexicon.writes]]
    spoken = lexicon.select_arcs(words_of_arcs != word_disambig)
    spoken.labels[spoken.labels >= phone_disambig] = EPSILON
    return spoken


NAME = "loglikes"


def export_likelihoods(scorer: Scorer, out: Path) -> int:
    """Write loglikes.ark and .scp: unscaled log-likelihoods [T, pdfs] of utterances.

    Args:
      scorer: the acoustic model with its features.
      out: output folder.

    Returns:
      Number of utterances.

    Raises:
      KaldiFeaturesError: an id is not valid in Kaldi's tables.
      ArchiveError: the archive cannot be written.
    """
    kaldi, out = kaldi_native_io(), Path(out)
    ids = sorted(scorer.store.ids, key=str.encode)
    for utterance in ids:
        check_key(utterance)
    part = out / f".{NAME}.scp"
    (out / f"{NAME}.scp").unlink(missing_ok=True)  # its offsets are wrong in the new archive
    with ArchiveWriter(kaldi.FloatMatrixWriter, out / f"{NAME}.ark", part) as writer:
        for utterance in Bar(ids, unit="utt", desc="likelihoods"):
            writer.write(utterance, scorer.log_likelihoods(utterance).cpu().numpy())
    write_atomically(out / f"{NAME}.scp", part.read_text("utf-8"))
    part.unlink()
    return len(ids)


def load_graph(path: Path, model: Path | None = None) -> Fst:
    """Read a Kaldi graph for this toolkit's searches; its input labels become pdf + 1.

    Args:
      path: HCLG.fst.
      model: the transition model (final.mdl, 0.trans_mdl) if the graph reads transition ids; None:
        it reads columns of the log-likelihoods, counted from 1.

    Raises:
      GraphError: it is not a graph, or reads transition ids that the model does not have.
      KaldiModelError: `model` is not a transition model.
    """
    graph = load_openfst(path)
    if model is not None:
        pdfs = KaldiTransitions.read(model).pdf
        if graph.top_label > len(pdfs):
            raise GraphError(
                f"{path} has the transition id {graph.top_label}, but {model} has only "
                f"{len(pdfs)} transition ids: give the model for which the graph was made"
            )
        # Transition ids count from 1, pdfs from 0; labels are pdf + 1. Epsilon (0) stays.
        graph.labels[graph.labels > 0] = 1 + pdfs[graph.labels[graph.labels > 0] - 1]
    return remove_epsilon(graph)


def decode_table(
    table: Path, graph: Fst, words: Path, acoustic_scale: float, beam: Beam, allow_pipes: bool
) -> Iterator[tuple[str, str | None]]:
    """Yield each utterance of a log-likelihood table with its words; None without a path.

    Args:
      table: scp file or archive of unscaled matrices [T, pdfs].
      graph: see `load_graph`.
      words: words.txt of the graph.
      acoustic_scale: factor by which the log-likelihoods are multiplied.
      beam: beam of the search.
      allow_pipes: see `toolkit.kaldi.archive.entries`.

    Raises:
      GraphError: the graph writes a word that `words` lacks.
      GraphMismatchError: the graph reads more pdfs than a matrix has columns.
    """
    symbols = SymbolTable.read(words)
    names = {symbols[word]: word for word in symbols}
    unknown = set(np.unique(graph.words).tolist()) - names.keys()
    if unknown:
        raise GraphError(
            f"{words} has no word with the id {min(unknown)}: give the words.txt of the graph"
        )
    for utterance, entry in entries(table, allow_pipes).items():
        scores = torch.from_numpy(read_matrix(entry)) * acoustic_scale
        lattice = search_lattice(scores, graph, beam)
        if lattice is None:
            yield utterance, None
        else:
            yield utterance, " ".join(names[word] for word in best_path(lattice).words)
