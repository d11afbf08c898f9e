"""Kaldi's lang directories (data/lang): export of tables and phone sets, import of words."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from toolkit.lang.kaldi.dict_dir import KaldiDictError, group_by, stress_of, strip_stress
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import POSITIONS, Lexicon, Pronunciation, without_positions
from toolkit.lang.policy import TextPolicy
from toolkit.lang.tables import SILENCE, SPOKEN_NOISE, UNKNOWN, SymbolTable
from toolkit.storage.files import write_atomically
from toolkit.storage.lines import read_lines
from toolkit.storage.reading import quoted
from toolkit.storage.words import split_words

_SILENCES = (SILENCE, SPOKEN_NOISE)
_BOUNDARIES = {"_B": "begin", "_E": "end", "_I": "internal", "_S": "singleton"}


def write_lang(lang: Lang, folder: Path) -> None:
    """Write a lang directory without its topology and transducers.

    phones.txt and words.txt are the toolkit's own, so that ids in its alignments, lattices and
    graphs mean the same there; oov; in phones/ the sets silence, nonsilence, optional_silence,
    context_indep and disambig (.txt, .int, .csl), sets, roots, extra_questions, wdisambig,
    align_lexicon, and word_boundary if phones are position-dependent. Roots are those of this
    toolkit's trees: one for each HMM state of a base phone, none of them of silence split.
    `toolkit.decode.kaldi.lang_dir` adds what is made by higher packages.

    Args:
      lang: the vocabulary.
      folder: the directory to write.

    Raises:
      KaldiDictError: a word has white space of Unicode in it, which Kaldi refuses.
    """
    folder = Path(folder)
    _check_words(lang.words)
    lang.phones.write(folder / "phones.txt")
    lang.words.write(folder / "words.txt")
    _write(folder / "oov.txt", [UNKNOWN])
    _write(folder / "oov.int", [str(lang.words[UNKNOWN])])
    speech = [phone for phone in lang.real_phones if phone not in _SILENCES]
    sets = {
        "silence": _SILENCES,
        "nonsilence": speech,
        "optional_silence": [SILENCE],
        "context_indep": _SILENCES,
        "disambig": lang.disambig_symbols,
    }
    for name, phones in sets.items():
        _write_both(lang, folder, name, [("", [phone], "") for phone in phones])
        ids = [lang.phones[phone] for phone in phones]
        _write(folder / f"phones/{name}.csl", [":".join(map(str, ids))])

    marked = lang.position_dependent
    groups = [*([phone] for phone in _SILENCES), *group_by(speech, _base(marked)).values()]
    _write_both(lang, folder, "sets", [("", phones, "") for phones in groups])
    how = {SILENCE: "not-shared not-split ", SPOKEN_NOISE: "not-shared not-split "}
    roots = [(how.get(phones[0], "not-shared split "), phones, "") for phones in groups]
    _write_both(lang, folder, "roots", roots)
    questions = [_SILENCES, *group_by(speech, _stress(marked)).values()]
    questions += group_by(speech, lambda phone: phone[-2:]).values() if marked else []
    _write_both(lang, folder, "extra_questions", [("", phones, "") for phones in questions])
    if marked:
        kinds = [("", [phone], f" {_boundary(phone)}") for phone in lang.real_phones]
        _write_both(lang, folder, "word_boundary", kinds)
    _write(folder / "phones/wdisambig.txt", ["#0"])
    _write(folder / "phones/wdisambig_phones.int", [str(lang.phones["#0"])])
    _write(folder / "phones/wdisambig_words.int", [str(lang.words["#0"])])

    entries = [("<eps>", (SILENCE,)), *lang.lexicon.pairs()]
    words = (f"{word} {word} {' '.join(phones)}" for word, phones in entries)
    _write(folder / "phones/align_lexicon.txt", words)
    _write(folder / "phones/align_lexicon.int", (_ids(lang, *entry) for entry in entries))


def _check_words(words: SymbolTable) -> None:
    for word in words:
        if any(c.isspace() for c in word):
            raise KaldiDictError(
                f"the word {quoted(word)} has white space in it (a no-break space?), which Kaldi "
                "refuses: take it out of the lexicon"
            )


def _base(marked: bool) -> Callable[[str], str]:
    """What the variants of a phone have in common."""
    return lambda phone: strip_stress(phone[:-2] if marked else phone)


def _stress(marked: bool) -> Callable[[str], str]:
    return lambda phone: stress_of(phone[:-2] if marked else phone)


def _write(path: Path, lines: Iterable[str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def _write_both(
    lang: Lang, folder: Path, name: str, rows: Sequence[tuple[str, Sequence[str], str]]
) -> None:
    """Write lines of phones, with what stands before and behind them, as symbols and as ids."""
    symbols = (f"{before}{' '.join(phones)}{behind}" for before, phones, behind in rows)
    _write(folder / f"phones/{name}.txt", symbols)
    ids = (
        f"{before}{' '.join(str(lang.phones[phone]) for phone in phones)}{behind}"
        for before, phones, behind in rows
    )
    _write(folder / f"phones/{name}.int", ids)


def _boundary(phone: str) -> str:
    """The place in its word that a phone stands for; SPN, being <UNK>, is a word by itself."""
    kinds = {SILENCE: "nonword", SPOKEN_NOISE: "singleton"}
    return kinds.get(phone) or _BOUNDARIES[phone[-2:]]


def _ids(lang: Lang, word: str, phones: Pronunciation) -> str:
    number = lang.words[word]
    return " ".join(map(str, [number, number, *(lang.phones[phone] for phone in phones)]))


def read_lang(folder: Path, policy: TextPolicy | None = None) -> tuple[Lang, tuple[str, ...]]:
    """Read the words of a lang directory from words.txt and phones/align_lexicon.txt.

    The toolkit numbers words and phones in its own order: ids of the directory mean nothing
    afterwards. Phones are position-dependent if the directory's are. The phone of
    phones/optional_silence.txt becomes SIL, all other silence phones become SPN. Words that are
    silence alone, and the out-of-vocabulary word (oov.txt), are left out.

    Args:
      folder: the directory.
      policy: how words are spelled; by default in upper case.

    Returns:
      The vocabulary, and notes on what was changed.

    Raises:
      KaldiDictError: a file is missing, or a line has a fault; names file and line.
    """
    folder, spelling = Path(folder), policy or TextPolicy()
    phones = SymbolTable.read(_existing(folder / "phones.txt"))
    silence = set(_words(folder / "phones/silence.txt"))
    optional = set(_words(folder / "phones/optional_silence.txt"))
    unknown = set(_words(folder / "oov.txt"))
    with_marks = (folder / "phones/word_boundary.txt").is_file()
    lexicon, left_out = Lexicon(), set()
    path = _existing(folder / "phones/align_lexicon.txt")
    for number, line in read_lines(path, KaldiDictError):
        if not line.strip():
            continue
        fields = split_words(line)
        if len(fields) < 3 or any(phone not in phones for phone in fields[2:]):
            raise KaldiDictError(f"{path}:{number}: not `word word phone ...`: {quoted(line)}")
        word = fields[0]
        bare = tuple(fields[2:])
        kinds = [_kind(phone, silence, optional) for phone in bare]
        if word in unknown or word == "<eps>" or set(kinds) == {SILENCE}:
            left_out |= {word} - {"<eps>"}
            continue
        plain = without_positions(bare) if with_marks else bare
        spelled = spelling.lexicon_key(word)
        lexicon.add(spelled, (kind or p for kind, p in zip(kinds, plain, strict=True)))
    if not lexicon:
        raise KaldiDictError(f"{path}: no word with a pronunciation is left")
    notes = (f"left out, as the toolkit adds its own: {' '.join(sorted(left_out))}",)
    lang = Lang.of(lexicon.with_positions() if with_marks else lexicon)
    lang = replace(lang, normaliser=spelling.id, tags=spelling.tags)
    return lang, notes if left_out else ()


def _kind(phone: str, silence: set[str], optional: set[str]) -> str:
    """Return SIL or SPN for a silence phone, an empty string for a nonsilence phone."""
    if phone in optional or (phone.endswith(POSITIONS) and phone[:-2] in optional):
        return SILENCE
    return SPOKEN_NOISE if phone in silence else ""


def _words(path: Path) -> list[str]:
    return [
        word for _, line in read_lines(_existing(path), KaldiDictError) for word in line.split()
    ]


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise KaldiDictError(f"{path}: no such file: is its folder Kaldi's lang directory?")
    return path
