"""Import of Kaldi's trees with their HMMs."""

from pathlib import Path

from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology
from toolkit.kaldi.model import KaldiModelError, KaldiTransitions
from toolkit.kaldi.read_tree import read_tree
from toolkit.lang.tables import SymbolTable


def read_senones(tree: Path, model: Path, phones: Path) -> Senones:
    """Read the tied states of a model of Kaldi; pdfs keep their numbers.

    Args:
      tree: its `tree`, in binary or text form.
      model: its transition model (final.mdl, 0.trans_mdl), for the numbers of HMM states.
      phones: phones.txt, whose silence phones are SIL and SPN, with or without positions.

    Chain models, whose phones have a state with a pdf for entering and one for its loop, become
    phones of onset and rest.

    Returns:
      Senones over the phones of the model, in the order of their ids. Transitions within a phone
      are those of this toolkit.

    Raises:
      KaldiModelError: files that cannot be read, or states that this toolkit's HMMs do not have.
    """
    transitions = KaldiTransitions.read(model)
    sizes = transitions.num_states
    table = SymbolTable.read(phones)
    symbols = {table[phone]: phone for phone in table}
    lacking = sorted(sizes.keys() - symbols.keys())
    if lacking:
        raise KaldiModelError(f"{phones}: has no phone {lacking[0]}, which {model} has")
    known = tuple(symbols[number] for number in sorted(sizes))
    silence = tuple(p for p in known if p.split("_")[0] in ("SIL", "SPN"))
    if "SIL" not in silence:
        raise KaldiModelError(f"{phones}: has no phone SIL: rename the silence phone")
    silence = ("SIL", *(phone for phone in silence if phone != "SIL"))
    of_silence = {sizes[table[phone]] for phone in silence}
    of_speech = {sizes[table[phone]] for phone in known if phone not in silence}
    if len(of_silence) != 1 or len(of_speech) != 1:
        raise KaldiModelError(
            f"{model}: phones of {sorted(of_silence | of_speech)} states: all silence phones must "
            "have as many states as each other, and all other phones too"
        )
    topology = Topology(known, silence, of_speech.pop(), of_silence.pop(), transitions.chain)
    ids = {number: place for place, number in enumerate(sorted(sizes), 1)}
    return Senones(topology, read_tree(tree, topology, ids))
