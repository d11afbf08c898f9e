"""Kaldi's lang directories (data/lang): export of tables and phone sets, import of words."""

from collections.abc import Iterable
from pathlib import Path

from toolkit.lang.kaldi.dict_dir import KaldiDictError
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import POSITIONS, Lexicon, Pronunciation, without_positions
from toolkit.lang.tables import SILENCE, SPOKEN_NOISE, UNKNOWN, SymbolTable
from toolkit.lang.text import read_lines
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import quoted

_BOUNDARIES = {"_B": "begin", "_E": "end", "_I": "internal", "_S": "singleton"}


def write_lang(lang: Lang, folder: Path) -> None:
    """Write the files of a lang directory that Kaldi's programs read, except the transducers.

    phones.txt and words.txt are the toolkit's own, so that ids in its alignments and lattices mean
    the same there; oov.txt, and in phones/ the sets silence, nonsilence, optional_silence and
    disambig (.txt, .int, .csl), word_boundary if phones are position-dependent, and
    align_lexicon. L.fst and L_disambig.fst are not written: prepare_lang.sh makes them from
    `write_dict`, with ids of its own.

    Args:
      lang: the vocabulary.
      folder: the directory to write.
    """
    folder = Path(folder)
    lang.phones.write(folder / "phones.txt")
    lang.words.write(folder / "words.txt")
    write_atomically(folder / "oov.txt", f"{UNKNOWN}\n")
    write_atomically(folder / "oov.int", f"{lang.words[UNKNOWN]}\n")
    silence = [SILENCE, SPOKEN_NOISE]
    sets = {
        "silence": silence,
        "nonsilence": [phone for phone in lang.real_phones if phone not in silence],
        "optional_silence": [SILENCE],
        "context_indep": silence,
        "disambig": lang.disambig_symbols,
    }
    for name, phones in sets.items():
        ids = [lang.phones[phone] for phone in phones]
        _write(folder / "phones" / f"{name}.txt", phones)
        _write(folder / "phones" / f"{name}.int", map(str, ids))
        _write(folder / "phones" / f"{name}.csl", [":".join(map(str, ids))])
    if lang.position_dependent:
        kinds = [(phone, _boundary(phone)) for phone in lang.real_phones]
        _write(folder / "phones/word_boundary.txt", (f"{p} {kind}" for p, kind in kinds))
        lines = (f"{lang.phones[p]} {kind}" for p, kind in kinds)
        _write(folder / "phones/word_boundary.int", lines)
    entries = [("<eps>", (SILENCE,)), *lang.lexicon.pairs()]
    words = (f"{word} {word} {' '.join(phones)}" for word, phones in entries)
    _write(folder / "phones/align_lexicon.txt", words)
    _write(folder / "phones/align_lexicon.int", (_ids(lang, *entry) for entry in entries))


def _write(path: Path, lines: Iterable[str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def _boundary(phone: str) -> str:
    return "nonword" if phone in (SILENCE, SPOKEN_NOISE) else _BOUNDARIES[phone[-2:]]


def _ids(lang: Lang, word: str, phones: Pronunciation) -> str:
    number = lang.words[word]
    return " ".join(map(str, [number, number, *(lang.phones[phone] for phone in phones)]))


def read_lang(folder: Path) -> tuple[Lang, tuple[str, ...]]:
    """Read the words of a lang directory from words.txt and phones/align_lexicon.txt.

    The toolkit numbers words and phones in its own order: ids of the directory mean nothing
    afterwards. Phones are position-dependent if the directory's are. The phone of
    phones/optional_silence.txt becomes SIL, all other silence phones become SPN. Words that are
    silence alone, and the out-of-vocabulary word (oov.txt), are left out.

    Returns:
      The vocabulary, and notes on what was changed.

    Raises:
      KaldiDictError: a file is missing, or a line has a fault; names file and line.
    """
    folder = Path(folder)
    phones = SymbolTable.read(_existing(folder / "phones.txt"))
    silence = set(_words(folder / "phones/silence.txt"))
    optional = set(_words(folder / "phones/optional_silence.txt"))
    unknown = set(_words(folder / "oov.txt"))
    with_marks = (folder / "phones/word_boundary.txt").is_file()
    lexicon, left_out = Lexicon(), set()
    path = _existing(folder / "phones/align_lexicon.txt")
    for number, line in read_lines(path):
        if not line.strip():
            continue
        fields = line.split()
        if len(fields) < 3 or any(phone not in phones for phone in fields[2:]):
            raise KaldiDictError(f"{path}:{number}: not `word word phone ...`: {quoted(line)}")
        word = fields[0]
        bare = tuple(fields[2:])
        kinds = [_kind(phone, silence, optional) for phone in bare]
        if word in unknown or word == "<eps>" or set(kinds) == {SILENCE}:
            left_out.add(word)
            continue
        plain = without_positions(bare) if with_marks else bare
        lexicon.add(word.upper(), (kind or p for kind, p in zip(kinds, plain, strict=True)))
    if not lexicon:
        raise KaldiDictError(f"{path}: no word with a pronunciation is left")
    notes = (f"left out, as the toolkit adds its own: {' '.join(sorted(left_out - {'<eps>'}))}",)
    return Lang.of(lexicon.with_positions() if with_marks else lexicon), notes if left_out else ()


def _kind(phone: str, silence: set[str], optional: set[str]) -> str:
    """Return SIL or SPN for a silence phone, an empty string for a nonsilence phone."""
    if phone in optional or (phone.endswith(POSITIONS) and phone[:-2] in optional):
        return SILENCE
    return SPOKEN_NOISE if phone in silence else ""


def _words(path: Path) -> list[str]:
    return [word for _, line in read_lines(_existing(path)) for word in line.split()]


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise KaldiDictError(f"{path}: no such file: is its folder Kaldi's lang directory?")
    return path
