"""The bundles for `toolkit transcribe` and `toolkit align`."""

import logging
import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from recipes.steps.data import (
    cuts,
    has_kaldi_features,
    lang_config,
    list_results,
    splits,
    training_speech,
)
from recipes.steps.decoding import (
    DecodedSystem,
    neural_name,
    neural_systems,
    system_decoder,
    tuning_errors,
)
from toolkit.align.aligner import LANG, write_aligner_bundle
from toolkit.corpus.manifest import text_of
from toolkit.decode.bundle import (
    BundledSystem,
    Card,
    NetworkFiles,
    NeuralFiles,
    TunedSearch,
    write_card,
    write_network_bundle,
    write_speaker_bundle,
    write_systems,
)
from toolkit.decode.recogniser import recognise_alone
from toolkit.decode.rescore import WEIGHTS
from toolkit.decode.speech import DETECTOR, SpeechDetectorError, train_speech_detector
from toolkit.decode.stream import can_stream
from toolkit.errors import ToolkitError
from toolkit.features.audio import AudioError
from toolkit.features.config import FrontendConfig
from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.shards import FeatureStore
from toolkit.kaldi.dict_lang import read_lexicon
from toolkit.lang.lang import Lang
from toolkit.lang.prepare import source_dictionary
from toolkit.models.scorer import NeuralModel
from toolkit.models.store import CONFIG
from toolkit.processes.devices import one_thread
from toolkit.processes.workers import shared_workers
from toolkit.score.results import Result, read_results
from toolkit.score.wer import Score, score
from toolkit.stages.run import Run
from toolkit.storage.reading import read_json

GMMS = {
    "mono": "monophone GMMs",
    "tri": "triphone GMMs",
    "lda_mllt": "triphone GMMs on LDA + MLLT features",
    "sat": "triphone GMMs on speaker-adapted features",
}

NETWORKS = {"lstm": "LSTM", "blstm": "BLSTM", "tdnnf": "TDNN-F"}

FEATURES = {
    "fbank": "log-mel features",
    "lda_mllt_features": "LDA + MLLT features",
    "fmllr_features": "speaker-adapted features",
}

DETECTOR_UTTERANCES, DETECTOR_SECONDS = 300, 10
"""Training utterances from which a speech detector is trained, and seconds of each."""

