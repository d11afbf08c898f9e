"""Reads and writes Kaldi's dict directories (data/local/dict) and lang directories."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.lang.dictionary import EXTRA_QUESTIONS, Dictionary, read_dictionary
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import (
    POSITIONS,
    Lexicon,
    Pronunciation,
    with_positions,
    without_positions,
)
from toolkit.lang.probabilities import (
    Entry,
    EntryProbabilities,
    LexiconProbabilities,
    remove_probabilities,
)
from toolkit.lang.tables import (
    END,
    EPSILON,
    SILENCE,
    SPOKEN_NOISE,
    START,
    UNKNOWN,
    SymbolTable,
)
from toolkit.lang.text_policy import TextPolicy
from toolkit.storage.files import write_atomically
from toolkit.storage.lines import TextLines, read_lines, split_words
from toolkit.storage.reading import quoted

SILENCE_WORD = "!SIL"
WEIGHTED = "lexiconp.txt"
_OOV_WORDS = (UNKNOWN, "<unk>", "<oov>", "<OOV>", "<SPOKEN_NOISE>", "<spoken_noise>", "[UNK]")
_STRESS = re.compile(r"(.+?)([0-9])")
_RESERVED = frozenset({EPSILON, START, END, "#0"})
_SILENCES = (SILENCE, SPOKEN_NOISE)
_BOUNDARIES = {"_B": "begin", "_E": "end", "_I": "internal", "_S": "singleton"}


class KaldiDictError(ToolkitError):
    """Raised for an incomplete dict directory, or a lexicon that Kaldi cannot represent."""


def write_dict(lang: Lang, folder: Path) -> int:
    """Write the dict directory that Kaldi's prepare_lang.sh reads.

    The files are lexicon.txt; lexiconp.txt, with probabilities of 1 if the vocabulary has none;
    lexiconp_silprob.txt and silprob.txt, if the vocabulary has probabilities; silence_phones.txt;
    optional_silence.txt; nonsilence_phones.txt (the stresses of a phone in one line, so that they
    share tree roots); and extra_questions.txt (silence, and the phones of each stress). Position
    markers (_B, _I, _E, _S) are removed, because prepare_lang.sh adds them. The out-of-vocabulary
    word is `<UNK>`.

    Args:
      lang: the vocabulary.
      folder: the directory to write.

    Returns:
      Number of pronunciations, including those of silence and <UNK>.

    Raises:
      KaldiDictError: the vocabulary has a word or phone that Kaldi reserves.
    """

    def unmarked(entry: Entry) -> Entry:
        """Remove the position suffixes from an entry's phones."""
        word, phones = entry
        return word, without_positions(phones) if lang.position_dependent else phones

    # 1. Pronunciations without positions, those of silence included, with their probabilities.
    entries = dict.fromkeys(map(unmarked, lang.lexicon.pairs()))
    entries[SILENCE_WORD, (SILENCE,)] = None
    pairs = sorted(entries, key=lambda pair: pair[0].encode())
    shares = dict.fromkeys(pairs, 1.0)
    if lang.probabilities is not None:
        probabilities = {entry: lang.probabilities.of(entry) for entry in lang.lexicon.pairs()}
        probabilities[SILENCE_WORD, (SILENCE,)] = EntryProbabilities(
            1.0, lang.probabilities.overall
        )
        unmarked_probabilities = replace(lang.probabilities, entries=probabilities).renamed(
            unmarked
        )
        shares = {entry: unmarked_probabilities.of(entry).pronunciation for entry in pairs}
        unmarked_probabilities.save(folder)
    else:
        remove_probabilities(folder)
    # 2. The sets of phones, and the files.
    speech = sorted({p for _, phones in pairs for p in phones} - {SILENCE, SPOKEN_NOISE})
    _check(pairs, speech)
    silence = (SILENCE, SPOKEN_NOISE)
    files = {
        "lexicon.txt": (f"{word} {' '.join(phones)}" for word, phones in pairs),
        "lexiconp.txt": (f"{w} {share!r} {' '.join(p)}" for (w, p), share in shares.items()),
        "silence_phones.txt": silence,
        "optional_silence.txt": (SILENCE,),
        "nonsilence_phones.txt": map(" ".join, group_by(speech, strip_stress).values()),
        "extra_questions.txt": map(" ".join, [silence, *group_by(speech, stress_of).values()]),
    }
    for name, lines in files.items():
        write_atomically(Path(folder) / name, "".join(f"{line}\n" for line in lines))
    return len(pairs)


