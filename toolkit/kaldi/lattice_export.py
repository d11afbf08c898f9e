"""Word lattices of a decoded split for other programs, and their oracle."""

from collections.abc import Mapping
from pathlib import Path

from toolkit.decode.combine import LATTICES
from toolkit.fsa.lattice_store import WordLatticeError, WordLatticeStore, WordTable
from toolkit.fsa.minimum_bayes_risk import oracle_words
from toolkit.kaldi.lattice_text import kaldi_text, openfst_text, slf
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.paths import first_clash, path_below, safe_name

SUFFIXES = {"slf": ".lat", "openfst": ".fst.txt"}
"""Of the files of formats that have a file per utterance."""


def open_lattices(folder: Path, words: WordTable) -> WordLatticeStore:
    """Read the word lattices of a decoded split, of its folder or that of the lattices."""
    inner = folder / LATTICES
    return WordLatticeStore(inner if inner.is_dir() else folder, words)


def export_lattices(folder: Path, form: str, out: Path) -> int:
    """Write the word lattices of a decoded split as text; return how many they are.

    Args:
      folder: of the split.
      form: "kaldi", "slf" or "openfst".
      out: the folder to write.

    Raises:
      WordLatticeError: no lattices there, or two utterances would have one file.
    """
    words = WordTable()
    store = open_lattices(folder, words)
    symbol, ids = words.symbols.__getitem__, list(store)
    names = [f"{safe_name(name)}{SUFFIXES.get(form, '')}" for name in ids]
    clash = first_clash(names)
    if clash and form != "kaldi":
        raise WordLatticeError(f"{ids[clash[0]]} and {ids[clash[1]]} would be at one place")
    out.mkdir(parents=True, exist_ok=True)
    if form == "kaldi":
        with open_atomically(out / "lat.txt") as file:
            for utterance in ids:
                lattice = store[utterance]
                file.write(kaldi_text(utterance, lattice, store.decodings[utterance]))
    for utterance, name in zip(ids, names, strict=True) if form != "kaldi" else ():
        lattice, decoding = store[utterance], store.decodings[utterance]
        path = path_below(out, name)
        if form == "slf":
            text = slf(utterance, lattice, decoding, symbol)
        else:
            text = openfst_text(lattice, decoding, symbol)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    if form != "slf":
        lines = [f"{word} {number}\n" for number, word in enumerate(words.symbols)]
        write_atomically(out / "words.txt", "".join(lines))
    return len(ids)


def oracle_texts(folder: Path, references: Mapping[str, str]) -> tuple[dict[str, str], int, float]:
    """Return the texts of the paths nearest to the references, the lattices' arcs and seconds."""
    words = WordTable()
    store = open_lattices(folder, words)
    texts, arcs, seconds = {}, 0, 0.0
    for name in store:
        if name in references:
            lattice = store[name]
            found = oracle_words(lattice, words.ids(references[name].split()))
            texts[name] = " ".join(words.symbols[word] for word in found)
            arcs, seconds = arcs + lattice.num_arcs, seconds + lattice.times[-1]
    return texts, arcs, seconds
