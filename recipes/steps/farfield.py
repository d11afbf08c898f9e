"""Steps of the far-field recipe: simulation, features, array front end (C1), results by placement.

Results are relative WER reductions by placement (C32, C33) and a breakdown of time (C34).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lhotse import MonoCut, MultiCut
from markupsafe import Markup

from local.farfield import sets as farfield_sets
from local.farfield.sets import CLEAN_SETS
from recipes.steps.data import (
    cuts,
    extract_fbank,
    extract_utterances,
    hybrid_policy,
    need_user_files,
    read_corpus,
    show_page,
    write_transcripts,
)
from recipes.steps.decoding import decode_network, network_decoder, rescored_lm
from recipes.steps.gmm import align_system
from recipes.steps.networks import targets
from toolkit.align.store import LowRateAlignments
from toolkit.corpus.manifest import read_cuts, speaker_of, text_of, write_cuts
from toolkit.corpus.split import Splits
from toolkit.decode.search import decode_store, real_time_factor, remove_lattices
from toolkit.decode.system import references_of, speakers_of
from toolkit.features.extract import extract
from toolkit.features.multichannel.beamforming import enhance, enhanced_cuts
from toolkit.features.shards import FeatureStore
from toolkit.fsa.lattice import Weights
from toolkit.models.scorer import NeuralScorer
from toolkit.report.pages import Cell, Column, Page, Section, Table, TableRow, macros
from toolkit.score import significance
from toolkit.score.compare import compare
from toolkit.score.results import (
    Result,
    markdown_table,
    print_results,
    read_results,
    record_results,
    score_split,
)
from toolkit.score.transcripts import read_transcripts
from toolkit.score.wer import Score, Unit, pool, score
from toolkit.stages.log import duration
from toolkit.stages.marker import Marker
from toolkit.stages.run import Run
from toolkit.storage.files import write_atomically
from toolkit.storage.paths import path_below

HOURS_PER_SHARD = 0.005
"""Hours per shard of the arrays' features: a set of three minutes then has a shard for each of its
speakers, so that several processes can decode it."""

PLACEMENTS = ("DP1", "DP2", "DP3", "DP4", "DP5")
"""The test sets, from the easiest placement of the device to the hardest (C32)."""

POOLED = "TST"
"""Name of the test sets pooled together (C32)."""

SETS = {name: (name,) for name in PLACEMENTS} | {"DP2-DP5": PLACEMENTS[1:], POOLED: PLACEMENTS}
"""The sets on which systems are compared, and the test sets that each pools."""

PUBLISHED = {"DP1": 9.8, "DP2": 22.2, "DP3": 21.8, "DP4": 16.5, "DP5": 18.9}
"""Relative WER reductions of the paper's student over its sMBR baseline, in percent (C33)."""

HOUR, DAY = 3600.0, 86_400.0

STORING = "storing of the utterances"
"""A part of the paper's breakdown that the recipe does not have, because it stores recordings while
it simulates them."""


def make_rooms(run: Run) -> dict[str, float]:
    """Simulate the far-field sets from the clean corpus."""
    need_user_files(run, run.config.rooms.noise, run.config.rooms.responses)
    clean, out = read_corpus(run), run.make("rooms")
    return farfield_sets.make_farfield(clean, run.config.rooms, out, run.jobs, run.progress)


def write_manifests(run: Run) -> dict[str, float]:
    """Write a manifest per set, and the roles of the sets."""
    policy = hybrid_policy(run)
    sets, data = farfield_sets.manifests(run.need("rooms")), run.make("data")
    write_transcripts(sets, policy, noise_phone=True)
    for name, cuts_of_set in sets.items():
        write_cuts(cuts_of_set, path_below(data, f"{name}.jsonl"))
    Splits("train", ("val",), PLACEMENTS).save(data / "splits.json")
    return {name: len(cuts_of_set) for name, cuts_of_set in sets.items()}


def extract_features(run: Run) -> dict[str, float]:
    """Extract features of all sets with transcripts, and of the clean twins of train and val."""
    plp, fbank = run.make("plp"), run.make("fbank")
    for split, twins in CLEAN_SETS.items():
        # Twins have the ids of the far-field utterances: leave out those that the check excluded.
        included = {cut.id for cut in cuts(run, split)}
        twin_cuts = [
            cut for cut in read_cuts(run.need(f"data/{twins}.jsonl")) if cut.id in included
        ]
        extract_utterances(run, twin_cuts, run.config.cepstra, plp, twins)
    return extract_fbank(run, fbank)


