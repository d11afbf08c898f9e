"""Lattices of Kaldi as those of a decoded split."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.fsa.lattice_store import (
    WeightsUsed,
    WordLatticeError,
    remove_word_lattices,
    word_lattice_path,
    write_word_lattices,
)
from toolkit.fsa.word_lattice import WordLattice
from toolkit.kaldi.compact_lattices import read_compact_lattices
from toolkit.lang.tables import SymbolTable


def import_lattices(
    archives: Sequence[Path], words: Path, decoding: WeightsUsed, out: Path
) -> tuple[int, list[str]]:
    """Write the word lattices of Kaldi's archives.

    Args:
      archives: of compact lattices, such as `lat.1.gz`.
      words: Kaldi's words.txt.
      decoding: scale and penalty at which the best path is what was recognised.
      out: the folder to write; `toolkit.kaldi.lattice_export` and the combination read it.

    Returns:
      The number of lattices, and the utterances whose lattice has no path.

    Raises:
      WordLatticeError: a file that holds no lattices, an utterance twice, a word without a symbol.
    """
    table = SymbolTable.read(words)
    symbols = {table[word]: word for word in table}
    seen: set[str] = set()
    failed: list[str] = []
    for number, archive in enumerate(archives):
        found: dict[str, WordLattice | None] = {}
        for utterance, lattice in read_compact_lattices(archive, decoding.frame_shift):
            if utterance in seen:
                raise WordLatticeError(f"{archive}: {utterance!r} occurs twice: remove one")
            seen.add(utterance)
            found[utterance] = lattice
            unknown = set() if lattice is None else {*lattice.words.tolist()} - symbols.keys()
            if unknown:
                raise WordLatticeError(
                    f"{archive}: {utterance}: {words} has no word {min(unknown)}: give the "
                    "words.txt of the graph in which the lattices were found"
                )
        failed += [utterance for utterance, lattice in found.items() if lattice is None]
        write_word_lattices(word_lattice_path(out, number), found, symbols.__getitem__, decoding)
    remove_word_lattices(out, len(archives))  # of an earlier import of more archives
    return len(seen) - len(failed), failed
