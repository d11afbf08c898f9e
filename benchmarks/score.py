"""Scoring many utterances: the toolkit, jiwer and, if it is installed, sclite."""

import random
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.run import BenchmarkError, Case, Table, compare
from toolkit.score.alignment import Weights
from toolkit.score.nist.formats import write_trn
from toolkit.score.wer import Score, score

WORDS, SPEAKERS = 5000, 40
_SHARES = {"deleted": 0.03, "substituted": 0.06, "inserted": 0.02}
_BASELINE = "jiwer, words"
SMOKE = {"utterances": 500, "repeats": 1}

Texts = dict[str, str]


def synthetic_texts(utterances: int, seed: int = 0) -> tuple[Texts, Texts]:
    """Make references of 5 to 35 words, and hypotheses with 11 % of words wrong.

    The same arguments give the same texts on any machine.
    """
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(WORDS)]
    refs, hyps = {}, {}
    for number in range(utterances):
        spoken = rng.choices(vocabulary, k=rng.randint(5, 35))
        sentences = []
        for word in spoken:
            chance = rng.random()
            if chance < _SHARES["inserted"]:
                sentences.append(rng.choice(vocabulary))
            chance = rng.random()
            if chance >= _SHARES["deleted"]:
                wrong = chance < _SHARES["deleted"] + _SHARES["substituted"]
                sentences.append(rng.choice(vocabulary) if wrong else word)
        id = f"s{number % SPEAKERS:02d}-{number:07d}"
        refs[id], hyps[id] = " ".join(spoken), " ".join(sentences)
    return refs, hyps


def sclite() -> list[str] | None:
    """Return the command that runs sclite (in Debian's sctk, `sctk sclite`); None if missing."""
    if shutil.which("sclite"):
        return ["sclite"]
    return ["sctk", "sclite"] if shutil.which("sctk") else None


def sclite_counts(refs: Texts, hyps: Texts) -> tuple[int, int, int]:
    """Return the insertions, deletions and substitutions in sclite's `rsum` table; see `sclite`.

    Args:
      refs: references by id of the form `speaker-number`.
      hyps: hypotheses of the same ids.

    Raises:
      BenchmarkError: sclite fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_trn(refs, folder / "ref.trn")
        write_trn(hyps, folder / "hyp.trn")
        files = ["-r", "ref.trn", "trn", "-h", "hyp.trn", "trn", "-i", "spu_id"]
        command = [*sclite(), *files, "-s", "-o", "rsum", "-f", "0"]
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
        table = folder / "hyp.trn.raw"
        if done.returncode or not table.is_file():
            reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise BenchmarkError(f"sclite failed: {' '.join(reason)}")
        rows = (row.strip() for row in table.read_text().splitlines())
        (line,) = [row for row in rows if row.startswith("| Sum")]
    # sclite's columns: correct, substitutions, deletions, insertions, errors, wrong sentences.
    _, substitutions, deletions, insertions, _, _ = map(int, line.split("|")[3].split())
    return insertions, deletions, substitutions


def benchmark(utterances: int = 100_000, repeats: int = 3) -> Table:
    """Measure all programs on the same texts; their error counts must be equal.

    The toolkit's rows compute a whole `Score`, with alignments; jiwer's `wer` and `cer` only count.

    Raises:
      BenchmarkError: the error counts differ.
    """
    import jiwer

    refs, hyps = synthetic_texts(utterances)
    # jiwer takes lists: both dictionaries have the same order.
    spoken, hypotheses = list(refs.values()), list(hyps.values())
    scores_by_method: dict[str, Score] = {}

    def run(name: str, unit: str, weights: Weights) -> float:
        scores_by_method[name] = score(refs, hyps, unit, weights=weights)
        return float(utterances)

    rates: dict[str, float] = {}

    def run_jiwer(name: str) -> float:
        rates[name] = getattr(jiwer, name)(spoken, hypotheses)
        return float(utterances)

    counts: list[tuple[int, int, int]] = []

    def sctk() -> float:
        counts.append(sclite_counts(refs, hyps))
        return float(utterances)

    cases = [
        Case(_BASELINE, lambda: run_jiwer("wer")),
        Case("toolkit, words", lambda: run("kaldi", "word", "kaldi")),
        Case("toolkit, words, sclite's weights", lambda: run("sclite", "word", "sclite")),
        Case("jiwer, characters and spaces", lambda: run_jiwer("cer")),
        Case("toolkit, characters and spaces", lambda: run("char", "char-with-spaces", "kaldi")),
    ]
    if sclite():
        cases.append(Case("sclite, words", sctk))
    table = compare(cases, "utterances", _BASELINE, repeats, "Error rates of texts in memory")
    _check_equal(scores_by_method, rates, counts)
    words = scores_by_method["kaldi"].ref_units
    return table.with_notes(
        f"{utterances:,} utterances, {words:,} words; all programs count the same errors"
        + ("" if counts else "; sclite is not installed (Debian: sctk)"),
        "sclite reads and writes files; the toolkit's rows keep every alignment",
    )


def _check_equal(
    scores_by_method: dict[str, Score],
    rates: dict[str, float],
    counts: Sequence[tuple[int, int, int]],
) -> None:
    """Raise an error if the programs count different errors."""
    # jiwer returns no counts, only rates as fractions: compare the rates.
    for row, name in (("kaldi", "wer"), ("char", "cer")):
        if abs(scores_by_method[row].percent - 100 * rates[name]) > 1e-9:
            raise BenchmarkError(
                f"jiwer computes a {name} of {100 * rates[name]} %, the toolkit one of "
                f"{scores_by_method[row].percent} %"
            )
    sclite_score = scores_by_method["sclite"]
    for peer_counts in counts:
        if peer_counts != (
            sclite_score.insertions,
            sclite_score.deletions,
            sclite_score.substitutions,
        ):
            raise BenchmarkError(
                f"sclite counts {peer_counts} insertions, deletions and substitutions, the toolkit "
                f"{(sclite_score.insertions, sclite_score.deletions, sclite_score.substitutions)}"
            )
