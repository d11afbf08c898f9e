"""Compilation of decoding graphs (HCLG) from senones, a lexicon and a language model."""

from pathlib import Path

from toolkit.fsa.decoding_graph import compile_decoding_graph
from toolkit.fsa.files import dump_fst
from toolkit.fsa.grammar import grammar_acceptor
from toolkit.fsa.lexicon import lexicon_transducer
from toolkit.hmm.senones import Senones
from toolkit.lang.lang import Lang
from toolkit.lang.tables import UNKNOWN
from toolkit.storage.files import write_atomically


def make_decoding_graph(
    lang: Path, arpa: Path, senones: Senones, out: Path, max_order: int | None = None
) -> dict[str, float]:
    """Compose H, C, L and G and write the graph to `out`.

    Args:
      lang: the folder of the lexicon.
      arpa: the language model.
      senones: the HMMs of the acoustic model.
      out: the file to write.
      max_order: read only n-grams up to this order.

    Returns:
      The numbers of states and arcs.
    """
    lexicon = Lang.load(lang)
    entries, last_disambig = lexicon.disambiguated_entries()
    unknown = lexicon.words[UNKNOWN]
    entries = [entry for entry in entries if entry[0] != unknown]  # never output <UNK>
    graph = compile_decoding_graph(
        senones,
        lexicon_transducer(
            entries,
            silence=lexicon.phones["SIL"],
            word_disambig=lexicon.words["#0"],
            phone_disambig=lexicon.phones["#0"],
            silence_disambig=last_disambig,
        ),
        grammar_acceptor(arpa, lang / "words.txt", max_order),
        first_phone_disambig=lexicon.phones["#0"],
        first_word_disambig=lexicon.words["#0"],
    )
    write_atomically(out, dump_fst(graph))
    return {"states": graph.num_states, "arcs": graph.num_arcs}