UnknownSpeakerWer = dict[tuple[str, str, str], float]
"""WER in percent with every utterance recognised alone, by (system, split, language model)."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Candidate:
    """A decoded system with one of its language models: a candidate for a bundle."""

    system: DecodedSystem
    rows: tuple[Result, ...]
    """Results on all splits with this language model."""
    rescored: bool
    """Whether the larger n-gram model has rescored it."""
    decode: str
    """Folder of its results, below the run directory."""
    neural: bool
    """Whether the LSTM language model has rescored it."""
    last: bool
    """Whether it is the last pass with results in the folder `decode`."""
    errors: int
    """Word errors on the tuning splits, with known speakers."""


@dataclass(frozen=True)
class _Measured:
    """A candidate whose bundle has recognised every utterance alone."""

    candidate: _Candidate
    scores: dict[str, Score]
    """Scores by split."""
    tuned_on: tuple[str, ...]

    @cached_property
    def errors(self) -> int:
        """Word errors on the tuning splits, with every utterance recognised alone."""
        return sum(self.scores[split].errors for split in self.tuned_on if split in self.scores)

    @cached_property
    def wer(self) -> dict[str, float]:
        """WER in percent by split, with known speakers."""
        return {row.split: row.wer for row in self.candidate.rows}

    @cached_property
    def wer_unknown_speaker(self) -> dict[str, float]:
        """WER in percent by split, with every utterance recognised alone."""
        return {split: round(words.percent, 2) for split, words in self.scores.items()}


@shared_workers()
def write_bundles(
    run: Run, systems: Sequence[DecodedSystem], neural: Sequence[DecodedSystem], out: Path
) -> tuple[dict[str, float | str], UnknownSpeakerWer]:
    """Write the bundles of the best systems: for known speakers, unknown speakers, and streams.

    With known speakers, the best system is the one with the fewest errors on the tuning splits;
    among equals the first, so that rescoring is left out if it gains nothing. With unknown
    speakers, the candidates are the best system that recognises by speaker and the best that
    recognises by utterance. The bundles of both recognise every utterance alone, and the one with
    fewer errors is chosen. If the setting `bundle` names a system, it is used in both cases.

    Args:
      run: the run of the last stage.
      systems: what the recipe has decoded, the simplest first.
      neural: those that the LSTM language model has rescored.
      out: the folder to write.

    Returns:
      The headline, with names and error rates of the best systems; and the error rates of the
      candidates with unknown speakers.
    """
    # 1. Choose: the system with the fewest errors, and the best of the opposite kind.
    candidates = [c for system in systems for c in _candidates(run, system, False)]
    candidates += [c for system in neural for c in _candidates(run, system, True)]
    best = _best(run, candidates)
    streaming = {system.name for system in systems if _streams(run, system)}
    # Of the opposite kind: by utterance if the best adapts to speakers, else by speaker.
    rivals = [c for c in candidates if c.system.by_utterance != best.system.by_utterance]
    if run.config.bundle is not None:
        rivals = [c for c in rivals if c.system.name in streaming]
    chosen = [best]
    if rivals:
        chosen.append(min(rivals, key=lambda candidate: candidate.errors))

    # 2. Write their bundles. Each bundle recognises every utterance alone, which gives the error
    # rate with unknown speakers.
    measured = []
    for candidate in chosen:
        _write(run, candidate, out / candidate.system.name)
        frontend = run.config.fbank if candidate.system.by_utterance else run.config.cepstra
        write_detector(run, frontend.frontend, out / candidate.system.name)
        measured.append(_measure(run, candidate, out / candidate.system.name))
    unknown = measured[0]
    if run.config.bundle is None:
        unknown = min(measured, key=lambda result: result.errors)
    stream = next((m for m in measured if m.candidate.system.name in streaming), None)

    # 3. Give each role to the best bundle; a bundle may have several roles.
    bundled = []
    for result in measured:
        name = result.candidate.system.name
        holders = {"speaker_known": measured[0], "speaker_unknown": unknown, "stream": stream}
        roles = tuple(role for role, holder in holders.items() if holder is result)
        if not roles:  # not the best in any role
            shutil.rmtree(out / name)
            continue
        lm = result.candidate.rows[0].lm
        bundled.append(BundledSystem(name, lm, name in streaming, result.wer, roles))
        write_card(out / name, _card(run, result))
        logger.info("%s: %s", " and ".join(roles).replace("_", " "), _card(run, result))
    write_systems(out, bundled)
    headline = {"bundle": bundled[0].name} | {f"wer {k}": v for k, v in measured[0].wer.items()}
    headline["bundle for unknown speakers"] = unknown.candidate.system.name
    for split, wer in unknown.wer_unknown_speaker.items():
        headline[f"wer {split}, speaker unknown"] = wer
    return headline, {
        (result.candidate.system.name, split, result.candidate.rows[0].lm): wer
        for result in measured
        for split, wer in result.wer_unknown_speaker.items()
    }


def write_detector(run: Run, frontend: FrontendConfig, bundle: Path) -> None:
    """Train a speech detector on some of the training speech, and put it into a bundle.

    Args:
      run: the run of the stage.
      frontend: the front end of the bundle's features.
      bundle: the folder of the system.
    """
    if not run.config.detect_speech:
        return
    # Evenly spaced in the manifest, so that there are many speakers among them.
    speech = cuts(run, splits(run).train)
    speech = speech[:: math.ceil(len(speech) / DETECTOR_UTTERANCES)]
    size = DETECTOR_SECONDS * frontend.sampling_rate
    samples = []
    for cut in speech:
        with suppress(AudioError):  # the extraction of features has listed it
            samples.append(load_cut_audio(cut, frontend.sampling_rate)[:size].numpy())
    try:
        with one_thread():
            detector, headline = train_speech_detector(samples, frontend)
    except SpeechDetectorError as error:
        logger.warning("%s: no speech detector: %s", bundle.name, error)
        return
    detector.save(bundle / DETECTOR)
    figures = ", ".join(f"{name} {value:.1f}" for name, value in headline.items())
    logger.info("%s: speech detector: %s", bundle.name, figures)


def decoded_systems(run: Run, chain_senones: str) -> list[DecodedSystem]:
    """Return the systems that the stages have decoded, the simplest first.

    Args:
      run: the run of the stage.
      chain_senones: the folder of the TDNN-Fs' senones.
    """
    systems = [DecodedSystem(name) for name in ("mono", "tri", "lda_mllt")]
    systems.append(DecodedSystem("sat", first_pass="lda_mllt", has_nbest=True))
    networks = run.config.networks
    speaker_adapted = {"gmm": "sat", "first_pass": "lda_mllt"}
    if "lstm_smbr" in networks:
        systems.append(DecodedSystem("lstm_ce", "fbank"))
        systems.append(DecodedSystem("lstm_smbr", "fbank", has_nbest=True))
    if "lstm_fmllr" in networks:
        systems.append(
            DecodedSystem("lstm_fmllr", "fmllr_features", has_nbest=True, **speaker_adapted)
        )
    if "blstm" in networks:
        systems.append(DecodedSystem("blstm", "lda_mllt_features", gmm="lda_mllt", has_nbest=True))
    for name, features in (("chain", run.config.first_chain_features), ("chain_fbank", "fbank")):
        if name in networks:
            gmms = speaker_adapted if features == "fmllr_features" else {}
            systems.append(
                DecodedSystem(name, features, graphs=chain_senones, has_nbest=True, **gmms)
            )
    return systems


def write_final(run: Run, systems: Sequence[DecodedSystem]) -> dict[str, float | str]:
    """Write the bundles of the recogniser and the aligner, and the results of all systems.

    Args:
      run: the run of the last stage.
      systems: what the recipe has decoded, the simplest first.
    """
    rescored = neural_systems(run, systems)
    names = [*(system.name for system in systems), *map(neural_name, rescored)]
    names += ["combined"] * bool(run.config.networks)
    if has_kaldi_features(run):
        logger.info(
            "no bundle is written: the models need features that Kaldi has computed "
            "(`corpus.features=kaldi`), and `toolkit transcribe` and `toolkit align` cannot "
            "compute such features from audio"
        )
        return {**list_results(run, names)}
    out = run.make("final")
    best, unknown_speaker = write_bundles(run, systems, rescored, out)
    write_aligner(run, out / "aligner")
    return {**list_results(run, names, unknown_speaker), **best}


def _measure(run: Run, candidate: _Candidate, bundle: Path) -> _Measured:
    """Recognise every utterance of the decoded splits alone with a candidate's bundle."""
    features = candidate.system.features if candidate.system.by_utterance else "plp"
    scores = {}
    for row in candidate.rows:
        folder = run.need(f"{features}/{row.split}")
        store = FeatureStore(folder)
        cuts = [*map(store.cut, store.ids), *store.failed_cuts]
        references = {cut.id: text_of(cut) for cut in cuts}
        texts = recognise_alone(bundle, folder, run.jobs)
        scores[row.split] = score(references, texts)
    return _Measured(candidate, scores, splits(run).tune)


