"""Data steps of the far-field recipe: room simulation, manifests, features, decoding."""

from pathlib import Path

from local.farfield import sets as farfield_sets
from local.farfield.cuts import CLEAN_SETS
from recipes.steps.data import cuts, hybrid_policy, need_user_files, read_corpus, write_transcripts
from recipes.steps.features import decoded_features, extract_changed, extract_fbank
from recipes.steps.gmm import align_system
from recipes.steps.network import decode_network, targets
from recipes.steps.placements import PLACEMENTS
from toolkit.align.store import LowRateAlignments
from toolkit.corpus.manifest import read_cuts, write_cuts
from toolkit.corpus.split_names import Splits
from toolkit.features.shards import FeatureStore
from toolkit.stages.run import Run
from toolkit.storage.paths import path_below


def make_rooms(run: Run) -> dict[str, float]:
    """Simulate the far-field sets from the clean corpus."""
    need_user_files(run, run.config.rooms.noise, run.config.rooms.responses)
    clean, out = read_corpus(run), run.make("rooms")
    return farfield_sets.make_farfield(clean, run.config.rooms, out, run.jobs, run.progress)


def write_manifests(run: Run) -> dict[str, float]:
    """Write a manifest per set, and the roles of the sets."""
    policy = hybrid_policy(run)
    sets, data = farfield_sets.manifests(run.need("rooms")), run.make("data")
    write_transcripts(sets, policy)
    for name, found in sets.items():
        write_cuts(found, path_below(data, f"{name}.jsonl"))
    Splits("train", ("val",), PLACEMENTS).save(data / "splits.json")
    return {name: len(found) for name, found in sets.items()}


def extract_features(run: Run) -> dict[str, float]:
    """Extract features of all sets with transcripts, and of the clean twins of train and val."""
    plp, fbank = run.make("plp"), run.make("fbank")
    for split, twins in CLEAN_SETS.items():
        kept = {cut.id for cut in cuts(run, split)}
        found = [cut for cut in read_cuts(run.need(f"data/{twins}.jsonl")) if cut.id in kept]
        extract_changed(run, found, run.config.cepstra, plp, twins)
    return extract_fbank(run, fbank)


def align_twins(run: Run, system: str) -> dict[str, float]:
    """Align the clean twins of train and val; the far-field utterances have the same frames."""
    align_system(run, system, "val-clean", "ali_val")
    return align_system(run, system, "clean")


def validation(run: Run, system: str) -> tuple[FeatureStore, LowRateAlignments]:
    """Return far-field features of val and senones of its clean twins (C32: frame accuracy)."""
    return FeatureStore(run.need("fbank/val")), targets(run, system, "ali_val")


def decode_systems(run: Run, *systems: str, normaliser: Path | None = None) -> dict[str, float]:
    """Decode every set with networks, by default with the normaliser of `fbank`."""
    features, found = decoded_features(run, "fbank"), {}
    for system in systems:
        errors = decode_network(run, system, features, normaliser)
        found |= {f"{system} {name}": number for name, number in errors.items()}
    return found