def align_twins(run: Run, system: str) -> dict[str, float]:
    """Align the clean twins of train and val; the far-field utterances have the same frames."""
    align_system(run, system, "val-clean", "ali_val")
    return align_system(run, system, "clean")


def validation(run: Run, system: str) -> tuple[FeatureStore, LowRateAlignments]:
    """Return far-field features of val and senones of its clean twins, for frame accuracy (C32)."""
    return FeatureStore(run.need("fbank/val")), targets(run, system, "ali_val")


def decode_systems(
    run: Run, systems: Sequence[str], normaliser: str | None = None
) -> dict[str, float]:
    """Decode every set with networks, by default with the normaliser of `fbank`."""
    rates = {}
    for system in systems:
        for name, number in decode_network(run, system, normaliser=normaliser).items():
            rates[f"{system} {name}"] = number
    return rates


def enhance_arrays(run: Run) -> dict[str, float]:
    """Enhance the array recordings by echo cancellation and beamforming on whole utterances.

    Returns:
      Measures of the enhancement, and those of the device's front end, from the simulation.
    """
    arrays = _arrays(run)
    return _device_measures(arrays) | enhance(
        arrays, run.config.enhance, run.make("enhanced"), run.jobs, run.progress
    )


def decode_arrays(
    run: Run, system: str, normaliser: str, graphs: str | None = None
) -> dict[str, float]:
    """Decode the array utterances after each front end, with decoding weights tuned on val.

    The results have splits such as `DP1-raw`, the first microphone; `DP1-device`, the device's
    front end, as in the test set DP1; and `DP1-enhanced`.

    Args:
      run: the run of the stage.
      system: name of the network.
      normaliser: normaliser of its features.
      graphs: the folder of its senones, see `network_decoder`.
    """
    out, fbank = run.make("decode/arrays"), run.make("fbank_arrays")
    config = replace(run.config.fbank, hours_per_shard=HOURS_PER_SHARD)
    rows = []
    for split, heard_cuts in _versions(run).items():
        extract(heard_cuts, config, fbank / split, run.jobs, device=run.device)
        scorer = NeuralScorer(
            run.need(system), run.need(normaliser), fbank / split, device=run.device
        )
        rows.append(_decode(run, system, split, scorer, graphs, out))
    # Lattices stay until all splits are decoded: an interrupted run continues from them.
    remove_lattices(out)
    record_results(out / "rows.json", rows)
    return {f"wer {row.split}": row.wer for row in rows}


def _arrays(run: Run) -> dict[str, list[MultiCut]]:
    """Return the array recordings by placement, without those that the check excluded."""
    arrays_by_placement = {}
    for name in PLACEMENTS:
        included = {cut.id for cut in cuts(run, name)}
        arrays = read_cuts(run.need(f"data/{name}-array.jsonl"))
        run.need_audio(f"data/{name}-array.jsonl")
        arrays_by_placement[name] = [cut for cut in arrays if cut.id in included]
    return arrays_by_placement


def _device_measures(arrays: dict[str, list[MultiCut]]) -> dict[str, float]:
    """Return the mean measures of the simulated device's front end by placement."""
    means = {}
    for name, recordings in arrays.items():
        for key, title in (("device_erle_db", "ERLE"), ("device_snr_gain_db", "SNR gain")):
            values = [cut.custom[key] for cut in recordings if key in (cut.custom or {})]
            means |= {f"{name} device {title} dB": sum(values) / len(values)} if values else {}
    return means


def _versions(run: Run) -> dict[str, list[MonoCut]]:
    """Return the utterances of the arrays by placement and front end."""
    enhanced, versions = enhanced_cuts(_arrays(run), run.need("enhanced")), {}
    for name in PLACEMENTS:
        ids = {cut.id for cut in enhanced[name]}
        raw = read_cuts(run.need(f"data/{name}-raw.jsonl"))
        run.need_audio(f"data/{name}-raw.jsonl")
        versions[f"{name}-raw"] = [cut for cut in raw if cut.id in ids]
        if run.setting("rooms.frontend") == "device":
            run.need_audio(f"data/{name}.jsonl")
            versions[f"{name}-device"] = [cut for cut in cuts(run, name) if cut.id in ids]
        versions[f"{name}-enhanced"] = enhanced[name]
    return versions


