"""A recogniser's vocabulary: lexicon and symbol tables in one folder (Kaldi's data/lang)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from toolkit.corpus.tags import Tags
from toolkit.errors import ToolkitError
from toolkit.lang.lexicon import POSITIONS, Lexicon, add_disambiguation
from toolkit.lang.probabilities import (
    EntryProbabilities,
    LexiconProbabilities,
    remove_probabilities,
)
from toolkit.lang.tables import (
    EPSILON,
    SPOKEN_NOISE,
    UNKNOWN,
    SymbolTable,
    phone_table,
    word_table,
)
from toolkit.lang.text_policy import EnglishRules, TextPolicy
from toolkit.storage.files import open_atomically, write_atomically
from toolkit.storage.reading import read_json, reading


class LangError(ToolkitError):
    """Raised for words or transcripts from which no recogniser can be built."""


@dataclass(frozen=True)
class Lang:
    """A vocabulary with its pronunciations and symbol tables.

    Silence between words is not in the lexicon: the decoding and alignment graphs add SIL.
    """

    lexicon: Lexicon
    """The vocabulary and <UNK>, which is pronounced SPN."""
    phones: SymbolTable
    """<eps> 0, SIL 1, SPN 2, phones, #0, #1, ... (see `disambiguated_entries`)."""
    words: SymbolTable
    """<eps> 0, words, <UNK>, #0, <s>, </s>."""
    normaliser: str = EnglishRules.id
    """Id of the text policy that turned written text into the words."""
    probabilities: LexiconProbabilities | None = None
    """Probabilities of pronunciations and of silence around them; None: all are equally likely."""
    tags: Tags | None = None
    """What the text policy does with tags."""
    split_clitics: bool = False
    """Whether the text policy splits words that the vocabulary lacks at clitics."""

    @property
    def policy(self) -> TextPolicy:
        """The text policy that turns written text into words.

        Raises:
          UnknownPolicyError: this version does not have it.
        """
        return TextPolicy(self.normaliser, self.tags, self.lexicon, self.split_clitics)

    @classmethod
    def of(cls, lexicon: Lexicon) -> "Lang":
        """Build the symbol tables for `lexicon`, to which <UNK> is added."""
        lexicon = lexicon.restrict(lexicon.keys() - {UNKNOWN})
        if not lexicon:
            raise LangError("the vocabulary is empty")
        lexicon.add(UNKNOWN, (SPOKEN_NOISE,))
        # #0 is for back-off arcs, #1 to #highest for the lexicon, one more for optional silence.
        highest = add_disambiguation(lexicon.pairs())[1]
        return cls(lexicon, phone_table(lexicon.phones(), highest + 2), word_table(lexicon.keys()))

    @property
    def disambig_symbols(self) -> list[str]:
        """Disambiguation symbols: #0 for G's back-off arcs, #1, ... for L, the last for silence."""
        return [phone for phone in self.phones if phone.startswith("#")]

    @property
    def real_phones(self) -> list[str]:
        """All phones except <eps> and disambiguation symbols, by id: SIL and SPN first."""
        return [p for p in self.phones if p != EPSILON and not p.startswith("#")]

    @property
    def position_dependent(self) -> bool:
        """Whether phones are position-dependent (see `with_positions`)."""
        return all(phone.endswith(POSITIONS) for phone in self.real_phones[2:])

    @property
    def vocabulary(self) -> list[str]:
        """Sorted words, without <UNK>."""
        return sorted(self.lexicon.keys() - {UNKNOWN})

    def word_id(self, word: str) -> int:
        """Return the id of a word; an unknown word has the id of <UNK>."""
        return self.words[word if word in self.lexicon else UNKNOWN]

    def pronunciation_ids(self, word: str) -> list[list[int]]:
        """Return the phone ids of a word's pronunciations; for an unknown word, those of <UNK>."""
        pronunciations = self.lexicon.get(word) or self.lexicon[UNKNOWN]
        return [[self.phones[phone] for phone in phones] for phones in pronunciations]

    def pronunciation_weights(self, word: str) -> list[EntryProbabilities]:
        """Return the probabilities of a word's pronunciations, in the order of `pronunciation_ids`.

        `probabilities` must not be None.
        """
        entry = word if word in self.lexicon else UNKNOWN
        return [self.probabilities.of((entry, phones)) for phones in self.lexicon[entry]]

    def disambiguated_entries(self) -> tuple[list[tuple[int, list[int]]], int]:
        """Return L's entries, and the id of the symbol that follows optional silence.

        An entry is a word id and its phone ids, which end with the id of #1, #2, ... where needed.
        The symbol after silence is the last disambiguation symbol, as in Kaldi.
        """
        entries, _ = add_disambiguation(self.lexicon.pairs())
        ids = [(self.words[word], [self.phones[p] for p in phones]) for word, phones in entries]
        return ids, self.phones[self.disambig_symbols[-1]]

    def save(self, folder: Path) -> None:
        """Write the files of a lang folder.

        They are lexicon.txt, lexicon_disambig.txt, phones.txt, words.txt, disambig.txt, vocab.txt
        (in Kaldi's formats) and lang.json; with probabilities lexiconp_silprob.txt and silprob.txt.
        """
        folder = Path(folder)
        self.lexicon.write(folder / "lexicon.txt")
        entries, _ = add_disambiguation(self.lexicon.pairs())
        with open_atomically(folder / "lexicon_disambig.txt") as file:
            file.writelines(f"{word} {' '.join(phones)}\n" for word, phones in entries)
        self.phones.write(folder / "phones.txt")
        self.words.write(folder / "words.txt")
        for name, lines in (("disambig", self.disambig_symbols), ("vocab", self.vocabulary)):
            write_atomically(folder / f"{name}.txt", "".join(f"{line}\n" for line in lines))
        settings: dict[str, str | bool] = {"normaliser": self.normaliser}
        if self.tags is not None:
            settings["tags"] = self.tags
        if self.split_clitics:
            settings["split_clitics"] = True
        write_atomically(folder / "lang.json", json.dumps(settings, indent=1) + "\n")
        if self.probabilities is not None:
            self.probabilities.save(folder)
        else:
            remove_probabilities(folder)

    @classmethod
    def load(cls, folder: Path) -> "Lang":
        """Read a folder that `save` wrote.

        Raises:
          LangError: the files do not belong together.
        """
        folder = Path(folder)
        normaliser, tags, split_clitics = _read_policy(folder)
        lang = cls(
            Lexicon.load(folder / "lexicon.txt"),
            SymbolTable.read(folder / "phones.txt"),
            SymbolTable.read(folder / "words.txt"),
            normaliser,
            LexiconProbabilities.load(folder),
            tags,
            split_clitics,
        )
        # Every phone and word of the lexicon needs an id.
        absent = [phone for phone in lang.lexicon.phones() if phone not in lang.phones]
        absent += [word for word in sorted(lang.lexicon) if word not in lang.words]
        if absent or UNKNOWN not in lang.lexicon or len(lang.disambig_symbols) < 2:
            raise LangError(
                f"{folder}: lexicon.txt, phones.txt and words.txt do not belong together"
                + (f" ({absent[0]!r} has no id)" if absent else "")
                + "; run the language stage again"
            )
        return lang


def _read_policy(folder: Path) -> tuple[str, Tags | None, bool]:
    """Read the text policy: its id, its treatment of tags, and whether it splits clitics.

    Raises:
      LangError: lang.json cannot be read.
    """
    path = folder / "lang.json"
    with reading(path, LangError, "run the language stage again", "not readable"):
        settings = read_json(path, {"normaliser": str})
        tags = settings.get("tags")
        if tags not in (None, *get_args(Tags)):
            raise ValueError(f"'tags' is {tags!r}")
        splits = settings.get("split_clitics", False)
        if not isinstance(splits, bool):
            raise ValueError(f"'split_clitics' is {splits!r}")
        return settings["normaliser"], tags, splits
