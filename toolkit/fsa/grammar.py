"""G: an n-gram language model as an acceptor of words."""

import subprocess
import sys
from pathlib import Path

import k2

from toolkit.errors import ToolkitError


class GrammarError(ToolkitError):
    """An ARPA file that cannot be turned into a graph."""


def grammar_acceptor(arpa: Path, words_table: Path, max_order: int | None = None) -> k2.Fsa:
    """G from an ARPA file, by kaldilm.

    Back-off arcs read `#0` and write epsilon, as in Kaldi's arpa2fst. kaldilm runs in a process of
    its own, because its copy of OpenFst can clash with others and hang.

    Args:
      arpa: the n-gram model.
      words_table: `words.txt`; n-grams with other words are left out, as arpa2fst does.
      max_order: read only n-grams up to this order.
    """
    command = [
        sys.executable,
        "-m",
        "kaldilm",
        f"--read-symbol-table={words_table}",
        "--disambig-symbol=#0",
    ]
    if max_order is not None:
        command.append(f"--max-order={max_order}")
    done = subprocess.run([*command, str(arpa)], capture_output=True, text=True)
    if done.returncode != 0 or not done.stdout.strip():
        last = "\n".join(done.stderr.strip().splitlines()[-20:])
        raise GrammarError(f"{arpa} could not be turned into a grammar by kaldilm:\n{last}")
    try:
        return k2.Fsa.from_openfst(done.stdout, acceptor=False)
    except ValueError as error:
        raise GrammarError(
            f"{arpa}: no n-gram is left after dropping those with words that {words_table} lacks;"
            " do both spell words alike (upper case)?"
        ) from error