def _check(pairs: Iterable[tuple[str, Pronunciation]], phones: Iterable[str]) -> None:
    """Raise a KaldiDictError for words or phones that Kaldi reserves."""
    for word, _ in pairs:
        if word in _RESERVED:
            raise KaldiDictError(f"Kaldi reserves the word {word!r}: remove it from the lexicon")
    for phone in phones:
        if phone.startswith("#") or phone.endswith(POSITIONS):
            raise KaldiDictError(
                f"Kaldi would read the phone {phone!r} as a disambiguation symbol or a "
                "position-dependent phone: rename it in the lexicon"
            )


def strip_stress(phone: str) -> str:
    """Remove the stress digit of a phone: AH0 becomes AH."""
    match = _STRESS.fullmatch(phone)
    return match[1] if match else phone


def stress_of(phone: str) -> str:
    """Return the stress digit of a phone: 0 for AH0, "" for T."""
    match = _STRESS.fullmatch(phone)
    return match[2] if match else ""


def group_by(phones: Iterable[str], kind: Callable[[str], str]) -> dict[str, list[str]]:
    """Group phones by `kind` of the phone; the kinds are in sorted order."""
    groups: dict[str, list[str]] = {}
    for phone in phones:
        groups.setdefault(kind(phone), []).append(phone)
    return dict(sorted(groups.items()))


@dataclass(frozen=True)
class KaldiDict:
    """The lexicon of a dict directory, and notes on what a `Lang` cannot represent."""

    lexicon: Lexicon
    """Words as a text policy spells them; SIL and SPN are the silence phones."""
    renamed: Mapping[str, str]
    """SIL or SPN, by Kaldi's name, for silence phones that are called something else in Kaldi."""
    notes: tuple[str, ...]
    """Remarks on what was changed."""
    probabilities: LexiconProbabilities | None = None
    """Probabilities from lexiconp_silprob.txt and silprob.txt, or from lexiconp.txt."""
    policy: TextPolicy = field(default_factory=TextPolicy)
    """How its words are spelled."""

    def _lang(self, lexicon: Lexicon) -> Lang:
        """Make the vocabulary of a lexicon with this text policy."""
        return replace(Lang.of(lexicon), normaliser=self.policy.id, tags=self.policy.tags)

    def lang(self, position_dependent: bool) -> Lang:
        """Make the vocabulary of the dict directory.

        Args:
          position_dependent: make phones position-dependent (see `with_positions`).
        """
        if not position_dependent:
            return replace(self._lang(self.lexicon), probabilities=self.probabilities)
        probabilities = self.probabilities
        if probabilities is not None:
            probabilities = probabilities.renamed(
                lambda entry: (entry[0], with_positions(entry[1]))
            )
        return replace(self._lang(self.lexicon.with_positions()), probabilities=probabilities)