def _decode(
    run: Run, system: str, split: str, scorer: NeuralScorer, graphs: str | None, out: Path
) -> Result:
    """Decode one version of a placement's array recordings, with decoding weights tuned on val."""
    tuned = run.need(f"decode/{system}")
    # The weights tuned on val for the search and for rescoring; nothing is tuned on the arrays.
    weights = [
        [Weights(**json.loads((folder / "tuned.json").read_text(encoding="utf-8")))]
        for folder in (tuned / "first_pass", tuned)
    ]
    folder = out / split / "decoded"
    folder.mkdir(parents=True, exist_ok=True)
    decoder = network_decoder(run, graphs).at(weights[-1][0].acoustic_scale)
    decoded = decode_store(scorer, decoder, weights, folder, run.jobs)[-1]
    return score_split(
        references_of(scorer),
        {utterance.utterance: utterance.hypotheses[0] for utterance in decoded},
        speakers_of(scorer),
        out / split,
        system=system,
        split=split,
        lm=rescored_lm(run),
        rtf=real_time_factor(decoded),
        command=run.command,
    )


@dataclass(frozen=True)
class Gain:
    """Relative WER reduction of a system over a baseline on one test set (C33)."""

    split: str
    """The test set."""
    baseline: float
    """WER of the baseline in percent."""
    system: float
    """WER of the system in percent."""
    werr: float | None
    """Relative reduction of the word error rate in percent, above 0 if the system is better; None
    if the baseline has no error."""
    low: float | None
    """Lower end of the 95 % confidence interval of `werr`, by a paired bootstrap."""
    high: float | None
    """Upper end of that interval."""
    p_value: float
    """Two-sided p-value of NIST's matched pairs test."""


def compare_placements(run: Run, baseline: str, systems: Sequence[str]) -> dict[str, float]:
    """Write `results.json`, and relative WER reductions to `werr.json` and `werr.md`.

    Returns:
      Each system's WER on all placements, and its relative reduction on all but the first.
    """
    lm = rescored_lm(run)
    rows = [row for s in (baseline, *systems) for row in placement_rows(run, s, lm)]
    if run.setting("rooms.array_hours"):
        rows += read_results(run.need("decode/arrays/rows.json"))
    record_results(run.make("results.json"), rows)
    write_atomically(run.make("results.md"), markdown_table(rows))
    gains_by_system = {system: gains(run, baseline, system) for system in systems}
    gain_records = {
        system: [asdict(gain) for gain in system_gains]
        for system, system_gains in gains_by_system.items()
    }
    write_atomically(run.make("werr.json"), json.dumps(gain_records, indent=1) + "\n")
    write_atomically(run.make("werr.md"), gains_table(gains_by_system))
    pooled = {f"wer {row.system}": row.wer for row in rows if row.split == POOLED}
    reductions = {
        # The last but one of `SETS`: DP2-DP5 pooled.
        f"werr {system}": system_gains[-2].werr
        for system, system_gains in gains_by_system.items()
    }
    return pooled | {name: werr for name, werr in reductions.items() if werr is not None}


def show_placements(directory: Path) -> None:
    """Print the tables that `compare_placements` has written, and write the run's page."""
    print_results(directory / "results.json")
    print((directory / "werr.md").read_text(encoding="utf-8"))
    show_page(directory)


def placement_rows(run: Run, system: str, lm: str) -> list[Result]:
    """Return a system's results on each split, and on the pooled placements."""
    folder = run.need(f"decode/{system}")
    rows = [row for row in read_results(folder / "rows.json") if row.lm == lm]
    parts = [row for row in rows if row.split in PLACEMENTS]
    seconds = [sum(cut.duration for cut in cuts(run, row.split)) for row in parts]
    # Real-time factor of all placements: the mean of theirs, weighted by seconds of audio.
    rtf = sum(row.rtf * duration for row, duration in zip(parts, seconds, strict=True)) / sum(
        seconds
    )
    words, characters = (pool(scores(run, system, PLACEMENTS, unit)) for unit in ("word", "char"))
    named = {"system": system, "split": POOLED, "lm": lm, "rtf": rtf, "command": run.command}
    return [*rows, Result.of(words, characters, **named)]


