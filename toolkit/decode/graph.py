"""Compilation of decoding graphs (HCLG) from senones, a lexicon and a language model."""

from pathlib import Path

from toolkit.fsa.decoding_graph import compile_decoding_graph
from toolkit.fsa.fst import Fst, dump_fst
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.lexicon import lexicon_transducer, weighted_lexicon_transducer
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang
from toolkit.lang.tables import SILENCE, UNKNOWN
from toolkit.storage.files import write_atomically


def make_decoding_graph(lang: Path, arpa: Path, senones: Senones, out: Path) -> dict[str, float]:
    """Compose H, C, L and G and write the graph to `out`.

    Args:
      lang: the folder of the lexicon; its probabilities are used if it has any.
      arpa: the language model.
      senones: the HMMs of the acoustic model.
      out: the file to write.

    Returns:
      The numbers of states and arcs.
    """
    graph = compile_graph(lang, arpa, senones)
    write_atomically(out, dump_fst(graph))
    return {"states": graph.num_states, "arcs": graph.num_arcs}


def compile_graph(lang: Path, arpa: Path, senones: Senones) -> Fst:
    """Compose H, C, L and G; see `make_decoding_graph`."""
    words = Lang.load(lang)
    return compile_decoding_graph(
        senones,
        make_lexicon(words),
        grammar_acceptor(arpa, lang / "words.txt"),
        first_phone_disambig=words.phones["#0"],
        first_word_disambig=words.words["#0"],
    )


def make_lexicon(lang: Lang, unknown: bool = False) -> Fst:
    """Return L, with the vocabulary's probabilities if it has any.

    Args:
      lang: the vocabulary.
      unknown: whether <UNK> is among its words; decoding never writes it.
    """
    entries, last_disambig = lang.disambiguated_entries()
    # Entries with disambiguation symbols, each with its word and pronunciation.
    pairs = zip(entries, lang.lexicon.pairs(), strict=True)
    entries_and_words = [(entry, pair) for entry, pair in pairs if unknown or pair[0] != UNKNOWN]
    spoken_entries = [entry for entry, _ in entries_and_words]
    symbols = {
        "silence": lang.phones[SILENCE],
        "word_disambig": lang.words["#0"],
        "phone_disambig": lang.phones["#0"],
        "silence_disambig": last_disambig,
    }
    ends = lang.probabilities
    if ends is None:
        return lexicon_transducer(spoken_entries, **symbols)
    weights = [ends.of(pair) for _, pair in entries_and_words]
    return weighted_lexicon_transducer(spoken_entries, weights, ends, **symbols)