def read_dict(folder: Path, policy: TextPolicy | None = None) -> KaldiDict:
    """Read the dict directory of a Kaldi recipe.

    The toolkit has two silence phones: the phone of optional_silence.txt becomes SIL, and all other
    silence phones become SPN. Words that are only silence are left out, because the graphs put
    silence between words. Out-of-vocabulary words such as `<unk>` are left out too, because `<UNK>`
    is added. Probabilities are read from lexiconp_silprob.txt and silprob.txt. Without these files,
    they are read from lexiconp.txt unless all are 1 there, and silence gets the probability 0.5, as
    in Kaldi.

    Args:
      folder: the directory.
      policy: how words are spelled; by default in upper case.

    Raises:
      KaldiDictError: a file is missing, or a line has a fault; the message names file and line.
    """
    # 1. The sets of phones, and the names of silence phones in this toolkit.
    folder, spelling = Path(folder), policy or TextPolicy()
    silence = [p for _, line in _lines(folder / "silence_phones.txt") for p in line]
    optional = [p for _, line in _lines(folder / "optional_silence.txt") for p in line]
    speech = {p for _, line in _lines(folder / "nonsilence_phones.txt") for p in line}
    if len(optional) != 1 or optional[0] not in silence:
        raise KaldiDictError(
            f"{folder / 'optional_silence.txt'}: expected one of the phones of silence_phones.txt"
        )
    renamed = {p: SILENCE if p == optional[0] else SPOKEN_NOISE for p in silence}
    clash = sorted(speech & {SILENCE, SPOKEN_NOISE, *renamed})
    if clash:
        raise KaldiDictError(
            f"{folder}: the phone {clash[0]!r} is both a silence and a nonsilence phone"
        )

    def to_toolkit_entry(entry: Entry) -> Entry | None:
        """Convert an entry to this toolkit's phones and spelling; None to leave it out."""
        word, phones = entry
        mapped = tuple(renamed.get(p, p) for p in phones)
        if word in _OOV_WORDS or word in _RESERVED or set(mapped) == {SILENCE}:
            return None
        return spelling.lexicon_key(word), mapped

    # 2. The words.
    lexicon, left_out = Lexicon(), Counter()
    for where, word, phones in _pronunciations(folder):
        unknown = [p for p in phones if p not in speech and p not in renamed]
        if unknown:
            raise KaldiDictError(
                f"{where}: the phone {quoted(unknown[0])} is not in any list of phones: add it to "
                "silence_phones.txt or nonsilence_phones.txt"
            )
        entry = to_toolkit_entry((word, phones))
        if entry is not None:
            lexicon.add(*entry)
        elif word not in _RESERVED:
            left_out[word] += 1
    if not lexicon:
        raise KaldiDictError(
            f"{folder}: the lexicon contains no word except those that the toolkit adds itself"
        )
    notes = []
    if left_out:
        words = " ".join(sorted(left_out))
        notes.append(f"words left out, because the toolkit adds its own: {words}")
    renamed_phones = {p: name for p, name in renamed.items() if p != name}
    if renamed_phones:
        notes.append(
            "phones renamed: " + ", ".join(f"{a} to {b}" for a, b in renamed_phones.items())
        )
    probabilities = LexiconProbabilities.load(folder) or _even_silence(folder)
    return KaldiDict(
        lexicon,
        renamed_phones,
        tuple(notes),
        probabilities and probabilities.renamed(to_toolkit_entry),
        spelling,
    )


def _even_silence(folder: Path) -> LexiconProbabilities | None:
    """Return lexiconp.txt's probabilities with neutral silence; None if no file or all are 1."""
    if not (folder / WEIGHTED).is_file():
        return None
    entries = {
        (word, phones): EntryProbabilities(share, 0.5)
        for _, word, share, phones in _weighted(folder / WEIGHTED)
    }
    if all(p.pronunciation == 1 for p in entries.values()):
        return None
    return LexiconProbabilities(entries, 0.5, 1.0, 1.0, 0.5)


def _pronunciations(folder: Path) -> Iterator[tuple[str, str, Pronunciation]]:
    """Yield (file and line, word, phones) from lexicon.txt or else lexiconp.txt."""
    path = folder / "lexicon.txt"
    if not path.is_file():
        yield from (
            (where, word, phones) for where, word, _, phones in _weighted(folder / WEIGHTED)
        )
        return
    for where, (word, *phones) in _lines(path):
        yield where, word, _some(where, word, phones)


def _weighted(path: Path) -> Iterator[tuple[str, str, float, Pronunciation]]:
    """Yield (file and line, word, probability, phones) from lexiconp.txt."""
    for where, (word, *fields) in _lines(path):
        share = _probability(where, fields[0] if fields else "")
        yield where, word, share, _some(where, word, fields[1:])


def _some(where: str, word: str, phones: Sequence[str]) -> Pronunciation:
    """Return a word's phones; raise an error if there are none."""
    if not phones:
        raise KaldiDictError(f"{where}: the word {quoted(word)} has no phones")
    return tuple(phones)


def _probability(where: str, text: str) -> float:
    """Parse a probability; raise an error if it is invalid."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise KaldiDictError(f"{where}: {quoted(text)} is not a probability (above 0, up to 1)")
    return value


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (file and line, fields) of each non-blank line."""
    if not path.is_file():
        raise KaldiDictError(f"{path.parent} is not a dictionary directory: it has no {path.name}")
    lines = TextLines(KaldiDictError)
    for number, line in lines.read(path):
        if line.strip():
            yield f"{path}:{number}", split_words(line)
    lines.finish()


