"""The text policy: the one place where written text becomes words."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from toolkit.corpus.tags import Tags, tags_in
from toolkit.lang.letters import (
    NORMALISERS,
    SecondLetterNormaliser,
    UnknownNormaliserError,
    compatible,
    normaliser,
)
from toolkit.lang.tables import END, START, UNKNOWN
from toolkit.lang.text import Normaliser, in_upper_case
from toolkit.storage.words import single_spaced, split_words

AS_GIVEN = "as-given"
"""Words are what stands between ASCII white space, byte for byte."""
UPPER_CASE = "upper-case"
"""Words as given, but in upper case: transcripts of CTC recipes without a `normaliser`."""
SENTENCE_MARKS = frozenset({START, END})
UNKNOWN_MARKS = frozenset({"<unk>", "[unk]", "<oov>"})
"""The unknown word in texts of language models, in lower case."""
NEVER_WORDS = frozenset({"!SIL", "!sil", UNKNOWN, "<unk>", "[UNK]", "[unk]", "<oov>", "<OOV>"})
"""Entries of Kaldi's lexicons for silence and unknown words, which are tags in transcripts."""
EXAMPLES = 3
"""Examples of each kind that a line of the log has."""

# Letters that are no accented ones (NFKD leaves them) and their usual spelling in English.
_FOREIGN_LETTERS = str.maketrans(
    {"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ß": "ss", "ẞ": "SS"}
    | {"þ": "th", "Þ": "TH", "ð": "d", "Ð": "D", "đ": "d", "Đ": "D", "ł": "l", "Ł": "L"}
    | {"ħ": "h", "Ħ": "H", "ı": "i"}
)
_FOREIGN = re.compile("[æÆœŒøØßẞþÞðÐđĐłŁħĦı]")
_NO_BRACKETS = str.maketrans("[]<>{}()!%", 10 * " ")
_UNKNOWN_MARK = re.compile("|".join(map(re.escape, sorted(UNKNOWN_MARKS))), re.IGNORECASE)
_HAS_DIGIT = re.compile(r"\d")
_BETWEEN_PARTS = re.compile(r"[-/_\u2010-\u2015\u2212]+")
_TEXT_EDGES = re.compile(r"^[^\w']+|[^\w']+$")


@dataclass
class TextCounts:
    """What a policy has dropped from texts or read as something else, with the numbers."""

    removed: Counter[str] = field(default_factory=Counter)
    """Characters that the rules do not know, such as &."""
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
        """Yield a phrase for each kind that there is: number and most frequent examples."""
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
    """A policy's rules for lines of language model text, for `toolkit.lang.text.read_sentences`."""

    policy: "TextPolicy"
    counts: TextCounts = field(default_factory=TextCounts)

    def words(self, line: str) -> list[str]:
        """Return the words of a line; see `TextPolicy.lm_words`."""
        return self.policy.lm_words(line, self.counts)


