"""The aligner bundle: everything that forced alignment needs, in one folder."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.features.frontend import FrontendConfig
from toolkit.lang.g2p import G2p, spellable
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import Lexicon, Pronunciation, without_positions
from toolkit.lang.tables import word_table
from toolkit.storage.files import write_atomically

SETTINGS = "aligner.json"
INDEPENDENT = "independent"
LANG = "lang"
G2P = "g2p.npz"
SYSTEM_FILES = ("gmm.safetensors", "topology.json", "tree.json", "features.json")
PROJECTION = "projection.safetensors"


class AlignerError(ToolkitError):
    """A folder that is not a complete aligner bundle."""


@dataclass(frozen=True)
class AlignerSettings:
    """The content of `aligner.json`."""

    frontend: FrontendConfig
    """The front end of the systems' cepstra."""


def write_aligner_bundle(
    system: Path,
    lang: Path,
    frontend: FrontendConfig,
    out: Path,
    lexicon: Lexicon | None = None,
    independent: Path | None = None,
) -> None:
    """Copy what alignment needs into `out`, so that the folder can be moved anywhere.

    Args:
      system: the folder of a GMM system.
      lang: the folder of the lexicon that it was trained with; its G2P model if it has one.
        Otherwise one is trained here.
      frontend: of the system's cepstra.
      out: the bundle; `final/aligner` of a run.
      lexicon: more words to include, such as a whole dictionary; pronunciations with phones that
        the system lacks are left out, and words in `lang` keep the ones they have.
      independent: for a system trained with fMLLR the speaker-independent one, whose alignments
        the transforms of new speakers are estimated from.
    """
    _copy_system(system, out)
    if independent is not None:
        _copy_system(independent, out / INDEPENDENT)
    known = Lang.load(lang)
    bundled = extend_lang(known, _usable(known, lexicon or Lexicon()))
    bundled.save(out / LANG)
    if (lang / G2P).exists():
        shutil.copyfile(lang / G2P, out / G2P)
    elif any(map(spellable, bundled.vocabulary)):
        plain = {w: [without_positions(p) for p in bundled.lexicon[w]] for w in bundled.vocabulary}
        G2p.train(Lexicon(plain)).save(out / G2P)
    settings = AlignerSettings(frontend)
    write_atomically(out / SETTINGS, json.dumps(asdict(settings), indent=1) + "\n")


def _copy_system(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in SYSTEM_FILES:
        shutil.copyfile(source / name, target / name)
    if (source / PROJECTION).exists():
        shutil.copyfile(source / PROJECTION, target / PROJECTION)


def _usable(lang: Lang, lexicon: Lexicon) -> Lexicon:
    """The words of a lexicon that `lang` lacks, with pronunciations in its phones."""
    marked = lexicon.with_positions() if lang.position_dependent else lexicon
    phones = set(lang.real_phones)
    usable = Lexicon()
    for word in sorted(marked.keys() - lang.lexicon.keys()):
        found = [p for p in marked[word] if phones.issuperset(p)]
        if found:
            usable[word] = found
    return usable


def find_bundle(model: Path) -> Path:
    """The aligner bundle that a folder is or contains.

    Raises:
      AlignerError: the folder neither is nor contains a bundle.
    """
    for folder in (model, model / "aligner", model / "final" / "aligner"):
        if (folder / SETTINGS).is_file():
            return folder
    raise AlignerError(
        f"{model} has no aligner: neither it nor {model / 'aligner'} holds {SETTINGS}. A recipe's"
        " last stage makes one in exp/<profile>/final/aligner"
    )


def extend_lang(lang: Lang, more: Mapping[str, Sequence[Pronunciation]]) -> Lang:
    """`lang` with more words; the phones and their ids stay."""
    lexicon = Lexicon({word: list(found) for word, found in lang.lexicon.items()})
    for word, pronunciations in more.items():
        lexicon[word] = list(pronunciations)
    return replace(lang, lexicon=lexicon, words=word_table(lexicon))


@dataclass(frozen=True)
class GuessedPronunciations:
    """Pronunciations of words that the lexicon of a bundle lacks."""

    pronunciations: tuple[tuple[str, Pronunciation], ...]
    """The words with a guessed pronunciation, sorted."""
    unknown: frozenset[str]
    """The words without one, which are aligned as spoken noise."""


def guess_missing(bundle: Path, words: Iterable[str]) -> GuessedPronunciations:
    """Guess how to pronounce the words that the lexicon of `bundle` lacks."""
    lang = Lang.load(bundle / LANG)
    missing = sorted(set(words) - lang.lexicon.keys())
    if not missing or not (bundle / G2P).exists():
        return GuessedPronunciations((), frozenset(missing))
    guesses = G2p.load(bundle / G2P).guess(missing)
    found = _usable(lang, Lexicon({word: [guess.phones] for word, guess in guesses.items()}))
    pairs = tuple((word, found[word][0]) for word in sorted(found))
    return GuessedPronunciations(pairs, frozenset(missing) - found.keys())
