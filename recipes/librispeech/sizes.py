"""The hybrid recipe's settings as a function of how much training speech there is."""

import math
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from recipes.librispeech.config import BIDIRECTIONAL_CHUNKS, Config
from recipes.steps.settings import ANY_VOLUME_AND_SPEAKER, SMALL_SEQUENCE, lattice_free
from toolkit.align.config import EmConfig, LdaMlltConfig, MonophoneConfig, SatConfig, TriphoneConfig
from toolkit.features.config import AugmentConfig, ExtractConfig, FrontendConfig
from toolkit.hmm.config import TreeConfig
from toolkit.models.config import BlstmConfig, LstmConfig
from toolkit.train.config import (
    ChunkConfig,
    CrossEntropyConfig,
    PerturbConfig,
    WholeUtteranceConfig,
)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the systems for a corpus."""

    hours: float
    """Hours of training speech."""
    mono: float
    """Number of Gaussians of the monophones."""
    leaves: float
    """Number of leaves of the triphones' trees at 100 Hz."""
    gaussians: float
    """Number of Gaussians of the triphone systems."""
    senones: float
    """Number of leaves of the networks' tree at 33 Hz."""
    biphones: float
    """Number of leaves of the tree of lattice-free MMI."""
    hidden: float
    """Cells per LSTM layer."""
    layers: float
    """LSTM layers."""
    epochs: float
    """Epochs of cross entropy training; an epoch includes the copies at other speeds."""


TABLE = (
    Sizes(0.05, 250, 60, 300, 60, 60, 128, 2, 16),
    Sizes(0.5, 1000, 250, 2000, 250, 250, 256, 3, 12),
    Sizes(1.5, 1000, 500, 5000, 350, 1000, 288, 3, 8),
    Sizes(5, 1000, 1200, 11_000, 800, 2000, 384, 3, 6),
    Sizes(20, 1000, 2500, 25_000, 1600, 3500, 512, 4, 5),
    Sizes(100, 1000, 4200, 40_000, 2500, 5000, 640, 5, 6),
    Sizes(1000, 1000, 7000, 150_000, 3200, 7000, 768, 5, 10),
)
"""Sizes that work well for these hours of speech. Those for half an hour were tested on two
corpora. The GMMs for 5, 100 and 1000 hours are about those of Kaldi's LibriSpeech recipe; the
network for 1000 hours is the paper's (C6). The trees of lattice-free MMI were tested at 0.5 and 1.6
hours; the tree for 1000 hours has the same number of leaves as Kaldi's. Kaldi uses 3500 leaves for
5 hours."""

COPIES_UP_TO = 50.0
"""Hours up to which the networks train on three speeds."""
ONE_THREAD_UP_TO = 20.0
"""Hours up to which the networks are so small that one processor core trains them fastest."""
SHORT_SCHEDULE_UP_TO = 5.0
"""Hours up to which 20 iterations, instead of Kaldi's 35, suffice for a GMM system."""


def sizes(hours: float) -> Sizes:
    """Return the sizes for `hours` of training speech.

    Between the rows of `TABLE`, sizes are interpolated log-linearly. Below the first and above the
    last row, the sizes of that row apply.
    """
    if not hours > 0:
        raise ValueError(f"hours is {hours} but must be above 0")
    if hours <= TABLE[0].hours:
        return TABLE[0]
    for low, high in pairwise(TABLE):
        # Log-linear between the neighbours: log size is linear in log hours.
        if hours <= high.hours:
            share = math.log(hours / low.hours) / math.log(high.hours / low.hours)
            names = [field.name for field in fields(Sizes)]
            pairs = [(getattr(low, name), getattr(high, name)) for name in names]
            return Sizes(*(a ** (1 - share) * b**share for a, b in pairs))
    return TABLE[-1]


def config_for_hours(hours: float, **sections: Any) -> Config:
    """Return the settings of the hybrid recipe for a corpus of `hours` of training speech.

    The same hours always give the same settings. See `sizes`.

    Args:
      hours: hours of training speech.
      sections: sections of the configuration that do not depend on the size, such as corpus and
        lang. A section that depends on the size replaces the one that would be chosen here.
    """
    size = sizes(hours)
    return Config(**(_gmms(size) | _networks(size) | _features(size) | sections))


def _gmms(size: Sizes) -> dict[str, Any]:
    """Return the sections of the GMM systems."""
    tree = TreeConfig(max_leaves=_round(size.leaves))
    em = EmConfig(gaussians=_round(size.gaussians))
    if size.hours <= SHORT_SCHEDULE_UP_TO:
        em = EmConfig(20, (5, 10, 15), _round(size.gaussians), grow_until=15)
    mono = MonophoneConfig().em
    return {
        "mono": MonophoneConfig(
            EmConfig(mono.iterations, mono.realign, _round(size.mono), mono.grow_until, 3.0)
        ),
        "tri": TriphoneConfig(tree, em),
        "lda_mllt": LdaMlltConfig(tree, em),
        "sat": SatConfig(tree, em),
        "senones": TreeConfig(max_leaves=_round(size.senones)),
        "chain_tree": TreeConfig(max_leaves=_round(size.biphones), context=("left",)),
    }


def _networks(size: Sizes) -> dict[str, Any]:
    """Return the sections of the networks."""
    small = size.hours <= ONE_THREAD_UP_TO
    layers, batch = round(size.layers), 32 if small else 64
    ce = CrossEntropyConfig(
        epochs=round(size.epochs),
        initial_rate=2e-3 if small else 1e-3,
        amp="auto",
        threads=1 if small else None,
        average_epochs=3,
        model=LstmConfig(
            hidden=32 * round(size.hidden / 32), layers=layers, dropout=0.2 if small else 0.0
        ),
        chunks=ChunkConfig(chunks_per_batch=batch),
        whole_utterances=WholeUtteranceConfig(epochs=2),
        perturb=ANY_VOLUME_AND_SPEAKER,
    )
    blstm = BlstmConfig(  # as in `mini`, four fifths of the LSTM's cells in each direction
        hidden=32 * round(size.hidden / 40), layers=layers, dropout=0.3 if small else 0.0
    )
    return {
        "ce": ce,
        "blstm": replace(
            ce,
            model=blstm,
            chunks=replace(BIDIRECTIONAL_CHUNKS, chunks_per_batch=batch),
            perturb=PerturbConfig(),
        ),
        "sequence": replace(SMALL_SEQUENCE, threads=1 if small else None),
        "chain": True,
        "lfmmi": replace(lattice_free(size.hours, 2 * ce.epochs), perturb=ANY_VOLUME_AND_SPEAKER),
    }


def _features(size: Sizes) -> dict[str, Any]:
    """Return the sections of the features."""
    # About ten shards, so that several processes can extract; from 72 s to an hour each.
    shard = min(1.0, max(0.02, size.hours / 10))
    return {
        "augment": AugmentConfig(speeds=(0.9, 1.1) if size.hours <= COPIES_UP_TO else ()),
        "cepstra": ExtractConfig(FrontendConfig("plp"), hours_per_shard=round(shard, 2)),
        "fbank": ExtractConfig(FrontendConfig("fbank"), hours_per_shard=round(shard, 2)),
    }


def _round(number: float) -> int:
    """Round to two significant digits."""
    return int(float(f"{number:.1e}"))
