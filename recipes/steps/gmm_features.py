"""LDA + MLLT and speaker-adapted features of the GMM systems, as input of networks."""

from collections.abc import Mapping
from pathlib import Path

from recipes.steps.data import copies, has_copies, splits
from recipes.steps.features import transcripts, write_normaliser
from recipes.steps.gmm import estimate_transforms
from toolkit.align.gmm.features import write_gmm_features
from toolkit.align.gmm.system import GmmSystem
from toolkit.features.gmm_features import load_transforms
from toolkit.features.normalise import Scope
from toolkit.stages.run import Run


def write_adapted(run: Run, adapted: str, independent: str, out: Path) -> None:
    """Write the speaker-adapted features of the training data, its copies and decoded splits."""
    if _written(out):
        return
    transforms = {"train": run.need(adapted) / "fmllr.safetensors"}
    transforms |= {s: run.need(f"fmllr/{s}.safetensors") for s in splits(run).decoded}
    if has_copies(run):
        transforms["copies"] = out / "copies.safetensors"
        words = transcripts(copies(run), run.need("plp/copies"))
        estimate_transforms(run, adapted, independent, "copies", words, transforms["copies"])
    # Their transforms have taken each speaker's mean away; a running one would hold what was said.
    _write_features(run, adapted, transforms, out, scope="global")


def write_independent(run: Run, independent: str, out: Path) -> None:
    """Write the LDA + MLLT features of the training data, its copies and decoded splits."""
    if not _written(out):
        parts = ["train", *splits(run).decoded, *(["copies"] if has_copies(run) else [])]
        _write_features(run, independent, dict.fromkeys(parts), out)


def _written(features: Path) -> bool:
    """Whether an interrupted run has written all features; the normaliser is written last."""
    return (features / "normaliser.json").exists()


def _write_features(
    run: Run,
    system: str,
    transforms: Mapping[str, Path | None],
    out: Path,
    scope: Scope | None = None,
) -> None:
    for part, path in transforms.items():
        found = GmmSystem.load(run.need(system), run.need(f"plp/{part}"))
        found = found.adapted(load_transforms(path)) if path else found
        write_gmm_features(found, out / part, run.jobs)
    write_normaliser(run, out, scope)
