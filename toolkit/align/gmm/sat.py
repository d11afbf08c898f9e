"""Speaker-adaptive training (SAT): triphones on features adapted to each speaker by fMLLR."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from toolkit.align.gmm.adaptation import adapt
from toolkit.align.gmm.em import partition_utterances
from toolkit.align.gmm.system import GmmSystem
from toolkit.align.gmm.training import EmConfig, train_em, training_data
from toolkit.align.gmm.triphone import TriphoneConfig, align_with_previous, initial_system


@dataclass(frozen=True)
class SatConfig(TriphoneConfig):
    """Kaldi's train_sat.sh."""

    em: EmConfig = EmConfig(gaussians=15_000)
    """The EM schedule."""
    fmllr: tuple[int, ...] = (2, 4, 6, 12)
    """Iterations that begin with new speaker transforms (Kaldi's list)."""


def train_sat(
    cepstra: Path,
    transcripts: Mapping[str, Sequence[str]],
    lang: Path,
    previous: Path,
    config: SatConfig,
    out: Path,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Train triphone GMMs on fMLLR features; mirrors Kaldi's steps/train_sat.sh.

    `out` gets the training speakers' transforms too, as `fmllr.safetensors`. The system needs
    `adapt_speakers` before it can decode. See `train_triphone` for arguments and errors.
    """
    with training_data(partition_utterances(transcripts, out), lang, config.em, jobs) as data:

        def start() -> tuple[GmmSystem, Tensor]:
            old = align_with_previous(data, previous, cepstra, config)
            return initial_system(data, old.senones, adapt(data, old).features, config)

        def update(iteration: int, system: GmmSystem) -> GmmSystem:
            return adapt(data, system) if iteration in config.fmllr else system

        return train_em("SAT", start, cepstra, data, config.em, out, progress, update)
