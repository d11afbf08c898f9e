"""Feature extraction of all splits and of the augmented copies."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from lhotse import MonoCut

from recipes.steps.data import copies, cuts, has_copies, splits
from toolkit.corpus.manifest import text_of
from toolkit.features.config import ExtractConfig
from toolkit.features.extract import extract
from toolkit.features.normalise import Scope, estimate_normaliser
from toolkit.features.shards import FeatureStore
from toolkit.kaldi.feature_dir import KaldiFormat, feature_dimension
from toolkit.stages.run import Run
from toolkit.storage.files import link_or_copy
from toolkit.storage.words import split_words


def extract_splits(run: Run, config: ExtractConfig, out: Path, also_copies: bool) -> dict:
    """Extract the features of every split and of the copies, if there are any."""
    hours = {}
    for split in splits(run).all:
        hours[split] = extract_changed(run, cuts(run, split), config, out, split)
    if also_copies and has_copies(run):
        hours["copies"] = extract_changed(run, copies(run), config, out, "copies", "train")
    return hours


def extract_changed(
    run: Run,
    utterances: Iterable[MonoCut],
    config: ExtractConfig,
    out: Path,
    name: str,
    split: str | None = None,
) -> float:
    """Extract features; shards whose utterances and audio are as before are taken over.

    Args:
      run: the run of the stage.
      utterances: what to extract features of.
      config: front end and size of shards.
      out: what `run.make` has returned.
      name: the folder in `out`.
      split: whose manifest names the utterances' audio; None: `name`.

    Returns:
      Hours of audio.
    """
    audio, folder = run.need_audio(f"data/{split or name}.jsonl"), out / name
    before = run.previous(out)
    previous = before / name if before else None
    changed = {"audio": audio, "previous": previous, "device": run.device}
    return extract(utterances, config, folder, run.jobs, **changed)["hours"]


def extract_fbank(run: Run, out: Path) -> dict[str, float]:
    """Extract the networks' features of all splits and copies, and estimate their normaliser."""
    hours = extract_splits(run, run.config.fbank, out, also_copies=True)
    write_normaliser(run, out)
    return {f"hours {split}": found for split, found in hours.items()}


def import_kaldi_features(run: Run, plp: Path, fbank: Path) -> dict[str, float]:
    """Copy the features of a Kaldi corpus for the GMMs and the networks, with links where possible.

    Args:
      run: the run of the stage.
      plp: the folder of the GMMs' features, what `run.make` has returned.
      fbank: likewise, of the networks' features.

    Returns:
      Hours of speech by split, and the number of values per frame.
    """
    shards = ExtractConfig(
        hours_per_shard=run.setting("fbank.hours_per_shard"),
        max_failed_share=run.setting("fbank.max_failed_share"),
    )
    previous = run.previous(plp)
    form = KaldiFormat(feature_dimension(cuts(run, splits(run).train)[0]))
    headline: dict[str, float] = {}
    for split in splits(run).all:
        headline[f"hours {split}"] = extract(
            cuts(run, split),
            shards,
            plp / split,
            run.jobs,
            audio=run.need_audio(f"data/{split}.jsonl"),
            previous=previous / split if previous else None,
            imported=form,
        )["hours"]
        shutil.rmtree(fbank / split, ignore_errors=True)
        shutil.copytree(plp / split, fbank / split, copy_function=link_or_copy)
    write_normaliser(run, fbank)
    return headline | {"dimension": form.dimension}


def training_features(run: Run, name: str) -> Path:
    """Return a folder of features, of which the stage reads what a network is trained on.

    That is the training split, its augmented copies and the normaliser; the training does not
    depend on the other splits.

    Args:
      run: the run of the stage.
      name: the folder, such as `fbank`.
    """
    if has_copies(run):
        run.need(f"{name}/copies")
    run.need(f"{name}/normaliser.json")
    return run.need(f"{name}/train").parent


def decoded_features(run: Run, name: str) -> Path:
    """Return a folder of features, of which the stage reads the decoded splits and the normaliser.

    Args:
      run: the run of the stage.
      name: the folder, such as `fbank`.
    """
    for split in splits(run).decoded:
        run.need(f"{name}/{split}")
    return run.need(f"{name}/normaliser.json").parent


def transcripts(utterances: Iterable[MonoCut], features: Path) -> dict[str, list[str]]:
    """Return the words of the utterances that have features, in the given order.

    Those that failed are told of when the features are extracted, and are left out here.
    """
    store = FeatureStore(features)
    return {cut.id: split_words(text_of(cut)) for cut in utterances if cut.id in store}


def write_normaliser(run: Run, features: Path, scope: Scope | None = None) -> None:
    """Estimate the normaliser of a folder of features on its training split.

    Args:
      run: the run of the stage.
      features: the folder.
      scope: what a frame is normalised with; None: the setting `normalisation`.
    """
    store, config = FeatureStore(features / "train"), run.config
    normaliser = estimate_normaliser(store, config.prior_frames, scope or config.normalisation)
    normaliser.save(features / "normaliser.json")