def scores(run: Run, system: str, splits: Sequence[str], unit: Unit = "word") -> dict[str, Score]:
    """Return a decoded system's scores by split.

    A sentence may be in several placements, as `id-DP1`, `id-DP2` and so on. If there are too few
    speakers to resample, sentences are resampled with all their copies.
    """
    scores_by_split = {}
    for split in splits:
        hypotheses = read_transcripts(run.need(f"decode/{system}") / split / "text", "text").texts
        utterances = cuts(run, split)
        references = {cut.id: text_of(cut) for cut in utterances}
        speakers = {cut.id: speaker_of(cut) for cut in utterances}
        sources = {cut.id: cut.id.removesuffix(f"-{split}") for cut in utterances}
        scores_by_split[split] = score(references, hypotheses, unit, speakers, sources=sources)
    return scores_by_split


def gains(run: Run, baseline: str, system: str) -> list[Gain]:
    """Compare two decoded systems on every set."""
    sides = [scores(run, name, PLACEMENTS) for name in (baseline, system)]
    return [
        gain(name, *(pool({split: side[split] for split in parts}) for side in sides))
        for name, parts in SETS.items()
    ]


def gain(split: str, first: Score, second: Score) -> Gain:
    """Compare two systems on one set.

    The interval is that of the reduction itself: the reduction is computed on each resample of the
    test set, from the errors of both systems.
    """
    rates = round(first.percent, 2), round(second.percent, 2)
    p_value = compare(first, second).matched_pairs.p_value
    if not first.errors:
        return Gain(split, *rates, None, None, None, p_value)
    blocks = first.blocks(
        [utterance.errors for utterance in first.utterances],
        [utterance.errors for utterance in second.utterances],
    )
    # Both systems on the same resamples [R]: their errors are correlated.
    baseline_errors, system_errors = significance.resample(blocks).T
    reductions = significance.percent(baseline_errors - system_errors, baseline_errors)
    interval = significance.interval_of(reductions, first.resampled, len(blocks))
    # WERR = (WER of the baseline - WER of the system) / WER of the baseline, in percent.
    werr = 100.0 * (first.errors - second.errors) / first.errors
    gain, low, high = (round(number, 2) for number in (werr, interval.low, interval.high))
    return Gain(split, *rates, gain, low, high, p_value)


