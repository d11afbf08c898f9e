"""Feature extraction of all splits and of the augmented copies."""

from pathlib import Path

from recipes.steps.data import copies, cuts, has_copies, splits
from toolkit.features.extract import ExtractConfig, extract
from toolkit.features.normalise import estimate_normaliser
from toolkit.features.store import FeatureStore
from toolkit.stages.run import Run


def extract_splits(run: Run, config: ExtractConfig, out: Path, also_copies: bool) -> dict:
    """Extract the features of every split and of the copies, if there are any."""
    hours = {}
    for split in splits(run).all:
        found = extract(cuts(run, split), config, out / split, run.jobs, device=run.device)
        hours[split] = found["hours"]
    if also_copies and has_copies(run):
        found = extract(copies(run), config, out / "copies", run.jobs, device=run.device)
        hours["copies"] = found["hours"]
    return hours


def extract_fbank(run: Run, out: Path) -> dict[str, float]:
    """Extract the networks' features of all splits and copies, and estimate their normaliser."""
    hours = extract_splits(run, run.config.fbank, out, also_copies=True)
    write_normaliser(run, out)
    return {f"hours {split}": found for split, found in hours.items()}


def write_normaliser(run: Run, features: Path) -> None:
    """Estimate the normaliser of a folder of features on its training split."""
    normaliser = estimate_normaliser(FeatureStore(features / "train"), run.config.prior_frames)
    normaliser.save(features / "normaliser.json")