def write_lang(lang: Lang, folder: Path) -> None:
    """Write a lang directory without topology and transducers.

    phones.txt and words.txt are those of the toolkit, so that ids in its alignments, lattices and
    graphs mean the same. Other files are oov and, in phones/, the sets silence, nonsilence,
    optional_silence, context_indep and disambig (.txt, .int, .csl), sets, roots, extra_questions,
    wdisambig, align_lexicon, and word_boundary if phones are position-dependent. Roots are those of
    this toolkit's trees: one for each HMM state of a base phone; those of silence are not split.
    `toolkit.kaldi.graph.write_lang_dir` adds topology and transducers.

    Args:
      lang: the vocabulary.
      folder: the directory to write.

    Raises:
      KaldiDictError: a word contains Unicode white space, which Kaldi refuses.
    """
    # 1. Symbol tables, and sets of phones.
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

    # 2. For trees: phones that share roots, by base phone; questions by silence, stress, position.
    has_positions = lang.position_dependent
    groups = [*([phone] for phone in _SILENCES), *group_by(speech, _base(has_positions)).values()]
    _write_both(lang, folder, "sets", [("", phones, "") for phones in groups])
    sharing = {SILENCE: "not-shared not-split ", SPOKEN_NOISE: "not-shared not-split "}
    roots = [(sharing.get(phones[0], "not-shared split "), phones, "") for phones in groups]
    _write_both(lang, folder, "roots", roots)
    questions = [_SILENCES, *group_by(speech, _stress(has_positions)).values()]
    questions += group_by(speech, lambda phone: phone[-2:]).values() if has_positions else []
    _write_both(lang, folder, "extra_questions", [("", phones, "") for phones in questions])
    if has_positions:
        kinds = [("", [phone], f" {_boundary(phone)}") for phone in lang.real_phones]
        _write_both(lang, folder, "word_boundary", kinds)
    _write(folder / "phones/wdisambig.txt", ["#0"])
    _write(folder / "phones/wdisambig_phones.int", [str(lang.phones["#0"])])
    _write(folder / "phones/wdisambig_words.int", [str(lang.words["#0"])])

    # 3. The lexicon for word alignment.
    entries = [("<eps>", (SILENCE,)), *lang.lexicon.pairs()]
    words = (f"{word} {word} {' '.join(phones)}" for word, phones in entries)
    _write(folder / "phones/align_lexicon.txt", words)
    _write(folder / "phones/align_lexicon.int", (_ids(lang, *entry) for entry in entries))


def _check_words(words: SymbolTable) -> None:
    """Raise a KaldiDictError for a word with Unicode white space."""
    for word in words:
        if any(c.isspace() for c in word):
            raise KaldiDictError(
                f"the word {quoted(word)} contains white space (a no-break space?), which Kaldi "
                "refuses: remove it from the lexicon"
            )


def _base(has_positions: bool) -> Callable[[str], str]:
    """Return a function that strips position and stress from a phone."""
    return lambda phone: strip_stress(phone[:-2] if has_positions else phone)


def _stress(has_positions: bool) -> Callable[[str], str]:
    """Return a function from a phone to its stress digit."""
    return lambda phone: stress_of(phone[:-2] if has_positions else phone)


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file."""
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def _write_both(
    lang: Lang, folder: Path, name: str, rows: Sequence[tuple[str, Sequence[str], str]]
) -> None:
    """Write rows (prefix, phones, suffix) with symbols (.txt) and with ids (.int)."""
    symbols = (f"{prefix}{' '.join(phones)}{suffix}" for prefix, phones, suffix in rows)
    _write(folder / f"phones/{name}.txt", symbols)
    ids = (
        f"{prefix}{' '.join(str(lang.phones[phone]) for phone in phones)}{suffix}"
        for prefix, phones, suffix in rows
    )
    _write(folder / f"phones/{name}.int", ids)


def _boundary(phone: str) -> str:
    """Return a phone's type in word_boundary.txt; SPN, the word <UNK>, is a singleton."""
    kinds = {SILENCE: "nonword", SPOKEN_NOISE: "singleton"}
    return kinds.get(phone) or _BOUNDARIES[phone[-2:]]


def _ids(lang: Lang, word: str, phones: Pronunciation) -> str:
    """Return a word's line in align_lexicon.int."""
    number = lang.words[word]
    return " ".join(map(str, [number, number, *(lang.phones[phone] for phone in phones)]))


