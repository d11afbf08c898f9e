"""Kaldi's dictionary directories (data/local/dict), out and in."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.lang.lang import Lang
from toolkit.lang.lexicon import POSITIONS, Lexicon, Pronunciation, without_position
from toolkit.lang.tables import END, EPSILON, SILENCE, SPOKEN_NOISE, START, UNKNOWN
from toolkit.lang.text import read_lines
from toolkit.storage.files import write_atomically
from toolkit.storage.reading import shown

SILENCE_WORD = "!SIL"
_OOV_WORDS = (UNKNOWN, "<unk>", "<oov>", "<OOV>", "<SPOKEN_NOISE>", "<spoken_noise>", "[UNK]")
_STRESS = re.compile(r"(.+?)([0-9])")
_RESERVED = frozenset({EPSILON, START, END, "#0"})


class KaldiDictError(ToolkitError):
    """A dictionary directory that is incomplete, or a lexicon that cannot be one."""


def write_dict(lang: Lang, folder: Path) -> int:
    """Write the directory that Kaldi's prepare_lang.sh takes.

    lexicon.txt and lexiconp.txt (every probability 1, as ours have none), silence_phones.txt,
    optional_silence.txt, nonsilence_phones.txt (the stresses of a phone in one line, so that they
    share tree roots) and extra_questions.txt (silence, and the phones of each stress). Marks of
    the place in the word are taken off: prepare_lang.sh puts them on again. The word for what is
    not in the vocabulary is `<UNK>`.

    Args:
      lang: the vocabulary.
      folder: the directory to write.

    Returns:
      Number of pronunciations, of silence and <UNK> too.

    Raises:
      KaldiDictError: a word or phone that Kaldi reserves.
    """
    entries = dict.fromkeys(
        (word, without_position(phones) if lang.position_dependent else phones)
        for word, phones in lang.lexicon.pairs()
    )
    entries[SILENCE_WORD, (SILENCE,)] = None
    pairs = sorted(entries, key=lambda pair: pair[0].encode())
    speech = sorted({p for _, phones in pairs for p in phones} - {SILENCE, SPOKEN_NOISE})
    _check(pairs, speech)
    silence = (SILENCE, SPOKEN_NOISE)
    files = {
        "lexicon.txt": (f"{word} {' '.join(phones)}" for word, phones in pairs),
        "lexiconp.txt": (f"{word} 1.0 {' '.join(phones)}" for word, phones in pairs),
        "silence_phones.txt": silence,
        "optional_silence.txt": (SILENCE,),
        "nonsilence_phones.txt": map(" ".join, _by(speech, base_of).values()),
        "extra_questions.txt": map(" ".join, [silence, *_by(speech, _stress_of).values()]),
    }
    for name, lines in files.items():
        write_atomically(Path(folder) / name, "".join(f"{line}\n" for line in lines))
    return len(pairs)


def _check(pairs: Iterable[tuple[str, Pronunciation]], phones: Iterable[str]) -> None:
    for word, _ in pairs:
        if word in _RESERVED:
            raise KaldiDictError(f"Kaldi reserves the word {word!r}: take it out of the lexicon")
    for phone in phones:
        if phone.startswith("#") or phone.endswith(POSITIONS):
            raise KaldiDictError(
                f"the phone {phone!r} looks to Kaldi like a disambiguation symbol or the mark of a "
                "place in the word: rename it in the lexicon"
            )


def base_of(phone: str) -> str:
    """Take a phone's stress off: AH0 to AH."""
    match = _STRESS.fullmatch(phone)
    return match[1] if match else phone


def _stress_of(phone: str) -> str:
    match = _STRESS.fullmatch(phone)
    return match[2] if match else ""


def _by(phones: Iterable[str], kind: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for phone in phones:
        groups.setdefault(kind(phone), []).append(phone)
    return dict(sorted(groups.items()))


@dataclass(frozen=True)
class KaldiDict:
    """What a dictionary directory has for a `Lang`, and what that cannot take over."""

    lexicon: Lexicon
    """Words in upper case; SIL and SPN are the silence phones."""
    renamed: Mapping[str, str]
    """Silence phones by other names, and what they are here."""
    notes: tuple[str, ...]


def read_dict(folder: Path) -> KaldiDict:
    """Read the dictionary directory of a Kaldi recipe.

    The toolkit knows two phones that are no speech: SIL, which optional_silence.txt becomes, and
    SPN, which all other silence phones become. Words that are pronounced as silence alone are left
    out, as the graphs put silence between words; so are the words for the unknown, as `<UNK>` is
    added. Probabilities of pronunciations, where lexiconp.txt alone is there, are dropped.

    Raises:
      KaldiDictError: a file is missing, or a line has a fault; names file and line.
    """
    folder = Path(folder)
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
        raise KaldiDictError(f"{folder}: {clash[0]!r} is a silence phone and a phone of speech")
    lexicon, left_out, weighted = Lexicon(), Counter(), 0
    for place, word, probability, phones in _pronunciations(folder):
        unknown = [p for p in phones if p not in speech and p not in renamed]
        if unknown:
            raise KaldiDictError(f"{place}: the phone {shown(unknown[0])} is in no list of phones")
        mapped = tuple(renamed.get(p, p) for p in phones)
        weighted += probability != 1
        if word in _OOV_WORDS or set(mapped) == {SILENCE}:
            left_out[word] += 1
        elif word not in _RESERVED:
            lexicon.add(word.upper(), mapped)
    if not lexicon:
        raise KaldiDictError(f"{folder}: no word with a pronunciation is left")
    notes = [f"{weighted} probabilities of pronunciations were dropped"] if weighted else []
    if left_out:
        notes.append(f"left out, as the toolkit adds its own: {' '.join(sorted(left_out))}")
    others = {p: here for p, here in renamed.items() if p != here}
    if others:
        notes.append("phones renamed: " + ", ".join(f"{a} to {b}" for a, b in others.items()))
    return KaldiDict(lexicon, others, tuple(notes))


def _pronunciations(folder: Path) -> Iterator[tuple[str, str, float, Pronunciation]]:
    """Yield (file and line, word, probability, phones) from lexicon.txt, else lexiconp.txt."""
    plain, weighted = folder / "lexicon.txt", folder / "lexiconp.txt"
    path = plain if plain.is_file() else weighted
    for place, (word, *phones) in _lines(path):
        probability = 1.0
        if path == weighted:
            probability = _probability(place, phones.pop(0) if phones else "")
        if not phones:
            raise KaldiDictError(f"{place}: the word {shown(word)} has no phones")
        yield place, word, probability, tuple(phones)


def _probability(place: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise KaldiDictError(f"{place}: {shown(text)} is no probability above 0 and up to 1")
    return value


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (file and line, fields) of the lines that are not blank."""
    if not path.is_file():
        raise KaldiDictError(f"{path.parent} is no dictionary directory: it has no {path.name}")
    for number, line in read_lines(path):
        if line.strip():
            yield f"{path}:{number}", line.split()
