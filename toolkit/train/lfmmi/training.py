"""Training an acoustic model with lattice-free MMI from the start (Povey et al. 2016)."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_high

import torch
from torch import nn

from toolkit.config.settings import older_runs
from toolkit.fsa.denominator import Denominator, PhoneNgramConfig
from toolkit.fsa.numerator import NumeratorMaker
from toolkit.hmm.senones import Senones
from toolkit.models.blstm import BlstmConfig
from toolkit.models.lstm import LstmConfig
from toolkit.models.priors import save_priors
from toolkit.models.store import make_model, save_model
from toolkit.models.tdnnf import TdnnfConfig
from toolkit.parallel.batch import DataSource
from toolkit.parallel.config import make_strategy
from toolkit.processes.threads import torch_threads
from toolkit.train.config import CorpusTrainerConfig
from toolkit.train.consistency import check_consistency
from toolkit.train.corpus import (
    Corpus,
    FeatureNormaliser,
    Features,
    write_excluded,
)
from toolkit.train.headline import finished, settings_of, write_headline
from toolkit.train.lfmmi.data import PieceConfig, Pieces
from toolkit.train.lfmmi.objective import LfmmiObjective
from toolkit.train.lfmmi.spoken import NumeratorsInstead, Phones, divide_spoken
from toolkit.train.loop import Trainer
from toolkit.train.monitor import Progress
from toolkit.train.specaugment import SpecAugmentConfig, SpecAugmented
from toolkit.train.windows import OFFSETS, Windows

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LfmmiConfig(CorpusTrainerConfig):
    """Training of a network with lattice-free MMI."""

    model: LstmConfig | BlstmConfig | TdnnfConfig = field(default_factory=LstmConfig)
    """The network; its input and output sizes are taken from the data."""
    pieces: PieceConfig = field(default_factory=PieceConfig)
    """How utterances are cut and batched."""
    ngram: PhoneNgramConfig = field(default_factory=PhoneNgramConfig)
    """The phone n-gram of the denominator."""
    tolerance: int = 5
    """10 ms frames by which a phone may begin earlier or end later than aligned (Kaldi: 5)."""
    leak: float = 0.1
    """Coefficient of the leaky HMM (Kaldi: 0.1)."""
    cross_entropy: float = 0.1
    """Weight of the cross entropy of a second output layer (Kaldi's xent_regularize: 0.1)."""
    l2: float = 5e-5
    """Weight of half the squared norm of a frame's outputs (Kaldi's l2_regularize: 5e-5)."""
    boost: float = field(default=0.0, metadata=older_runs(0.0))
    """Of boosted MMI: log-likelihood that a wrong frame of 30 ms gains in the denominator."""

    specaugment: SpecAugmentConfig = field(
        default=SpecAugmentConfig(), metadata=older_runs(SpecAugmentConfig())
    )
    """SpecAugment's masks on the training batches; none by default."""
    consistency: float = field(default=0.0, metadata=older_runs(0.0))
    """Weight of the divergence between the outputs for two differently masked views of each piece,
    see `LfmmiObjective`. It needs masks and doubles the computation of a step. 0: one view."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_consistency(self.consistency, self.specaugment.active)
        for name in ("tolerance", "leak", "cross_entropy", "l2", "boost"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, needs to be 0 or more")
        needed = getattr(self.model, "context", 0)
        if (given := min(self.pieces.left_context, self.pieces.right_context)) < needed:
            raise ValueError(
                f"pieces have {given} frames of context on a side, and the network's outputs depend"
                f" on {needed}: raise pieces.left_context and pieces.right_context"
            )


def train_lfmmi(
    features: Sequence[Features],
    phones: Sequence[Phones],
    senones: Senones,
    denominator: Denominator,
    normaliser: FeatureNormaliser,
    config: LfmmiConfig,
    out: Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train a network on aligned or recognised phones, or continue what a killed run left in `out`.

    Writes into `out` what `train_cross_entropy` does. The outputs are log-likelihoods up to a
    constant for each frame, without priors: those of `priors.json` are all equal.

    Args:
      features: stores of raw features.
      phones: as many, of what was said; `AlignedPhones` of transcribed speech, of which alone some
        is held out.
      senones: of the network, at the low frame rate.
      denominator: of the same senones.
      normaliser: of the raw features.
      config: sizes, schedule, seed.
      out: folder of this training alone.
      device: where to train.
      progress: called from time to time with (steps done, steps in all).

    Returns:
      `objective`, the criterion per frame of the model on held-out data (without any, that of the
      last epoch on the training data, boosted), `frames_per_second`, `utterances`,
      `held_out_speakers`.

    Raises:
      TrainingDataError: stores do not belong together, or too little is left of them.
      TrainingError: the loss is not finite, or `out` holds a training with other settings.
    """
    out = Path(out)
    digest = hashlib.sha256(denominator.weight.tobytes() + denominator.pdf.tobytes()).hexdigest()
    settings = settings_of(config, num_targets=senones.num_pdfs, denominator=digest)
    earlier = finished(out, settings)
    if earlier is not None:
        return earlier
    division = divide_spoken(features, phones, config.valid_utterances, config.valid_seed)
    spoken = [{name: own.load(name) for name in own.ids} for own in phones]
    sources = list(zip(features, map(NumeratorsInstead, spoken), strict=True))
    corpus, held_out = (
        Corpus(sources, normaliser, senones.num_pdfs, names, counted=False)
        for names in (division.train, division.held_out)
    )
    write_excluded(out / "excluded.tsv", {**corpus.excluded, **held_out.excluded})
    corpus.require(config.max_excluded)
    said = {
        u.name: spoken[u.source][u.name]
        for u in (*corpus.utterances, *held_out.utterances)
        if u.frames
    }
    maker = NumeratorMaker(senones, denominator, config.tolerance)

    def pieces(part: Corpus) -> Pieces:
        windows = Windows(part, config.pieces.window, config.seed)
        return Pieces(windows, said, maker, config.pieces, config.model.lookahead, config.seed)

    input_dim = OFFSETS * corpus.load(corpus.utterances[0])[0].shape[1]
    outputs = 2 * senones.num_pdfs
    torch.manual_seed(config.seed)
    model = make_model(replace(config.model, input_dim=input_dim, output_dim=outputs))
    logger.info("%s", division.describe())
    logger.info(
        "%d utterances, %d held out, %d targets, a denominator of %d states and %d transitions",
        *(len(corpus.utterances), len(held_out.utterances), senones.num_pdfs),
        *(denominator.num_states, len(denominator.source)),
    )
    data: DataSource = pieces(corpus)
    if config.specaugment.active:
        views = 2 if config.consistency else 1
        data = SpecAugmented(data, config.specaugment, config.seed, views)
    trainer = Trainer(
        model,
        LfmmiObjective(
            denominator,
            config.leak,
            config.cross_entropy,
            config.l2,
            config.consistency,
            config.boost,
        ),
        data,
        config,
        out,
        device=device,
        valid=pieces(held_out) if held_out.utterances else None,
        strategy=make_strategy(config.parallel, device),
        progress=progress,
        given={"denominator": digest},
    )
    with torch_threads(config.threads):
        record = trainer.run()
    save_model(out, first_head(model))
    save_priors(out, torch.ones(senones.num_pdfs, dtype=torch.int64))
    headline = {
        "objective": record["score"] if held_out.utterances else record["objective"],
        "frames_per_second": median_high(r["frames_per_second"] for r in trainer.history),
        "utterances": len(corpus.utterances),
        "held_out_speakers": len(division.speakers),
    }
    write_headline(out, settings, headline)
    trainer.clean()
    return headline


def first_head(model: nn.Module) -> nn.Module:
    """The network with the first half of its outputs alone, on the CPU."""
    narrow = make_model(replace(model.config, output_dim=model.config.output_dim // 2))
    wanted = narrow.state_dict()
    weights = {
        name: value.detach().cpu()[: len(wanted[name])] if value.dim() else value.cpu()
        for name, value in model.state_dict().items()
    }
    narrow.load_state_dict(weights)
    return narrow
