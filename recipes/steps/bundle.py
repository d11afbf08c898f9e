"""The bundles for `toolkit transcribe` and `toolkit align`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recipes.steps.language import lang_config
from recipes.steps.neural_lm import neural_name
from recipes.steps.systems import DecodedSystem, system_decoder, tuning_errors
from toolkit.align.recordings.bundle import write_aligner_bundle
from toolkit.decode.bundle.folder import BundledSystem, write_systems
from toolkit.decode.bundle.writing import (
    NetworkFiles,
    NeuralFiles,
    TunedSearch,
    write_network_bundle,
    write_speaker_bundle,
)
from toolkit.decode.rescoring.rescorer import WEIGHTS
from toolkit.decode.streaming import can_stream
from toolkit.errors import ToolkitError
from toolkit.lang.lang import Lang
from toolkit.lang.prepare import source_lexicon
from toolkit.models.scorer import NeuralModel
from toolkit.score.results import Result, read_results
from toolkit.stages.run import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Candidate:
    system: DecodedSystem
    rows: tuple[Result, ...]
    """Of all splits, with one language model."""
    rescored: bool
    decode: str
    """The folder of its decode, below the run directory."""
    neural: bool
    """Whether the LSTM language model has rescored it."""
    last: bool
    """Whether it is the last pass in that folder."""
    errors: int
    """On the splits of tuning."""


def write_bundles(
    run: Run, systems: Sequence[DecodedSystem], neural: Sequence[DecodedSystem], out: Path
) -> dict[str, str]:
    """Write the bundle of the best system, beside it one for streams if that cannot stream.

    The best has the fewest errors on the splits of tuning; of equals the first, without rescoring
    if that gains nothing.

    Args:
      run: the run of the last stage.
      systems: what the recipe has decoded, the simplest first.
      neural: those that the LSTM language model has rescored.
      out: the folder to write.

    Returns:
      The name of the best, and its error rates.
    """
    candidates = [found for system in systems for found in _candidates(run, system, False)]
    candidates += [found for system in neural for found in _candidates(run, system, True)]
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
    logger.info("the bundle: %s", bundled[0])
    for other in bundled[1:]:
        logger.info("for streams: %s", other)
    return {"bundle": bundled[0].name} | {f"wer {k}": v for k, v in bundled[0].wer.items()}


def _streams(run: Run, system: DecodedSystem) -> bool:
    if not system.by_utterance:
        return False
    normaliser = run.need(system.features) / "normaliser.json"
    return can_stream(NeuralModel(run.need(system.name), normaliser))


def _candidates(run: Run, system: DecodedSystem, neural: bool) -> list[_Candidate]:
    """A system with each of its language models, or with the neural one."""
    decode = f"decode/{neural_name(system) if neural else system.name}"
    rows = read_results(run.need(f"{decode}/rows.json"))
    found = []
    models = list(dict.fromkeys(row.lm for row in rows))
    for number, lm in enumerate(models):
        mine = tuple(row for row in rows if row.lm == lm)
        last = number == len(models) - 1
        rescored = system.rescored and (neural or number > 0)
        errors = tuning_errors(run, mine)
        found.append(_Candidate(system, mine, rescored, decode, neural, last, errors))
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
    if chosen.neural:
        search = replace(search, neural=_neural(run, chosen))
    # It is fitted on the lattices, or n-best lists, of the last pass.
    calibration = run.need(chosen.decode) / "calibration.json"
    calibration = calibration if chosen.last and calibration.exists() else None
    if system.by_utterance:
        features = run.need(system.features)
        network = _network(run, system, features)
        write_network_bundle(network, search, lang, run.config.fbank.frontend, out, calibration)
        return
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
        network=None if system.is_gmm else _network(run, system, run.need(system.features)),
        first_pass=first_pass,
        calibration=calibration,
    )


def _network(run: Run, system: DecodedSystem, features: Path) -> NetworkFiles:
    senones = run.need(system.graphs or "senones")
    return NetworkFiles(run.need(system.name), features / "normaliser.json", senones)


def _search(run: Run, system: DecodedSystem, rescored: bool) -> TunedSearch:
    """The search of a decoded system with the weights tuned for it."""
    decoder, folder = system_decoder(run, system), run.need(f"decode/{system.name}")
    first, last = folder / "first_pass" / "tuned.json", run.need(f"decode/{system.name}/tuned.json")
    tuned = first if first.exists() else last
    if not rescored:
        return TunedSearch(decoder.graph, decoder.config, tuned)
    return TunedSearch(decoder.graph, decoder.config, tuned, decoder.rescorer, last)


def _neural(run: Run, chosen: _Candidate) -> NeuralFiles:
    return NeuralFiles(
        run.need("lstm_lm"),
        run.need(f"{chosen.decode}/{WEIGHTS}"),
        run.need(f"decode/{chosen.system.name}/tuned.json"),
        run.config.lstm_rescoring.count,
    )


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
