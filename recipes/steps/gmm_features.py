"""LDA + MLLT and speaker-adapted features of the GMM systems, as input of networks."""

from collections.abc import Mapping
from pathlib import Path

from recipes.steps.data import copies, has_copies, splits
from recipes.steps.features import transcripts, write_normaliser
from recipes.steps.gmm import estimate_transforms
from toolkit.features.gmm_features import load_transforms
from toolkit.hmm.gmm_system import GmmSystem, write_gmm_features
from toolkit.processes import ranks
from toolkit.stages.run import Run


def write_adapted(run: Run, adapted: str, independent: str) -> Path:
    """Write the speaker-adapted features of the training data and its copies; return the folder."""
    out = _training_folder(run, "adapted")
    transforms: dict[str, Path | None] = {"train": run.need(adapted) / "fmllr.safetensors"}
    of_copies = run.make("adapted/copies.safetensors") if has_copies(run) else None

    def write() -> None:
        if _written(out):
            return
        if of_copies is not None:
            words = transcripts(copies(run), run.need("plp/copies"))
            estimate_transforms(run, adapted, independent, "copies", words, of_copies)
            transforms["copies"] = of_copies
        _write_features(run, adapted, transforms, out)
        # The transforms remove each speaker's mean; a running mean would depend on the words.
        write_normaliser(run, out, "global")

    ranks.on_rank_zero(write)
    return out


def write_adapted_decoded(run: Run, adapted: str) -> Path:
    """Write the speaker-adapted features of the decoded splits; return the folder.

    Their transforms are estimated on hypotheses and so depend on the n-gram model; those of the
    training data do not.
    """
    transforms = {s: run.need(f"fmllr/{s}.safetensors") for s in splits(run).decoded}
    return _write_decoded(run, "adapted", adapted, transforms)


def write_independent(run: Run, independent: str) -> Path:
    """Write the LDA + MLLT features of the training data and its copies; return the folder."""
    out = _training_folder(run, "independent")

    def write() -> None:
        if not _written(out):
            parts = ["train", *(["copies"] if has_copies(run) else [])]
            _write_features(run, independent, dict.fromkeys(parts), out)
            write_normaliser(run, out)

    ranks.on_rank_zero(write)
    return out


def write_independent_decoded(run: Run, independent: str) -> Path:
    """Write the LDA + MLLT features of the decoded splits; return the folder."""
    return _write_decoded(run, "independent", independent, dict.fromkeys(splits(run).decoded))


def _training_folder(run: Run, name: str) -> Path:
    """Declare the features of the training data as outputs; return the folder to write them to."""
    for part in ("normaliser.json", *(["copies"] if has_copies(run) else [])):
        run.make(f"{name}/{part}")
    return run.make(f"{name}/train").parent


def _write_decoded(run: Run, name: str, system: str, transforms: Mapping[str, Path | None]) -> Path:
    folders = [run.make(f"{name}/{split}") for split in transforms]
    _write_features(run, system, transforms, folders[0].parent)
    return folders[0].parent


def _written(features: Path) -> bool:
    """Whether an interrupted run has written all features; the normaliser is written last."""
    return (features / "normaliser.json").exists()


def _write_features(
    run: Run, system: str, transforms: Mapping[str, Path | None], out: Path
) -> None:
    for part, path in transforms.items():
        found = GmmSystem.load(run.need(system), run.need(f"plp/{part}"))
        found = found.adapted(load_transforms(path)) if path else found
        write_gmm_features(found, out / part, run.jobs)
