"""The text policy, the only place where written text becomes words.

All other code uses `TextPolicy`. It applies `EnglishRules`, `LetterRules`, or one of their
subclasses, which look up words in a lexicon.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from toolkit.corpus.tags import Tags, is_event_tag, names_event, tags_in
from toolkit.errors import ToolkitError
from toolkit.lang.tables import END, START, UNKNOWN
from toolkit.storage.lines import single_spaced, split_words

TITLES = {"MR": "MISTER", "MRS": "MISSUS", "DR": "DOCTOR"}
QUOTES = str.maketrans("‘’ʼ＇`´", "''''''")
ZERO_WIDTH_SPACE = "\u200b"
"""Separates words in Khmer, Thai and other scripts without visible spaces."""


# Letters of ordinary Georgian (Mkhedruli) have no case. Python's upper() turns them into capitals
# for headings, which few fonts have; this table turns them back.
GEORGIAN = {code: code - 0x1C90 + 0x10D0 for code in range(0x1C90, 0x1CC0)}


def fold_case(text: str) -> str:
    """Return text of any alphabet in upper case, composed (NFC), with ASCII apostrophes."""
    upper = unicodedata.normalize("NFC", text).upper().translate(QUOTES)
    return unicodedata.normalize("NFC", upper).translate(GEORGIAN)


_ELIDED = (
    "BOUT CAUSE COURSE CUSE EM FORE GAINST KAY N NEATH ROUND TIL TIS TWAS TWEEN TWERE TWILL TWIXT"
    " TWOULD"
)
ELISIONS = frozenset(_ELIDED.split())
"""English words that are written with an apostrophe at the start ('TIS), listed without it."""
_MARKS = re.compile(r"((?<![^\W_])[^\W_]+|)('+)(?=([^\W_]*)((?:'[^\W_]+)*))")
"""Apostrophes with the letters on both sides, and the other parts of the word ('TISN'T: TISN, 'T).
"""


def without_quotes(text: str, lexicon: Collection[str] = frozenset()) -> str:
    """Remove the apostrophes and backticks that are quotation marks from English text.

    These are quotation marks:

    - two or more marks in a row;
    - a mark before a word, unless the word is in `ELISIONS` or the lexicon has it with the
      apostrophe;
    - a mark after punctuation;
    - the first mark at the end of a word after an opening mark, unless it may belong to the word
      (BOYS', GOIN').
    """
    text = unicodedata.normalize("NFC", text.translate(QUOTES))  # é is a letter
    pieces: list[str] = []
    done = 0
    opened = -1  # start of the word after an opening mark; -1: no mark is open
    for match in _MARKS.finditer(text):
        letters_before, marks, letters_after, following_parts = match.groups()
        # An opening mark or elision before a word; a closing mark or apostrophe after one; an
        # apostrophe within a word; or marks without a word.
        apostrophe = len(marks) == 1 and bool(letters_before)
        if not letters_before and letters_after:
            whole = f"'{letters_after}{following_parts}".upper()
            apostrophe = letters_after.upper() in ELISIONS or whole in lexicon
            opened = match.end() if len(marks) == 1 + apostrophe else opened
        elif apostrophe and not letters_after and opened >= 0:
            apostrophe = match.start() != opened and letters_before.lower().endswith(("s", "n"))
            opened = opened if apostrophe else -1
        elif not apostrophe:
            opened = -1
        pieces += [text[done : match.end() - len(marks)], "'" if apostrophe else " "]
        done = match.end()
    return "".join([*pieces, text[done:]])


def known_edges(word: str, lexicon: Collection[str]) -> str:
    """Return a word with those outer apostrophes that its spelling in the lexicon has.

    If the lexicon has no spelling with outer apostrophes, all of them are removed.
    """
    inner = word.strip("'")
    opening, closing = ("'" if word[edge] == "'" else "" for edge in (0, -1))
    spellings = (f"{opening}{inner}{closing}", f"{opening}{inner}", f"{inner}{closing}")
    return next((spelling for spelling in spellings if spelling in lexicon), inner)


def split_clitics(word: str, lexicon: Collection[str]) -> list[str]:
    """Split a word outside the lexicon at its clitics: M'APPELLE into M' and APPELLE.

    As in the Montreal Forced Aligner, a clitic is an entry of the lexicon that ends with an
    apostrophe (M', QU') or begins with one ('S). Clitics are removed, first those before the word,
    until the lexicon has the rest or no clitic is left. Unlike the aligner, this function tries the
    longest clitic first, and ignores hyphens, because they separate words in any case.
    """
    prefixes: list[str] = []
    suffixes: list[str] = []
    while word not in lexicon:
        # Where a clitic may end (M'|APPELLE) or begin (JOHN|'S); both sides must have letters.
        marks = [place for place, letter in enumerate(word) if letter == "'"]
        ends = [mark + 1 for mark in reversed(marks) if word[mark:].strip("'")]
        begins = [mark for mark in marks if word[:mark].strip("'")]
        if end := next((end for end in ends if word[:end] in lexicon), None):
            prefixes.append(word[:end])
            word = known_edges(word[end:], lexicon)
        elif begin := next((begin for begin in begins if word[begin:] in lexicon), None):
            suffixes.insert(0, word[begin:])
            word = known_edges(word[:begin], lexicon)
        else:
            break
    return [*prefixes, word, *suffixes]


class EnglishRules:
    """Turns written English into spoken words of A to Z and apostrophes, in upper case.

    Accents are dropped (NFKD). Hyphens, punctuation and quotation marks (`without_quotes`) separate
    words. The titles MR, MRS and DR are spelled out, as in LibriSpeech's transcripts. Every other
    character (digits, other alphabets, symbols) is removed and counted in `removed`. Normalising
    twice changes nothing.
    """

    id = "english-upper-2"
    """Id of these rules wherever their output is stored; changed rules need another id."""

    def __init__(self, lexicon: Collection[str] = frozenset(), split_clitics: bool = False) -> None:
        """Create the rules for a lexicon.

        Args:
          lexicon: words with pronunciations, as these rules write them, for rules that look words
            up (`uses_lexicon`); empty: there is no lexicon.
          split_clitics: split words that the lexicon lacks at clitics, see `split_clitics`.
        """
        self.removed: Counter[str] = Counter()
        """Characters that were removed."""
        self.split: Counter[str] = Counter()
        """Words that were split at clitics."""
        self._lexicon = lexicon
        self._split_clitics = split_clitics

    uses_lexicon = False
    """Whether the rules look words up in the lexicon."""

    def words(self, text: str) -> list[str]:
        """Return the normalised words of `text`."""
        return self._words(self._unquoted(text), keep_foreign=False)

    def _unquoted(self, text: str) -> str:
        """Return the text without quotation marks."""
        return without_quotes(text)

    def transcript(self, text: str) -> str:
        """Return `text` normalised, but with the characters that `words` removes.

        The check reports these characters: a digit in a transcript stands for a spoken word, which
        training must not ignore. Tags such as <noise> or [laughter] are not changed.
        """
        words = []
        for token in self._unquoted(text).split():
            words += [token] if is_event_tag(token) else self._words(token, keep_foreign=True)
        return " ".join(words)

    def _words(self, text: str, keep_foreign: bool) -> list[str]:
        """Return the words of unquoted text, with or without foreign characters."""
        # 1. Characters: without accents, in upper case.
        if not text.isascii():
            text = unicodedata.normalize("NFKD", text.translate(QUOTES))
            text = "".join(_simplify(c) for c in text)
        text = text.upper().replace("`", "'")
        foreign = _FOREIGN.findall(text)
        if foreign and not keep_foreign:
            self.removed.update(foreign)
            # An apostrophe between a digit and a letter becomes a quotation mark without the digit.
            text = self._unquoted(_FOREIGN.sub("", text))
        # 2. Words: separated by punctuation, titles spelled out.
        words = _PUNCTUATION.sub(" ", text).split()
        return [TITLES.get(word, word) for word in words if word.strip("'")]

    def _as_in_lexicon(self, word: str) -> list[str]:
        """Spell a word's outer apostrophes as in the lexicon, or split it at clitics."""
        if "'" not in word or word in self._lexicon:
            return [word]
        word = known_edges(word, self._lexicon)
        parts = split_clitics(word, self._lexicon) if self._split_clitics else [word]
        if len(parts) > 1:
            self.split[word] += 1
        return parts

    def __call__(self, text: str) -> str:
        """Return `text` normalised: words separated by single spaces."""
        return " ".join(self.words(text))


class EnglishLexiconRules(EnglishRules):
    """English rules that also remove most apostrophes at word edges.

    An apostrophe stays if the lexicon has the word with it (DOGS', 'TIS). Without a lexicon it
    stays after S or N (DOGS', GOIN'), after a word of `CUT_WORDS`, and before a word of `ELISIONS`.
    Words are split at clitics if `split_clitics` is set.
    """

    id = "english-upper-3"
    uses_lexicon = True

    def _unquoted(self, text: str) -> str:
        return without_quotes(text, self._lexicon)

    def _words(self, text: str, keep_foreign: bool) -> list[str]:
        words = []
        for word in super()._words(text, keep_foreign):
            parts = self._as_in_lexicon(word) if self._lexicon else [_spelled_edges(word)]
            words += [TITLES.get(part, part) for part in parts]
        return words


def _spelled_edges(word: str) -> str:
    """Return a word with only those outer apostrophes that English spelling uses."""
    inner = word.strip("'")
    if word == inner:
        return word
    opening = "'" if word[0] == "'" and inner in ELISIONS else ""
    is_cut = inner[-1] in "SN" or inner in CUT_WORDS
    return opening + inner + ("'" if word[-1] == "'" and is_cut else "")


CUT_WORDS = frozenset({"MO", "O", "OL", "T", "TH", "WI"})
"""English words that are written with an apostrophe at the end, listed without it; words that end
in S or N are not listed."""


_PUNCTUATION = re.compile(r"[-.,;:!?\"()\[\]{}/\\_]")
_FOREIGN = re.compile(r"[^A-Z'\s\-.,;:!?\"()\[\]{}/\\_]")


def _simplify(character: str) -> str:
    """Remove an accent, or turn Unicode punctuation into a hyphen (a word separator)."""
    category = unicodedata.category(character)
    if character.isascii():
        return character
    if category == "Mn":
        return ""
    return "-" if category.startswith("P") else character


class UnknownPolicyError(ToolkitError):
    """Raised for a text policy id that this version does not have."""


WHOLE_LETTERS = frozenset("\u0e33\u0eb3\u0edc\u0edd")
"""Letters that Unicode's compatibility forms divide although they are typed and printed as one: the
vowel AM of Thai and Lao, and Lao's HO NO and HO MO."""
MIDDLE_DOT = "\u00b7"
"""Part of a word between two L in Catalan (COL\u00b7LEGI)."""
_ARMENIAN_MARKS = "\u055b\u055c\u055e"
"""Marks of stress, exclamation and question, which Armenian writes within words."""
_SPELLED_ALIKE = str.maketrans({"\u1e9e": "SS", **dict.fromkeys(_ARMENIAN_MARKS, "")})
"""Replacements in upper-case text: the capital sharp s becomes SS, as the small one does in upper
case; Armenian marks are dropped."""


class _CompatibleForms(dict[int, str]):
    """Cache of characters' compatibility forms by code point; see `_compatible_form`."""

    def __missing__(self, code: int) -> str:
        form = self[code] = _compatible_form(chr(code))
        return form


def _compatible_form(character: str) -> str:
    """Return the compatibility form (NFKC) of a letter; other characters do not change."""
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if character in WHOLE_LETTERS or kind in ("<super>", "<sub>"):
        return character
    if unicodedata.category(character)[0] == "L" or kind in ("<wide>", "<narrow>"):
        return unicodedata.normalize("NFKC", character).strip(" ") or " "
    return character


_COMPATIBLE_FORMS = _CompatibleForms()


def ordinary_letters(text: str) -> str:
    """Replace letters by their ordinary forms; the text is composed (NFC).

    Ligatures, full-width letters, half-width kana, Arabic presentation forms, single Hangul jamo
    and mathematical alphabets become Unicode's compatibility forms (NFKC). `WHOLE_LETTERS`,
    superscript and subscript letters (some orthographies have them), and other characters stay.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text.translate(_COMPATIBLE_FORMS))


class LetterRules(EnglishRules):
    """Turns text into words of letters and marks (Unicode categories L, M) in upper case.

    Accents are kept and composed (NFC). Punctuation separates words; apostrophes inside words are
    kept. The zero-width space separates words, as in Khmer and Thai; other invisible format
    characters, such as Persian's non-joiner, are dropped. Every other character (digits, symbols)
    is removed and counted in `removed`. Normalising twice changes nothing.
    """

    id = "letters-upper-1"

    def _unquoted(self, text: str) -> str:
        return text  # apostrophes around words are dropped below

    def _words(self, text: str, keep_foreign: bool) -> list[str]:
        pieces = self._pieces(fold_case(text), keep_foreign)
        return [word for piece in pieces if (word := piece.strip("'"))]

    def _pieces(self, text: str, keep_foreign: bool, inside: Collection[int] = ()) -> list[str]:
        """Split upper-case text at punctuation, except at the indices `inside`."""
        characters = []
        for place, character in enumerate(text):
            kind = unicodedata.category(character)
            if character == "'" or kind[0] in "LM" or place in inside:
                characters.append(character)
            elif kind[0] in "PZ" or character.isspace() or character == ZERO_WIDTH_SPACE:
                characters.append(" ")
            elif kind == "Cf":
                continue
            elif keep_foreign:
                characters.append(character)
            else:
                self.removed[character] += 1
        return "".join(characters).split()


class LetterLexiconRules(LetterRules):
    """Letter rules for letters in ordinary form (`ordinary_letters`), with a lexicon.

    - An apostrophe at the edge of a word stays if the lexicon has the word with it. Without a
      lexicon, all are removed.
    - Words are split at clitics if `split_clitics` is set.
    - Catalan's middle dot between two L separates words only if the lexicon lacks the word.
    - The marks that Armenian writes within words are dropped. A capital sharp s is SS.
    """

    id = "letters-upper-2"
    uses_lexicon = True

    def _words(self, text: str, keep_foreign: bool) -> list[str]:
        text = fold_case(ordinary_letters(text)).translate(_SPELLED_ALIKE)
        dots: list[int] = []
        if MIDDLE_DOT in text:
            dots = [i for i in range(1, len(text)) if text[i - 1 : i + 2] == f"L{MIDDLE_DOT}L"]
        words = []
        for piece in self._pieces(text, keep_foreign, dots):
            for part in self._divided(piece) if MIDDLE_DOT in piece else [piece]:
                if inner := part.strip("'"):
                    words += self._as_in_lexicon(part) if self._lexicon else [inner]
        return words

    def _divided(self, piece: str) -> list[str]:
        """Split a piece at middle dots unless the lexicon has its words with them."""
        dotted = (word for word in piece.split("'") if MIDDLE_DOT in word)
        stays_whole = not self._lexicon or all(word in self._lexicon for word in dotted)
        return [piece] if stays_whole else piece.split(MIDDLE_DOT)


_ALL_RULES = (EnglishRules, EnglishLexiconRules, LetterRules, LetterLexiconRules)
RULES = {kind.id: kind for kind in _ALL_RULES}
"""All normalisers by id."""


def text_rules(
    id: str, lexicon: Collection[str] = frozenset(), split_clitics: bool = False
) -> EnglishRules:
    """Return a new normaliser with empty counts.

    Args:
      id: id of the rules.
      lexicon: words with pronunciations, see `EnglishRules`.
      split_clitics: split words that the lexicon lacks at clitics.

    Raises:
      UnknownPolicyError: there are no rules with this id.
    """
    if id not in RULES:
        ids = " and ".join(map(repr, sorted(RULES)))
        raise UnknownPolicyError(
            f"the normaliser {id!r} is unknown; this version of the toolkit has {ids}"
        )
    return RULES[id](lexicon, split_clitics)


AS_GIVEN = "as-given"
"""Words are the text between ASCII white space, byte for byte."""
UPPER_CASE = "upper-case"
"""Words as given, but in upper case: transcripts of CTC recipes without a `normaliser`."""
SENTENCE_MARKS = frozenset({START, END})
UNKNOWN_MARKS = frozenset({"<unk>", "[unk]", "<oov>"})
"""Marks of unknown words in transcripts and texts of language models, in lower case."""
NEVER_WORDS = frozenset({"!SIL", "!sil", UNKNOWN, "<unk>", "[UNK]", "[unk]", "<oov>", "<OOV>"})
"""Entries of Kaldi's lexicons for silence and unknown words, which are tags in transcripts."""
EXAMPLES = 3
"""Number of examples of each kind of change in the log."""

# Letters that NFKD does not decompose, with their usual spelling in English.
_TRANSLITERATIONS = str.maketrans(
    {"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ß": "ss", "ẞ": "SS"}
    | {"þ": "th", "Þ": "TH", "ð": "d", "Ð": "D", "đ": "d", "Đ": "D", "ł": "l", "Ł": "L"}
    | {"ħ": "h", "Ħ": "H", "ı": "i"}
)
_FOREIGN_LETTER = re.compile("[æÆœŒøØßẞþÞðÐđĐłŁħĦı]")
_SQUARE = str.maketrans("()", "[]")
_NO_BRACKETS = str.maketrans("[]<>{}()!%", 10 * " ")
_OPENING_MARKS = frozenset("[<{!%")
_HAS_DIGIT = re.compile(r"\d")
_BETWEEN_PARTS = re.compile(r"[-/_\u2010-\u2015\u2212]+")
# From the first letter to the last one, in linear time even for a long run of punctuation.
_WITHOUT_EDGES = re.compile(r"[\w'](?:.*[\w'])?", re.DOTALL)


@dataclass
class TextCounts:
    """Counts of what a policy has removed from texts or changed in them."""

    removed: Counter[str] = field(default_factory=Counter)
    """Characters that the rules remove, such as &."""
    tags: Counter[str] = field(default_factory=Counter)
    """Tags, such as [laughter]; see `toolkit.corpus.tags`."""
    marks: Counter[str] = field(default_factory=Counter)
    """Marks of the beginnings and ends of sentences, and of unknown words."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Words with digits that the lexicon lacks."""
    foreign: Counter[str] = field(default_factory=Counter)
    """Foreign letters that were transliterated."""
    clitics: Counter[str] = field(default_factory=Counter)
    """Words that were split at clitics, such as M'APPELLE."""

    def lines(self) -> Iterator[str]:
        """Yield a phrase per kind of change: its number and most frequent examples."""
        kinds = {
            "words with digits taken as unknown": self.unknown,
            "tags dropped": self.tags,
            "sentence and unknown marks": self.marks,
            "foreign letters transliterated": self.foreign,
            "words split at clitics": self.clitics,
            "characters removed": self.removed,
        }
        for title, counts in kinds.items():
            if counts:
                most = " ".join(example for example, _ in counts.most_common(EXAMPLES))
                yield f"{sum(counts.values()):,} {title} ({most})"


@dataclass(frozen=True)
class LmText:
    """A policy's rules for language model text, for `toolkit.lang.prepare.read_sentences`."""

    policy: "TextPolicy"
    counts: TextCounts = field(default_factory=TextCounts)

    def words(self, line: str) -> list[str]:
        """Return the words of a line; see `TextPolicy.lm_words`."""
        return self.policy.lm_words(line, self.counts)


@dataclass(frozen=True)
class TextPolicy:
    """A policy that turns written text into words.

    Transcripts, lexicons, language model text, CTC units, alignment and scoring use the same
    policy, so that a word has the same spelling in all of them.
    """

    id: str = EnglishRules.id
    """english-upper-2, english-upper-3, letters-upper-1 or letters-upper-2, or as-given."""
    tags: Tags | None = None
    """"drop" removes tags, "noise" replaces them by `<UNK>` in transcripts, "keep" reads them as
    words. None: like "drop", but round brackets are tags only if they enclose an event, such as
    (cough), and never with as-given."""
    lexicon: Collection[str] = field(default=frozenset(), repr=False)
    """Words with pronunciations. Entries with digits are words, and with as-given so are entries
    that look like tags, such as {LG}. english-upper-3 and letters-upper-2 look up words with outer
    apostrophes."""
    split_clitics: bool = False
    """Split words that the lexicon lacks at clitics, see `split_clitics`; only for english-upper-3
    and letters-upper-2."""

    def __post_init__(self) -> None:
        if self.id not in RULES and self.id not in (AS_GIVEN, UPPER_CASE):
            ids = " and ".join(map(repr, sorted([*RULES, AS_GIVEN])))
            raise UnknownPolicyError(
                f"the normaliser {self.id!r} is unknown; this version of the toolkit has {ids}"
            )

    @property
    def folds(self) -> bool:
        """Whether the policy normalises case, punctuation and digits."""
        return self.id in RULES

    @property
    def uses_lexicon(self) -> bool:
        """Whether even words without digits depend on the lexicon."""
        return self.id == AS_GIVEN or (self.folds and RULES[self.id].uses_lexicon)

    def with_lexicon(self, words: Collection[str]) -> "TextPolicy":
        """Return the policy with another lexicon."""
        return replace(self, lexicon=words)

    def words(self, text: str, counts: TextCounts | None = None) -> list[str]:
        """Return the words of a text, without tags and sentence marks.

        A word with digits that the lexicon lacks is `<UNK>`, except with as-given.

        Args:
          text: text as written, or a transcript.
          counts: collects the removed parts of texts.
        """
        counts = TextCounts() if counts is None else counts
        words = self.tokens(text, counts)
        if not self.folds or not _HAS_DIGIT.search(text):
            return words
        return [
            UNKNOWN if _HAS_DIGIT.search(word) and word not in self.lexicon else word
            for word in words
        ]

    def lm_words(self, text: str, counts: TextCounts | None = None) -> list[str]:
        """Return the words of a line of language model text; <unk> becomes `<UNK>`."""
        # Apply the rules to the text between the marks of unknown words.
        counts = TextCounts() if counts is None else counts
        unknown = f" {UNKNOWN} "
        first_piece, *later_pieces = self.without_tags(text, counts, " ", unknown).split(unknown)
        words = self.words(first_piece, counts)
        for piece in later_pieces:
            words += [UNKNOWN, *self.words(piece, counts)]
        return words

    def tokens(self, text: str, counts: TextCounts | None = None) -> list[str]:
        """Return the words of a text as `words` does, but keep words with digits."""
        counts = TextCounts() if counts is None else counts
        text = self.without_tags(text, counts)
        if self.id == AS_GIVEN:
            return split_words(text)
        if self.id == UPPER_CASE:
            return text.upper().split()
        rules = self._rules()
        text = self._simplified(text, counts)
        if not _HAS_DIGIT.search(text):
            words = rules.words(text)
        else:
            words = self._with_digits(text, rules, counts)
        if rules.removed:
            counts.removed.update(rules.removed)
        if rules.split:
            counts.clitics.update(rules.split)
        return words

    def transcript(self, text: str, counts: TextCounts | None = None) -> str:
        """Return a manifest's text: words, and foreign characters for the check to report.

        Marks of unknown words, such as <unk>, become `<UNK>`: a word was spoken, and is trained as
        the noise phone. Other tags are removed, or become `<UNK>` too if `tags` is "noise".

        Args:
          text: text as written.
          counts: collects tags, and words that are split at clitics.
        """
        counts = TextCounts() if counts is None else counts
        noise = f" {UNKNOWN} "
        text = self.without_tags(text, counts, noise if self.tags == "noise" else " ", noise)
        pieces = [self._written(piece, counts) for piece in text.split(noise)]
        return single_spaced(noise.join(pieces))

    def _written(self, text: str, counts: TextCounts) -> str:
        """Return the transcript of text without tags."""
        if self.id == AS_GIVEN:
            return " ".join(split_words(text))
        if self.id == UPPER_CASE:
            return " ".join(text.upper().split())
        if self.tags == "keep":
            for match in tags_in(text, round_brackets=True):
                text = text.replace(match.group(), match.group().translate(_NO_BRACKETS))
        rules = self._rules()
        written = rules.transcript(self._simplified(text, TextCounts()).upper())
        counts.clitics.update(rules.split)
        return written

    def _rules(self) -> EnglishRules:
        """Return the rules with empty counts."""
        return text_rules(self.id, self.lexicon, self.split_clitics)

    def found_tags(self, text: str) -> list[str]:
        """Return the tags in a text that are not words."""
        counts = TextCounts()
        self.without_tags(text, counts)
        return [*counts.marks, *counts.tags]

    def lexicon_key(self, word: str) -> str:
        """Return a lexicon word as the policy spells it: upper case, or unchanged if as-given."""
        return fold_case(self._ordinary(word)) if self.folds else word

    def unit_text(self, text: str) -> str:
        """Return a transcript for CTC units: upper case, or unchanged words if as-given."""
        if self.id == AS_GIVEN:
            return " ".join(split_words(text))
        return " ".join(fold_case(text).split())

    def without_tags(
        self,
        text: str,
        counts: TextCounts | None = None,
        instead: str = " ",
        instead_of_unknown: str = " ",
    ) -> str:
        """Return a text without sentence marks, tags and marks of unknown words.

        Args:
          text: text as written.
          counts: collects what is removed.
          instead: replaces tags.
          instead_of_unknown: replaces marks of unknown words.
        """
        counts = TextCounts() if counts is None else counts
        pieces, done = [], 0
        for match in self._tags(text):
            tag = match.group()
            is_mark, is_unknown = tag.lower() in SENTENCE_MARKS, tag.lower() in UNKNOWN_MARKS
            (counts.marks if is_mark or is_unknown else counts.tags)[tag] += 1
            replacement = " " if is_mark else instead_of_unknown if is_unknown else instead
            pieces += [text[done : match.start()], replacement]
            done = match.end()
        return "".join([*pieces, text[done:]]) if pieces else text

    def tokens_and_tags(self, text: str, counts: TextCounts) -> list[str]:
        """Return the words of a text as `tokens` does, and the tags between them.

        White space in tags becomes `_`, round brackets become square ones. Marks of the beginnings
        and ends of sentences are left out.

        Args:
          text: text as written.
          counts: collects the removed parts of texts.
        """
        tokens, done = [], 0
        for match in self._tags(text):
            tokens += self.tokens(text[done : match.start()], counts)
            done = match.end()
            tag = "_".join(match.group().split())
            if tag.lower() in SENTENCE_MARKS:
                counts.marks[tag] += 1
            else:
                tokens.append(tag.translate(_SQUARE))
        return tokens + self.tokens(text[done:], counts)

    def _tags(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the tags in a text, and its sentence marks, that are not words."""
        # Round brackets are a tag if `tags` is set; otherwise only around an event, and never with
        # as-given.
        round_brackets = True if self.tags is not None else (False if self.id == AS_GIVEN else None)
        for match in tags_in(text, round_brackets):
            name = match.group().lower()
            if self.tags == "keep" and name not in SENTENCE_MARKS and name not in UNKNOWN_MARKS:
                continue
            if self.id == AS_GIVEN and self._is_word(text, match):
                continue
            yield match

    def _is_word(self, text: str, match: re.Match[str]) -> bool:
        """Return whether the words of what looks like a tag are ordinary words (as-given only).

        They are ordinary words in three cases: the apparent tag is part of a longer token; the
        lexicon has one of the words; or the tag begins with a letter of the lexicon (as < and { are
        in Buckwalter's transliteration of Arabic) and names no event such as [noise].
        """
        around = text[max(0, match.start() - 1) : match.start()]
        around += text[match.end() : match.end() + 1]
        tag = match.group()
        if around.strip() or any(
            word in self.lexicon and word not in NEVER_WORDS for word in split_words(tag)
        ):
            return True
        return tag[0] in self._bracket_letters and tag not in NEVER_WORDS and not names_event(tag)

    @cached_property
    def _bracket_letters(self) -> frozenset[str]:
        """Characters that open tags elsewhere, but are letters in the lexicon's words."""
        return frozenset(
            character
            for word in self.lexicon
            if not _OPENING_MARKS.isdisjoint(word) and not is_event_tag(word)
            for character in _OPENING_MARKS.intersection(word)
        )

    def _simplified(self, text: str, counts: TextCounts) -> str:
        """Use ordinary forms of letters; for English, transliterate foreign Latin letters."""
        if text.isascii():
            return text
        text = self._ordinary(text)
        if self.id.startswith("english") and (foreign := _FOREIGN_LETTER.findall(text)):
            counts.foreign.update(foreign)
            text = text.translate(_TRANSLITERATIONS)
        return text

    def _ordinary(self, text: str) -> str:
        """Replace letters by ordinary forms, as far as the rules define them."""
        return ordinary_letters(text) if self.id == LetterLexiconRules.id else _narrow(text)

    def _with_digits(self, text: str, rules: EnglishRules, counts: TextCounts) -> list[str]:
        """Apply rules to a text; tokens with digits are looked up or split at hyphens."""
        words: list[str] = []
        piece: list[str] = []
        for token in text.split():
            if not _HAS_DIGIT.search(token):
                piece.append(token)
                continue
            # Look up a token with digits as a whole, or else its parts between hyphens.
            spelled = fold_case(token)
            whole = next((w for w in (spelled, _bare(spelled)) if w in self.lexicon), None)
            words += rules.words(" ".join(piece))
            piece = []
            if whole is not None:
                words.append(whole)
                continue
            for part in map(_bare, _BETWEEN_PARTS.split(spelled)):
                if not _HAS_DIGIT.search(part):
                    words += rules.words(part)
                    continue
                words.append(part)
                if part not in self.lexicon:
                    counts.unknown[part] += 1
        return words + rules.words(" ".join(piece))


def _bare(token: str) -> str:
    """Return a token without surrounding punctuation."""
    match = _WITHOUT_EDGES.search(token)
    return match.group().strip("'") if match else ""


def _narrow(text: str) -> str:
    """Replace full-width letters and half-width kana by ordinary forms."""
    if text.isascii():
        return text
    narrow = (
        unicodedata.normalize("NFKC", c)
        if unicodedata.decomposition(c).startswith(("<wide>", "<narrow>"))
        else c
        for c in text
    )
    return unicodedata.normalize("NFC", "".join(narrow))
