"""Complete lang directories for Kaldi (data/lang), with topology, lexicon and grammar."""

from pathlib import Path

import numpy as np

from toolkit.decode.graph import make_lexicon
from toolkit.fsa.fst import EPSILON, Fst
from toolkit.hmm.topology import Topology
from toolkit.kaldi.dict_lang import write_lang
from toolkit.kaldi.openfst import dump_openfst
from toolkit.kaldi.topology import topology_text
from toolkit.lang.lang import Lang
from toolkit.storage.files import write_atomically


def write_lang_dir(lang: Lang, folder: Path, grammar: Fst | None = None) -> None:
    """Write a lang directory that Kaldi's validate_lang.pl accepts.

    Besides what `write_lang` writes: `topo`, the HMMs of the toolkit's GMMs; L.fst and
    L_disambig.fst, <UNK> among their words, with the vocabulary's probabilities if it has any; and
    G.fst.

    Args:
      lang: the vocabulary.
      folder: the directory to write.
      grammar: G, with the ids of `lang.words`; None: there is none, and that of an earlier export
        is removed.

    Raises:
      KaldiDictError: a word that Kaldi refuses.
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
    """L without loops of `#0`, and with nothing in the place of other symbols.

    Args:
      lexicon: L with disambiguation symbols.
      phone_disambig: phone ids from here on are disambiguation symbols.
      word_disambig: the word id of `#0`.
    """
    written = np.zeros(lexicon.num_arcs, np.int32)
    written[lexicon.writes] = lexicon.words[lexicon.splits[:-1][lexicon.writes]]
    kept = lexicon.select_arcs(written != word_disambig)
    kept.labels[kept.labels >= phone_disambig] = EPSILON
    return kept
