"""Realignment rounds (C4): train a network, align with it, train on that alignment, ..."""

from functools import partial
from pathlib import Path

import torch

from toolkit.align.corpus import CorpusAlignConfig, align_corpus
from toolkit.align.store import AlignmentStore, AugmentedAlignments, OffsetAlignments
from toolkit.features.normalise import Normaliser
from toolkit.features.store import FeatureStore
from toolkit.hmm.senones import Senones
from toolkit.models.scorer import NeuralScorer
from toolkit.processes.ranks import on_rank_zero
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
    """Train a low-rate model, then `align.rounds` times align with it and train again.

    The network aligns at each of the three offsets, so that every epoch has targets of its own
    offset. Senones are unchanged; weights are initialised again, so that a round does not inherit
    errors of the previous targets.

    Args:
      features: the feature store of the training data.
      alignments: targets of the first round, see `LowRateAlignments`.
      normaliser: the file of the features' normaliser.
      senones: the senones of the model.
      lang: the lang folder, with the lexicon.
      config: the network and its training.
      align: search, limits and rounds.
      out: gets the last model as `train_cross_entropy` writes it, and earlier rounds in `rounds/`.
      jobs: number of alignment processes.
      device: device to train and to align on.
      progress: called as progress(steps done, total steps) of each training.
      copies: the feature store of augmented copies, which get the targets of their originals.
      valid: held-out features and alignments; by default training utterances are held out.

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
                scorer = NeuralScorer(folder, normaliser, features, offset, device=str(device))
                align_corpus(scorer, senones, lang, align, aligned, jobs)

            for offset in range(OFFSETS):
                on_rank_zero(partial(realign, offset))
            aligned_at = [AlignmentStore(folder / f"ali.{offset}") for offset in range(OFFSETS)]
            alignments = OffsetAlignments(aligned_at, senones)
    return headline