def gains_table(gains_by_system: Mapping[str, Sequence[Gain]]) -> str:
    """Return a Markdown table of relative reductions with intervals; the paper's row is last."""
    lines = [["WERR %", *SETS], ["---", *["---:"] * len(SETS)]]
    for system, system_gains in gains_by_system.items():
        lines.append([system, *map(_shown, system_gains)])
    lines.append(["paper", *(f"{PUBLISHED[s]:.1f}" if s in PUBLISHED else "" for s in SETS)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shown(gain: Gain) -> str:
    """Format a gain with its interval; empty if it is not defined."""
    return "" if gain.werr is None else f"{gain.werr:.1f} ({gain.low:.1f} to {gain.high:.1f})"


@dataclass(frozen=True)
class Published:
    """A processing time of the paper."""

    seconds: float
    """The time in seconds."""
    text: str
    """The time as the paper states it."""


@dataclass(frozen=True)
class Subsystem:
    """Parts of the processing whose times the paper reports in one table."""

    title: str
    """Heading of its parts in the table."""
    parts: Mapping[str, Published]
    """The paper's time of each part."""
    total: str = ""
    """The paper's time of all parts; empty if it states none."""


STUDENT = Subsystem(
    "student: from stored audio to model",
    {
        "unlabelled features and targets": Published(7.6 * DAY, "7.6 days"),
        "student": Published(4.5 * DAY, "4.5 days"),
    },
    "12 days",
)
"""The paper's breakdown of the student's pipeline (figure 3)."""


SUBSYSTEMS = (
    STUDENT,
    Subsystem(
        "teacher and storing: in addition",
        {"teacher": Published(2 * DAY, "2 days"), STORING: Published(2 * DAY, "2 days")},
        "4 days",
    ),
    Subsystem(
        "supervised system of 7,000 hours",
        {
            "labelled data and its targets": Published(14 * DAY, "nearly 2 weeks"),
            "baseline": Published(21 * HOUR, "about 21 hours"),
        },
    ),
)
"""All times of the paper (C34, section VIII-B). Of the 4 days for the teacher and the storing, the
teacher takes 2."""


def write_breakdown(run: Run, parts: Mapping[str, Iterable[int]]) -> None:
    """Write `breakdown.html` and `breakdown.json` of the wall times in the stages' markers.

    Args:
      run: the run of the stage.
      parts: numbers of the finished stages of each part, by name of the part. Stages that the
        settings skip are left out, since their markers may come from earlier settings. Parts that
        the paper reports are named as in `SUBSYSTEMS`.
    """
    seconds_by_part = {
        part: sum(_seconds(run, n) for n in stages) for part, stages in parts.items()
    }
    published = {part: t.seconds for s in SUBSYSTEMS for part, t in s.parts.items()}
    record = {"seconds": seconds_by_part, "published_seconds": published}
    write_atomically(run.make("breakdown.json"), json.dumps(record, indent=1) + "\n")
    colours = {part: number for number, part in enumerate(seconds_by_part)}
    texts = {part: duration(seconds) for part, seconds in seconds_by_part.items()}
    of_paper = {part: time.seconds for part, time in STUDENT.parts.items()}
    paper_texts = {part: time.text for part, time in STUDENT.parts.items()}
    total = duration(sum(seconds_by_part.values()))
    run_bar = _bar(f"This run, all parts: {total}", seconds_by_part, texts, colours)
    title = f"The paper, a million hours, the student: {STUDENT.total}"
    paper_bar = _bar(title, of_paper, paper_texts, colours)
    page = Page("Processing time", "Wall time of the parts of the processing.")
    box = macros("parts.html").boxed([run_bar, paper_bar])
    page.add(Section("parts", "Parts", parts=[box, _table(seconds_by_part).html()]))
    write_atomically(run.make("breakdown.html"), page.html())


def _seconds(run: Run, stage: int) -> float:
    """Return the wall time of a stage in seconds."""
    marker = Marker.read(run.need(f"stages/{stage:02d}.json"))
    return 0.0 if marker is None else marker.seconds


def _bar(
    title: str, seconds: Mapping[str, float], texts: Mapping[str, str], colours: Mapping[str, int]
) -> Markup:
    """Return a bar with a piece for each part, and its key.

    Args:
      title: heading, with the total time of all parts.
      seconds: the time of each part.
      texts: the same times for the key.
      colours: index of each part's colour in the page's palette.
    """
    total = sum(seconds.values()) or 1.0
    labels = {
        part: f"{part} {texts[part]} ({100 * s / total:.0f} %)" for part, s in seconds.items()
    }
    pieces = [(f"c{colours[part]}", s / total, labels[part]) for part, s in seconds.items()]
    key = macros("parts.html").key((f"swatch c{colours[p]}", text) for p, text in labels.items())
    return macros("parts.html").stacked_bar(title, pieces, key)


def _table(seconds_by_part: Mapping[str, float]) -> Table:
    """Return the run's times beside those of the paper, and the parts that the paper lacks."""
    rows = []
    for subsystem in SUBSYSTEMS:
        total = sum(seconds_by_part.get(part, 0.0) for part in subsystem.parts)
        heading = subsystem.title, duration(total), subsystem.total
        rows.append(TableRow([Cell(text, best=True) for text in heading]))
        for part, time in subsystem.parts.items():
            seconds = duration(seconds_by_part[part]) if part in seconds_by_part else ""
            rows.append(TableRow([Cell(part), Cell(seconds), Cell(time.text)]))
    reported = {part for subsystem in SUBSYSTEMS for part in subsystem.parts}
    unreported = {
        part: seconds for part, seconds in seconds_by_part.items() if part not in reported
    }
    heading = "other parts", duration(sum(unreported.values())), ""
    rows.append(TableRow([Cell(text, best=True) for text in heading]))
    rows += [TableRow([Cell(part), Cell(duration(s)), Cell("")]) for part, s in unreported.items()]
    return Table(
        "Times beside the paper's",
        [Column("part"), Column("this run"), Column("the paper")],
        rows,
        note="The paper states 12 days for the student; the rounded parts add up to 12.1. Teacher"
        " and storing take 4 more days, 2 of them for the teacher.",
    )
