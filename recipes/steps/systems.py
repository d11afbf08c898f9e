"""The systems that a hybrid recipe has decoded: how each is searched, and what it reached."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recipes.steps.data import splits
from recipes.steps.features import decoded_features
from recipes.steps.gmm import gmm_decoder, gmm_scorers
from recipes.steps.network import network_decoder, network_scorers
from toolkit.align.scorer import Scorer
from toolkit.decode.search import DecoderFiles
from toolkit.hmm.senones import Senones
from toolkit.score.results import Result, read_results
from toolkit.stages.run import Run


@dataclass(frozen=True)
class DecodedSystem:
    """A system that the recipe has decoded."""

    name: str
    """Its name."""
    features: Literal["cepstra", "fbank", "independent", "adapted"] = "cepstra"
    """Of a network its features; "cepstra" stands for GMMs."""
    gmm: str | None = None
    """The GMM system on whose features the network computes, if it does."""
    first_pass: str | None = None
    """The speaker-independent GMM system of the first pass, if speakers are adapted."""
    graphs: str | None = None
    """The folder of a network's own senones, whose decoding graph is searched by `chain_decode`;
    None: those that the networks share."""
    listed: bool = False
    """Whether its n-best lists are written when it is decoded."""

    @property
    def by_utterance(self) -> bool:
        """Whether it recognises utterance by utterance, not by speaker."""
        return self.features == "fbank"

    @property
    def is_gmm(self) -> bool:
        """Whether it has no network."""
        return self.features == "cepstra"

    @property
    def rescored(self) -> bool:
        """Whether the larger n-gram model has rescored it."""
        return not self.is_gmm or self.first_pass is not None


def system_scorers(run: Run, system: DecodedSystem) -> dict[str, Scorer]:
    """Return the scorers of a system for all splits to decode."""
    if not system.is_gmm:
        return network_scorers(run, system.name, decoded_features(run, system.features))
    transforms = {}
    if system.first_pass is not None:
        transforms = {s: run.need(f"fmllr/{s}.safetensors") for s in splits(run).decoded}
    return gmm_scorers(run, system.name, transforms)


def system_decoder(run: Run, system: DecodedSystem) -> DecoderFiles:
    """Return the search of a system, with all its passes."""
    if system.is_gmm:
        decoded = run.need(f"decode/{system.name}")
        return gmm_decoder(run, system.name, decoded, system.rescored)
    return network_decoder(run, system.graphs)


def system_senones(run: Run, system: DecodedSystem) -> Senones:
    """Return the senones of a system's acoustic model."""
    return Senones.load(run.need(system.name if system.is_gmm else system.graphs or "senones"))


def last_rows(run: Run, system: DecodedSystem) -> list[Result]:
    """Return the results of a system's last n-gram pass, one for each split."""
    rows = read_results(run.need(f"decode/{system.name}/rows.json"))
    return [row for row in rows if row.lm == rows[-1].lm]


def tuning_errors(run: Run, rows: Sequence[Result]) -> int:
    """Return the word errors on the splits of tuning."""
    tuned = [row for row in rows if row.split in splits(run).tune]
    return sum(row.insertions + row.deletions + row.substitutions for row in tuned)


def nbest_folders(run: Run, system: DecodedSystem) -> dict[str, Path]:
    """Return the folders of a system's n-best lists by split; none if they were not written."""
    if not system.listed:
        return {}
    folder = f"decode/{system.name}"
    return {split: run.need(f"{folder}/{split}/nbest") for split in splits(run).decoded}
