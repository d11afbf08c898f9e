"""Rounds of alignment by the network itself (C4): train, align, train on that, ..."""

from functools import partial
from pathlib import Path

import torch

from toolkit.align.augmented import AugmentedAlignments
from toolkit.align.corpus import CorpusAlignConfig, align_corpus
from toolkit.align.store import AlignmentStore, OffsetAlignments
from toolkit.features.normalise import Normaliser
from toolkit.features.store import FeatureStore
from toolkit.hmm.senones import Senones
from toolkit.models.scorer import NeuralScorer
from toolkit.processes.ranks import once
from toolkit.train.corpus import Alignments, Features
from toolkit.train.cross_entropy import CrossEntropyConfig, train_cross_entropy
from toolkit.train.monitor import Progress
from toolkit.train.windows import OFFSETS


def train_with_realignment(
    features: Path,
    alignments: Alignments,
    normaliser: Path,
    senones: Senones,
    lang: Path,
    config: CrossEntropyConfig,
    align: CorpusAlignConfig,
    out: Path,
    jobs: int,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    copies: Path | None = None,
    valid: tuple[Features, Alignments] | None = None,
) -> dict[str, float]:
    """Train a low-rate model, then `align.rounds` times align with it and train anew.

    The network aligns at each of the three offsets, so that every epoch meets targets of its own
    offset. Senones stay as they are; weights begin anew, so that a round does not keep what the
    targets of the last one made it believe.

    Args:
      features: the feature store of the training data.
      alignments: first targets, see `LowRateAlignments`.
      normaliser: the file of the features' normaliser.
      senones: of the model.
      lang: the folder of the lexicon.
      config: the network and its training.
      align: search, limits and rounds.
      out: gets the last model as `train_cross_entropy` writes it, and earlier rounds in `rounds/`.
      jobs: processes that align.
      device: where to train.
      progress: told (steps done, steps) of each training.
      copies: the feature store of augmented copies, which get the targets of their originals.
      valid: held-out features and alignments; by default training utterances are set aside.

    Returns:
      Headline numbers of the last training.
    """
    stores = [FeatureStore(path) for path in (features, copies) if path is not None]
    for number in range(align.rounds + 1):
        folder = out if number == align.rounds else out / "rounds" / f"{number}"
        headline = train_cross_entropy(
            stores,
            [alignments, *(AugmentedAlignments(alignments, store) for store in stores[1:])],
            Normaliser.load(normaliser),
            config,
            senones.num_pdfs,
            folder,
            device,
            progress,
            valid,
        )
        if number < align.rounds:

            def realign(offset: int, folder: Path = folder) -> None:
                aligned = folder / f"ali.{offset}"
                aligned.mkdir(exist_ok=True)
                scorer = NeuralScorer(folder, normaliser, features, offset)
                align_corpus(scorer, senones, lang, align, aligned, jobs)

            for offset in range(OFFSETS):
                once(partial(realign, offset))
            aligned_at = [AlignmentStore(folder / f"ali.{offset}") for offset in range(OFFSETS)]
            alignments = OffsetAlignments(aligned_at, senones)
    return headline