def read_lang(folder: Path, policy: TextPolicy | None = None) -> tuple[Lang, tuple[str, ...]]:
    """Read the vocabulary of a lang directory: words.txt and phones/align_lexicon.txt.

    The toolkit numbers words and phones in its own order, so ids of the directory are not valid for
    the result. Phones are position-dependent if the directory's are. The phone of
    phones/optional_silence.txt becomes SIL, and all other silence phones become SPN. Words that are
    only silence, and the out-of-vocabulary word (oov.txt), are left out.

    Args:
      folder: the directory.
      policy: how words are spelled; by default in upper case.

    Returns:
      The vocabulary, and notes on what was changed.

    Raises:
      KaldiDictError: a file is missing, or a line has a fault; the message names file and line.
    """
    folder, spelling = Path(folder), policy or TextPolicy()
    phones = SymbolTable.read(_required(folder / "phones.txt"))
    silence = set(_words(folder / "phones/silence.txt"))
    optional = set(_words(folder / "phones/optional_silence.txt"))
    unknown = set(_words(folder / "oov.txt"))
    with_marks = (folder / "phones/word_boundary.txt").is_file()
    lexicon, left_out = Lexicon(), set()
    path = _required(folder / "phones/align_lexicon.txt")
    for number, line in read_lines(path, KaldiDictError):
        if not line.strip():
            continue
        fields = split_words(line)
        if len(fields) < 3 or any(phone not in phones for phone in fields[2:]):
            raise KaldiDictError(
                f"{path}:{number}: expected `word word phone ...`, found {quoted(line)}"
            )
        word = fields[0]
        phone_symbols = tuple(fields[2:])
        kinds = [_kind(phone, silence, optional) for phone in phone_symbols]
        if word in unknown or word == "<eps>" or set(kinds) == {SILENCE}:
            left_out |= {word} - {"<eps>"}
            continue
        base_phones = without_positions(phone_symbols) if with_marks else phone_symbols
        spelled = spelling.lexicon_key(word)
        lexicon.add(spelled, (kind or p for kind, p in zip(kinds, base_phones, strict=True)))
    if not lexicon:
        raise KaldiDictError(
            f"{path}: the lexicon contains no word except those that the toolkit adds itself"
        )
    notes = (f"words left out, because the toolkit adds its own: {' '.join(sorted(left_out))}",)
    lang = Lang.of(lexicon.with_positions() if with_marks else lexicon)
    lang = replace(lang, normaliser=spelling.id, tags=spelling.tags)
    return lang, notes if left_out else ()


def _kind(phone: str, silence: set[str], optional: set[str]) -> str:
    """Return SIL or SPN for a silence phone, "" for a nonsilence phone."""
    if phone in optional or (phone.endswith(POSITIONS) and phone[:-2] in optional):
        return SILENCE
    return SPOKEN_NOISE if phone in silence else ""


def _words(path: Path) -> list[str]:
    """Return the words in a required file."""
    return [
        word for _, line in read_lines(_required(path), KaldiDictError) for word in line.split()
    ]


def _required(path: Path) -> Path:
    """Return the path of a file, or raise an error if it does not exist."""
    if not path.is_file():
        raise KaldiDictError(f"{path}: no such file: give a Kaldi lang directory")
    return path


def read_lexicon(
    path: Path, strip_stress: bool = False, policy: TextPolicy | None = None
) -> Dictionary:
    """Read pronunciations from a file, or from Kaldi's dict or lang directory.

    Args:
      path: a file, see `toolkit.lang.dictionary.read_dictionary`; a Kaldi dict folder (words,
        probabilities, silence phones and optional silence); or a Kaldi lang folder (the words of
        phones/align_lexicon.txt, without positions).
      strip_stress: only for a file, see `toolkit.lang.dictionary.read_entries`.
      policy: how words are spelled; by default in upper case.

    Raises:
      LexiconError, KaldiDictError: a file cannot be read; the message names file and line.
    """
    if not path.is_dir():
        return read_dictionary(path, strip_stress, policy)
    if (path / "silence_phones.txt").is_file():
        kaldi = read_dict(path, policy)
        questions = _existing(path / EXTRA_QUESTIONS)
        return Dictionary(kaldi.lexicon, kaldi.probabilities, kaldi.notes, questions)
    if not (path / "words.txt").is_file():
        raise KaldiDictError(
            f"{path} is neither Kaldi's dict folder (silence_phones.txt, lexicon.txt) nor its lang "
            "folder (words.txt, phones/align_lexicon.txt)"
        )
    lang, notes = read_lang(path, policy)
    has_positions = lang.position_dependent
    lexicon = Lexicon()
    for word, phones in lang.lexicon.pairs():
        if word != UNKNOWN:
            lexicon.add(word, without_positions(phones) if has_positions else phones)
    questions = _existing(path / "phones" / EXTRA_QUESTIONS)
    return Dictionary(lexicon, notes=notes, extra_questions=questions)


def _existing(path: Path) -> Path | None:
    """Return the path of a file; None if it does not exist."""
    return path if path.is_file() else None