@dataclass(frozen=True)
class TextPolicy:
    """How written text becomes words.

    Transcripts, lexicons, language model text, CTC units, alignment and scoring ask the same
    policy, so that a word is spelled alike in all of them.
    """

    id: str = Normaliser.id
    """english-upper-1 to english-upper-3, letters-upper-1 or letters-upper-2, or as-given."""
    tags: Tags | None = None
    """"drop" leaves tags out, "noise" has transcripts say `<UNK>` for them, "keep" reads them as
    words. None: as "drop", but round brackets are tags only if they enclose an event, such as
    (cough), and as given never."""
    lexicon: Collection[str] = field(default=frozenset(), repr=False)
    """Words that have pronunciations: words with digits among them are known and, as given, tags
    such as {LG}; english-upper-3 and letters-upper-2 look up words with apostrophes at an edge."""
    split_clitics: bool = False
    """Split words that the lexicon lacks at its clitics, see `toolkit.lang.text.split_clitics`; of
    english-upper-3 and letters-upper-2."""

    def __post_init__(self) -> None:
        if self.id not in NORMALISERS and self.id not in (AS_GIVEN, UPPER_CASE):
            known = " and ".join(map(repr, sorted([*NORMALISERS, AS_GIVEN])))
            raise UnknownNormaliserError(
                f"the normaliser {self.id!r} is unknown; this version has {known}"
            )

    @property
    def folds(self) -> bool:
        """Whether the policy normalises text: case, punctuation, digits."""
        return self.id in NORMALISERS

    @property
    def uses_lexicon(self) -> bool:
        """Whether the words of a text depend on what the lexicon has, words with digits aside."""
        return self.id == AS_GIVEN or (self.folds and NORMALISERS[self.id].uses_lexicon)

    def with_lexicon(self, words: Collection[str]) -> "TextPolicy":
        """Return the policy for a lexicon."""
        return replace(self, lexicon=words)

    def words(self, text: str, counts: TextCounts | None = None) -> list[str]:
        """Return the words of a text, without tags and sentence marks.

        A word with digits that the lexicon lacks is `<UNK>` as a whole. As given it is itself.

        Args:
          text: as written, or a transcript.
          counts: collects what is left out.
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
        """Return the words of a line of language model text, in which <unk> is `<UNK>`."""
        counts = TextCounts() if counts is None else counts
        if _UNKNOWN_MARK.search(text) is None:
            return self.words(text, counts)
        words: list[str] = []
        piece: list[str] = []
        for token in split_words(text):
            if token.lower() in UNKNOWN_MARKS:
                counts.marks[token] += 1
                words += [*self.words(" ".join(piece), counts), UNKNOWN]
                piece = []
            else:
                piece.append(token)
        return words + self.words(" ".join(piece), counts)

    def tokens(self, text: str, counts: TextCounts | None = None) -> list[str]:
        """Return `words`, with the words that have digits as they are written."""
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
        """Return the text of a manifest: words, and what has no pronunciation, for the check.

        Tags are left out, or `<UNK>` if they are trained as the noise phone.

        Args:
          text: as written.
          counts: collects tags and the words that are split at clitics.
        """
        counts = TextCounts() if counts is None else counts
        if self.tags == "noise":
            text = self.without_tags(text, counts, f" {UNKNOWN} ")
            pieces = [self._written(piece, counts) for piece in text.split(f" {UNKNOWN} ")]
            return single_spaced(f" {UNKNOWN} ".join(pieces))
        return self._written(self.without_tags(text, counts), counts)

    def _written(self, text: str, counts: TextCounts) -> str:
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

    def _rules(self) -> Normaliser:
        return normaliser(self.id, self.lexicon, self.split_clitics)

    def found_tags(self, text: str) -> list[str]:
        """Return the tags of a text that are not words."""
        counts = TextCounts()
        self.without_tags(text, counts)
        return [*counts.marks, *counts.tags]

    def lexicon_key(self, word: str) -> str:
        """Return the spelling of a lexicon's word: as given the word itself, else upper case."""
        return in_upper_case(self._ordinary(word)) if self.folds else word

    def unit_text(self, text: str) -> str:
        """Return a transcript as CTC units encode it: as given its words, else in upper case."""
        if self.id == AS_GIVEN:
            return " ".join(split_words(text))
        return " ".join(in_upper_case(text).split())

    def without_tags(self, text: str, counts: TextCounts | None = None, instead: str = " ") -> str:
        """Return a text with something else instead of its tags, and without sentence marks."""
        counts = TextCounts() if counts is None else counts
        round_brackets = True if self.tags is not None else (False if self.id == AS_GIVEN else None)
        pieces, done = [], 0
        for match in tags_in(text, round_brackets):
            tag = match.group()
            mark = tag.lower() in SENTENCE_MARKS
            if self.tags == "keep" and not mark:
                continue
            if self.id == AS_GIVEN and self._is_word(text, match):
                continue
            (counts.marks if mark else counts.tags)[tag] += 1
            pieces += [text[done : match.start()], " " if mark else instead]
            done = match.end()
        return "".join([*pieces, text[done:]]) if pieces else text

    def _is_word(self, text: str, match: re.Match[str]) -> bool:
        """Whether a tag is part of a longer token, or the lexicon has it."""
        around = text[max(0, match.start() - 1) : match.start()]
        around += text[match.end() : match.end() + 1]
        inside = split_words(match.group())
        return bool(around.strip()) or all(
            word in self.lexicon and word not in NEVER_WORDS for word in inside
        )

    def _simplified(self, text: str, counts: TextCounts) -> str:
        """Return the ordinary forms of letters; for English, transliterate foreign Latin ones."""
        if text.isascii():
            return text
        text = self._ordinary(text)
        if self.id.startswith("english") and (foreign := _FOREIGN.findall(text)):
            counts.foreign.update(foreign)
            text = text.translate(_FOREIGN_LETTERS)
        return text

    def _ordinary(self, text: str) -> str:
        return compatible(text) if self.id == SecondLetterNormaliser.id else _narrow(text)

    def _with_digits(self, text: str, rules: Normaliser, counts: TextCounts) -> list[str]:
        """Apply rules to a text in which some tokens have digits, which stay whole."""
        words: list[str] = []
        piece: list[str] = []
        for token in text.split():
            if not _HAS_DIGIT.search(token):
                piece.append(token)
                continue
            spelled = in_upper_case(token)
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
    """Return a token without the punctuation around it."""
    return _TEXT_EDGES.sub("", token).strip("'")


def _narrow(text: str) -> str:
    """Return a text with plain forms of full-width letters and half-width kana."""
    if text.isascii():
        return text
    narrow = (
        unicodedata.normalize("NFKC", c)
        if unicodedata.decomposition(c).startswith(("<wide>", "<narrow>"))
        else c
        for c in text
    )
    return unicodedata.normalize("NFC", "".join(narrow))
