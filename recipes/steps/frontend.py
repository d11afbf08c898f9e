"""What a device's front end is worth (C1): the test sets' arrays without it, with it, and with one
that knows the whole utterance."""

import json
from dataclasses import replace
from pathlib import Path

from lhotse import MonoCut, MultiCut

from recipes.steps.data import cuts
from recipes.steps.decoding import rescored_lm
from recipes.steps.network import network_decoder
from recipes.steps.placements import PLACEMENTS
from toolkit.corpus.manifest import read_cuts
from toolkit.decode.search import decode_store, real_time_factor, remove_lattices
from toolkit.decode.system import references_of, speakers_of
from toolkit.features.extract import extract
from toolkit.features.multichannel.beamforming import enhance, enhanced_cuts
from toolkit.fsa.lattice import Weights
from toolkit.models.scorer import NeuralScorer
from toolkit.score.results import Result, record_results, score_split
from toolkit.stages.run import Run

HOURS_PER_SHARD = 0.005
"""Hours per shard of the arrays' features: a set of three minutes then has a shard for each of its
speakers, so that several processes can decode it."""


def enhance_arrays(run: Run) -> dict[str, float]:
    """Enhance the array recordings by echo cancellation and beamforming on whole utterances.

    Returns:
      Measures of this, and those of the device's front end, which are of the simulation.
    """
    arrays = _arrays(run)
    return _device_measures(arrays) | enhance(
        arrays, run.config.enhance, run.make("enhanced"), run.jobs, run.progress
    )


def decode_arrays(
    run: Run, system: str, normaliser: Path, graphs: str | None = None
) -> dict[str, float]:
    """Decode the same utterances as heard in several ways, with a network tuned on val.

    The results are of splits such as `DP1-raw`, the first microphone, `DP1-device`, what the test
    set DP1 hears, and `DP1-enhanced`.

    Args:
      run: the run of the stage.
      system: name of the network.
      normaliser: of its features.
      graphs: the folder of its senones, see `network_decoder`.
    """
    out, fbank = run.make("decode/arrays"), run.make("fbank_arrays")
    config = replace(run.config.fbank, hours_per_shard=HOURS_PER_SHARD)
    rows = []
    for split, found in _versions(run).items():
        extract(found, config, fbank / split, run.jobs, device=run.device)
        scorer = NeuralScorer(run.need(system), normaliser, fbank / split, device=run.device)
        rows.append(_decode(run, system, split, scorer, graphs, out))
    record_results(out / "rows.json", rows)
    return {f"wer {row.split}": row.wer for row in rows}


def _arrays(run: Run) -> dict[str, list[MultiCut]]:
    """Return the array recordings by placement, without those that the check excluded."""
    found = {}
    for name in PLACEMENTS:
        kept = {cut.id for cut in cuts(run, name)}
        arrays = read_cuts(run.need(f"data/{name}-array.jsonl"))
        run.need_audio(f"data/{name}-array.jsonl")
        found[name] = [cut for cut in arrays if cut.id in kept]
    return found


def _device_measures(arrays: dict[str, list[MultiCut]]) -> dict[str, float]:
    """The means by placement of what the simulation measured at the device's front end."""
    found = {}
    for name, own in arrays.items():
        for key, title in (("device_erle_db", "ERLE"), ("device_snr_gain_db", "SNR gain")):
            values = [cut.custom[key] for cut in own if key in (cut.custom or {})]
            found |= {f"{name} device {title} dB": sum(values) / len(values)} if values else {}
    return found


def _versions(run: Run) -> dict[str, list[MonoCut]]:
    """Return the utterances of the arrays by placement, as each front end heard them."""
    after, found = enhanced_cuts(_arrays(run), run.need("enhanced")), {}
    for name in PLACEMENTS:
        ids = {cut.id for cut in after[name]}
        raw = read_cuts(run.need(f"data/{name}-raw.jsonl"))
        run.need_audio(f"data/{name}-raw.jsonl")
        found[f"{name}-raw"] = [cut for cut in raw if cut.id in ids]
        if run.setting("rooms.frontend") == "device":
            run.need_audio(f"data/{name}.jsonl")
            found[f"{name}-device"] = [cut for cut in cuts(run, name) if cut.id in ids]
        found[f"{name}-enhanced"] = after[name]
    return found


def _decode(
    run: Run, system: str, split: str, scorer: NeuralScorer, graphs: str | None, out: Path
) -> Result:
    tuned = run.need(f"decode/{system}")
    weights = [
        [Weights(**json.loads((folder / "tuned.json").read_text(encoding="utf-8")))]
        for folder in (tuned / "first_pass", tuned)
    ]
    folder = out / split / "decoded"
    folder.mkdir(parents=True, exist_ok=True)
    decoder = network_decoder(run, graphs).at(weights[-1][0].acoustic_scale)
    decoded = decode_store(scorer, decoder, weights, folder, run.jobs)[-1]
    remove_lattices(folder)
    return score_split(
        references_of(scorer),
        {found.utterance: found.hypotheses[0] for found in decoded},
        speakers_of(scorer),
        out / split,
        system=system,
        split=split,
        lm=rescored_lm(run),
        rtf=real_time_factor(decoded),
        command=run.command,
    )
