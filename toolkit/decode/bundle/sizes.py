"""Checks that the files of a bundle belong together.

Compiled searches read beyond their arrays where sizes disagree, and files of another bundle give
wrong words without an error.
"""

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from toolkit.decode.bundle.settings import BundleError
from toolkit.features.frontend import FrontendConfig
from toolkit.fsa.fst import Fst
from toolkit.hmm.senones import Senones
from toolkit.lang.tables import END, START, UNKNOWN, SymbolTable

MISMATCH = "they come from different bundles; restore the bundle or write it again"


def check_graph(path: Path, graph: Fst, num_pdfs: int, words: SymbolTable) -> None:
    """Check that a graph reads the acoustic model's pdfs and writes words of `words.txt`.

    Args:
      path: the graph's file.
      graph: its content.
      num_pdfs: of the acoustic model.
      words: the bundle's words.

    Raises:
      BundleError: it does not.
    """
    if graph.top_label > num_pdfs:
        raise BundleError(
            f"{path} has {graph.top_label} pdfs, the acoustic model {num_pdfs}: {MISMATCH}"
        )
    if not np.isin(graph.words, [words[word] for word in words]).all():
        raise BundleError(f"{path} has words that words.txt does not list: {MISMATCH}")


def check_frontend(settings: Path, frontend: FrontendConfig, inputs: float, model: Path) -> None:
    """Check that the front end's frames have as many values as a model takes.

    Args:
      settings: the file of the bundle's settings.
      frontend: the front end in it.
      inputs: values of a frame that the model takes.
      model: the model's file or folder.

    Raises:
      BundleError: they differ.
    """
    if frontend.dimension != inputs:
        raise BundleError(
            f"{settings}: the front end has {frontend.dimension} values a frame, {model}"
            f" takes {inputs:g}: {MISMATCH}"
        )


def check_senones(folder: Path, senones: Senones, num_pdfs: int) -> None:
    """Check that senones are those of an acoustic model.

    Args:
      folder: the senones' folder.
      senones: its content.
      num_pdfs: of the acoustic model.

    Raises:
      BundleError: their numbers differ.
    """
    if senones.num_pdfs != num_pdfs:
        raise BundleError(
            f"{folder / 'tree.json'} has {senones.num_pdfs} pdfs, the acoustic model {num_pdfs}:"
            f" {MISMATCH}"
        )


def check_language_model(path: Path, modelled: Iterable[str], words: Collection[str]) -> None:
    """Check that a language model has words of the recogniser; it may lack some, or have more.

    Args:
      path: the model's file or folder.
      modelled: its words.
      words: the recogniser's.

    Raises:
      BundleError: they have no word in common.
    """
    special = {START, END, UNKNOWN}
    if not any(word in words for word in modelled if word not in special):
        raise BundleError(f"{path} has none of the words of words.txt: {MISMATCH}")
