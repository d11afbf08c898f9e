"""The bundles for `toolkit transcribe` and `toolkit align`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recipes.steps.data import splits
from recipes.steps.language import lang_config
from toolkit.align.recordings.bundle import write_aligner_bundle
from toolkit.decode.bundle.folder import BundledSystem, write_systems
from toolkit.decode.bundle.writing import (
    NetworkFiles,
    TunedSearch,
    write_network_bundle,
    write_speaker_bundle,
)
from toolkit.decode.streaming import can_stream
from toolkit.errors import ToolkitError
from toolkit.lang.lang import Lang
from toolkit.lang.prepare import source_lexicon
from toolkit.models.scorer import NeuralModel
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
    """The folder of a network's own senones and decoding graph, searched by `chain_decode`; None:
    those that the networks share."""

    @property
    def by_utterance(self) -> bool:
        """Whether it recognises utterance by utterance, not by speaker."""
        return self.features == "fbank"


@dataclass(frozen=True)
class _Candidate:
    system: DecodedSystem
    rows: tuple[Result, ...]
    """Of all splits, with one language model."""
    rescored: bool
    last: bool
    """Whether it is the system's last pass."""
    errors: int
    """On the splits of tuning."""


def write_bundles(run: Run, systems: Sequence[DecodedSystem], out: Path) -> dict[str, str]:
    """Write the bundle of the best system, beside it one for streams if that cannot stream.

    The best has the fewest errors on the splits of tuning; of equals the first, without rescoring
    if that gains nothing.

    Args:
      run: the run of the last stage.
      systems: what the recipe has decoded, the simplest first.
      out: the folder to write.

    Returns:
      The name of the best.
    """
    candidates = [found for system in systems for found in _candidates(run, system)]
    chosen = [_best(run, candidates)]
    streaming = {one.name for one in systems if _streams(run, one)}
    if streaming and chosen[0].system.name not in streaming:
        able = [one for one in candidates if one.system.name in streaming]
        chosen.append(min(able, key=lambda one: one.errors))
    for one in chosen:
        _write(run, one, out / one.system.name)
    bundled = [
        BundledSystem(
            one.system.name,
            one.rows[0].lm,
            one.system.name in streaming,
            {row.split: row.wer for row in one.rows},
        )
        for one in chosen
    ]
    write_systems(out, bundled)
    print(f"   the bundle: {bundled[0]}")
    for other in bundled[1:]:
        print(f"   for streams: {other}")
    return {"bundle": bundled[0].name}


def _streams(run: Run, system: DecodedSystem) -> bool:
    if not system.by_utterance:
        return False
    normaliser = run.need(system.features) / "normaliser.json"
    return can_stream(NeuralModel(run.need(system.name), normaliser))


def _candidates(run: Run, system: DecodedSystem) -> list[_Candidate]:
    """A system with each of its language models."""
    rows = read_results(run.need(f"decode/{system.name}/rows.json"))
    found = []
    models = list(dict.fromkeys(row.lm for row in rows))
    for number, lm in enumerate(models):
        mine = tuple(row for row in rows if row.lm == lm)
        tuned = [row for row in mine if row.split in splits(run).tune]
        errors = sum(row.insertions + row.deletions + row.substitutions for row in tuned)
        last = number == len(models) - 1
        found.append(_Candidate(system, mine, rescored=number > 0, last=last, errors=errors))
    return found


def _best(run: Run, candidates: Sequence[_Candidate]) -> _Candidate:
    wanted = run.config.bundle
    allowed = [one for one in candidates if wanted in (None, one.system.name)]
    if not allowed:
        names = ", ".join(dict.fromkeys(one.system.name for one in candidates))
        raise ToolkitError(f"bundle={wanted}: no such system was decoded; there are {names}")
    return min(allowed, key=lambda one: one.errors)


def _write(run: Run, chosen: _Candidate, out: Path) -> None:
    system, lang = chosen.system, run.need("lang")
    search = _search(run, system, chosen.rescored)
    # It is fitted on the lattices of the last pass.
    calibration = run.need(f"decode/{system.name}") / "calibration.json"
    calibration = calibration if chosen.last and calibration.exists() else None
    if system.by_utterance:
        features = run.need(system.features)
        network = _network(run, system, features)
        write_network_bundle(network, search, lang, run.config.fbank.frontend, out, calibration)
        return
    is_gmm = system.features == "cepstra"
    adapted, first_pass = system.gmm or system.name, None
    if system.first_pass is not None:
        first_pass = (
            run.need(system.first_pass),
            _search(run, DecodedSystem(system.first_pass), rescored=False),
            run.need(f"decode/{adapted}") / "graph.safetensors",
            run.config.sat.em,
        )
    write_speaker_bundle(
        run.need(adapted),
        search,
        lang,
        run.config.cepstra.frontend,
        out,
        network=None if is_gmm else _network(run, system, run.need(system.features)),
        first_pass=first_pass,
        calibration=calibration,
    )


def _network(run: Run, system: DecodedSystem, features: Path) -> NetworkFiles:
    senones = run.need(system.graphs or "senones")
    return NetworkFiles(run.need(system.name), features / "normaliser.json", senones)


def _search(run: Run, system: DecodedSystem, rescored: bool) -> TunedSearch:
    """The search of a decoded system with the weights tuned for it."""
    folder = run.need(f"decode/{system.name}")
    if system.features == "cepstra":
        graph, config = folder / "graph.safetensors", run.config.gmm_decode
    elif system.graphs is not None:
        graph, config = run.need(system.graphs) / "graph.safetensors", run.config.chain_decode
    else:
        graph, config = run.need("graph.safetensors"), run.config.decode
    first, last = folder / "first_pass" / "tuned.json", run.need(f"decode/{system.name}/tuned.json")
    tuned = first if first.exists() else last
    if not rescored:
        return TunedSearch(graph, config, tuned)
    return TunedSearch(graph, config, tuned, run.need("rescoring/lm.safetensors"), last)


def write_aligner(run: Run, out: Path) -> None:
    """Write the bundle of the adapted GMMs for alignment."""
    lang = run.need("lang")
    write_aligner_bundle(
        system=run.need("sat"),
        independent=run.need("lda_mllt"),
        lang=lang,
        lexicon=source_lexicon(lang_config(run), Lang.load(lang).vocabulary),
        frontend=run.config.cepstra.frontend,
        out=out,
    )