def _card(run: Run, result: _Measured) -> Card:
    """Return the card of a bundle; `wer_unknown_speaker` is measured on single utterances."""
    system = result.candidate.system
    if system.is_gmm:
        model = GMMS[system.name]
    else:
        kind = read_json(run.need(system.name) / CONFIG, {"kind": str})["kind"]
        model = f"{NETWORKS.get(kind, kind)} on {FEATURES[system.features]}"
    return Card(
        system.name,
        model,
        words=len(Lang.load(run.need("lang")).vocabulary),
        **training_speech(run),
        lm=result.candidate.rows[0].lm,
        wer=result.wer,
        wer_unknown_speaker=result.wer_unknown_speaker,
        tuned_on=result.tuned_on,
    )


def _streams(run: Run, system: DecodedSystem) -> bool:
    """Return whether a system can recognise a stream."""
    if not system.by_utterance:
        return False
    normaliser = run.need(system.features) / "normaliser.json"
    return can_stream(NeuralModel(run.need(system.name), normaliser))


def _candidates(run: Run, system: DecodedSystem, neural: bool) -> list[_Candidate]:
    """Return a system with each of its language models, or with the neural one."""
    decode = f"decode/{neural_name(system) if neural else system.name}"
    rows = read_results(run.need(f"{decode}/rows.json"))
    candidates = []
    models = list(dict.fromkeys(row.lm for row in rows))
    for number, lm in enumerate(models):
        lm_rows = tuple(row for row in rows if row.lm == lm)
        last = number == len(models) - 1
        rescored = system.rescored and (neural or number > 0)
        errors = tuning_errors(run, lm_rows)
        candidates.append(_Candidate(system, lm_rows, rescored, decode, neural, last, errors))
    return candidates


