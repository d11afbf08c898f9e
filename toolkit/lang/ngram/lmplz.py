"""Estimation by KenLM's program lmplz, for text that does not fit into memory."""

import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from toolkit.lang.ngram.arpa import read_arpa
from toolkit.lang.ngram.backoff import BackoffModel
from toolkit.lang.ngram.kneser_ney import NgramError


def estimate_with_lmplz(
    sentences: Iterable[Sequence[str]],
    vocabulary: Collection[str],
    order: int,
    min_counts: Sequence[int],
) -> BackoffModel:
    """Estimate a model with lmplz; arguments as in `kneser_ney.estimate`.

    Unlike `kneser_ney.estimate`, lmplz drops the n-grams with <UNK> beyond the first order.

    Raises:
      NgramError: lmplz is not on the PATH or fails (its message is passed on).
    """
    program = shutil.which("lmplz")
    if program is None:
        raise NgramError(
            "estimator is 'lmplz', but lmplz is not on the PATH; install KenLM's programs or set "
            "estimator to 'numpy'"
        )
    with tempfile.TemporaryDirectory(prefix="lmplz") as name:
        folder = Path(name)
        with open(folder / "text", "w", encoding="utf-8") as file:
            file.writelines(" ".join(words) + "\n" for words in sentences)
        (folder / "vocabulary").write_text(" ".join(sorted(vocabulary)) + "\n", encoding="utf-8")
        padded = [min_counts[min(k, len(min_counts) - 1)] for k in range(order)]
        command = [program, "-o", str(order), "--discount_fallback"]
        command += ["--limit_vocab_file", str(folder / "vocabulary"), "-T", str(folder / "sort")]
        command += ["--prune", *(str(least - 1) for least in padded)]
        command += ["--text", str(folder / "text"), "--arpa", str(folder / "arpa")]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            tail = "\n".join(process.stderr.strip().splitlines()[-5:])
            raise NgramError(f"lmplz ended with status {process.returncode}:\n{tail}")
        return read_arpa(folder / "arpa")