def _best(run: Run, candidates: Sequence[_Candidate]) -> _Candidate:
    """Return the candidate with the fewest errors, among those of `config.bundle` if it is set."""
    system_name = run.config.bundle
    allowed = [
        candidate for candidate in candidates if system_name in (None, candidate.system.name)
    ]
    if not allowed:
        names = ", ".join(dict.fromkeys(candidate.system.name for candidate in candidates))
        raise ToolkitError(
            f"`bundle` is {system_name}, but this run does not decode that system: set one of "
            f"{names}"
        )
    return min(allowed, key=lambda candidate: candidate.errors)


def _write(run: Run, chosen: _Candidate, out: Path) -> None:
    """Write the bundle of a candidate."""
    system, lang = chosen.system, run.need("lang")
    search = _search(run, system, chosen.rescored)
    if chosen.neural:
        search = replace(search, neural=_neural(run, chosen))
    # The calibration of confidences is fitted on the last pass and holds for no other.
    calibration = run.need(chosen.decode) / "calibration.json"
    calibration = calibration if chosen.last and calibration.exists() else None
    if system.by_utterance:
        features = run.need(system.features)
        network = _network(run, system, features)
        write_network_bundle(network, search, lang, run.config.fbank.frontend, out, calibration)
        return
    # Recognition by speaker: a first pass without adaptation, transforms, then the system itself.
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
    """Return the files of a network, its normaliser and its senones."""
    senones = run.need(system.graphs or "senones")
    return NetworkFiles(run.need(system.name), features / "normaliser.json", senones)


def _search(run: Run, system: DecodedSystem, rescored: bool) -> TunedSearch:
    """Return the search of a decoded system with the decoding weights tuned for it."""
    decoder, folder = system_decoder(run, system), run.need(f"decode/{system.name}")
    # A rescored decode has weights for each pass; any other decode has those of its only pass.
    first, last = folder / "first_pass" / "tuned.json", run.need(f"decode/{system.name}/tuned.json")
    tuned = first if first.exists() else last
    if not rescored:
        return TunedSearch(decoder.graph, decoder.config, tuned)
    return TunedSearch(decoder.graph, decoder.config, tuned, decoder.rescorer, last)


def _neural(run: Run, chosen: _Candidate) -> NeuralFiles:
    """Return the files for rescoring with the LSTM language model."""
    return NeuralFiles(
        run.need("lstm_lm"),
        run.need(f"{chosen.decode}/{WEIGHTS}"),
        run.need(f"decode/{chosen.system.name}/tuned.json"),
        run.config.lstm_rescoring.count,
    )


def write_aligner(run: Run, out: Path) -> None:
    """Write the bundle of the adapted GMMs for alignment, with its card."""
    lang = run.need("lang")
    write_aligner_bundle(
        system=run.need("sat"),
        independent=run.need("lda_mllt"),
        lang=lang,
        lexicon=source_dictionary(
            lang_config(run), Lang.load(lang).vocabulary, read_lexicon
        ).lexicon,
        frontend=run.config.cepstra.frontend,
        out=out,
    )
    words = len(Lang.load(out / LANG).vocabulary)
    write_card(out, Card("sat", GMMS["sat"], words, **training_speech(run)))
