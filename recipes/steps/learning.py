"""Steps on the unlabelled audio of a recipe: features and teacher's targets from a data lake.

If `storage` is an address such as s3://bucket/folder, the lake is copied there and the steps write
there. Features are copied back to `unlabelled/`, where later stages read them in any order; the
training shards stay at the address and are read from there.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes.steps.data import has_copies, training_features
from recipes.steps.decoding import network_decoder, network_lang
from recipes.steps.farfield import validation
from recipes.steps.networks import DENOMINATOR, phone_sequences, targets, transcribed_phones
from toolkit.align.store import AugmentedAlignments, OffsetAlignments
from toolkit.features.extract import FAILED
from toolkit.features.normalise import Cmvn
from toolkit.features.shards import MANIFEST, SHARDS, FeatureStore, field_file
from toolkit.fsa.denominator import Denominator, make_denominator, phone_ngram
from toolkit.hmm.senones import Senones
from toolkit.pipeline.config import StatsConfig
from toolkit.pipeline.lake import copy_lake
from toolkit.pipeline.markers import rebuild_damaged
from toolkit.pipeline.objects import ObjectStore, filesystem, is_local, local_path
from toolkit.pipeline.prepare import (
    NORMALISER,
    ShardSet,
    make_features,
    make_training_shards,
    open_executor,
)
from toolkit.pipeline.shard_cache import CachedShards
from toolkit.pipeline.shards import SHARD_LIST, read_shards
from toolkit.pipeline.spark import check_spark
from toolkit.pipeline.steps.targets import Teacher
from toolkit.processes import ranks
from toolkit.ssl import scheduled
from toolkit.ssl.recognition import (
    RecognisedPhones,
    recognise_and_align,
    recognise_phones,
    self_labelled,
)
from toolkit.ssl.targets import MANIFEST as TARGETS
from toolkit.ssl.teacher_evaluation import (
    TrainedModel,
    choose_k,
    measure_calibration,
    smallest_sufficient,
)
from toolkit.ssl.unlabelled import ShardFiles
from toolkit.stages.run import Run
from toolkit.storage.digests import digest_bytes
from toolkit.storage.files import link_atomically, write_atomically
from toolkit.train.corpus import Alignments
from toolkit.train.cross_entropy import train_cross_entropy
from toolkit.train.lfmmi import train_lfmmi

ADDRESS = "address.json"
"""File in place of shards in a remote store: their address, and the digest of their list."""


def check_executor(config: Any) -> None:
    """Check that the configured executor can start on this machine, and open the storage."""
    if config.executor.kind == "spark":
        check_spark()
    if config.storage:
        store = config.executor.settings.store
        filesystem(config.storage, store.options, store.timeout)


def prepare_unlabelled(run: Run) -> dict[str, float]:
    """Select records, extract features in a shuffled order, estimate statistics (C16-C19).

    The steps write to `pipeline/`; `unlabelled/` gets the features without the bookkeeping.
    """
    # 1. Where the steps read and write: in the run directory, or below `storage`.
    out, store = run.make("unlabelled"), _store(run)
    lake, folder = str(run.need("rooms/lake")), _place(run, "features")
    if run.config.storage:
        # These folders outlive the stage, and the steps' metadata does not show when the audio has
        # changed.
        content = run.digest("rooms/lake")[:12]
        folder, copy = f"{folder}-{content}", f"{_place(run, 'lake')}-{content}"
        lake = copy_lake(store, lake, copy).url
    config = replace(
        run.config.prepare,
        frontend=run.setting("fbank.frontend"),
        stats=StatsConfig(run.config.prior_frames),
    )
    # 2. Select and shuffle utterances, extract their features, and estimate the statistics.
    with open_executor(run.config.executor, run.jobs) as executor:
        features, _ = make_features(lake, config, executor, store, folder)
    # 3. Bring the features to the run directory.
    if is_local(features.url):
        _link(features, store, out)
    else:
        _fetch(features, store, out)
    return _headline(features)


def label_with_teacher(run: Run, teacher: str, normaliser: Path) -> dict[str, float]:
    """Compute the teacher's targets of all unlabelled audio, and shards for training (C11, C21).

    `teacher_targets/` gets a folder for each offset, with the shards or with their address.

    Args:
      run: the recipe's run.
      teacher: name of the teacher's folder.
      normaliser: the normaliser of the features that the teacher was trained on.

    Returns:
      Of the last offset: the amount of data in the shards, and `tail_mass`, the mean probability
      mass per frame of the logits that are not kept.
    """
    out, store, folder = run.make("teacher_targets"), _store(run), _place(run, "targets")
    config, unlabelled = run.config.targets, run.need("unlabelled")
    # Features lie in the run directory, or in the remote storage that the address names.
    url = _address(unlabelled) if (unlabelled / ADDRESS).exists() else str(unlabelled)
    features = ShardSet(url, read_shards(store, url), ())
    place = _place(run, "teacher") if run.config.storage else None
    model = Teacher.at(store, run.need(teacher), normaliser, place)
    steps = config, run.config.repartition, run.setting("fbank.frontend")
    with open_executor(run.config.executor, run.jobs, run.device) as executor:
        shards = make_training_shards(features, model, *steps, executor, store, folder)
        # A set of shards for each offset of the subsampling: the teacher scores one frame in three.
        for done, (offset, shard_set) in enumerate(shards, 1):
            if is_local(shard_set.url):
                _link(shard_set, store, out / f"{offset}")
            else:
                _name(shard_set, store, out / f"{offset}")
            run.progress(done, len(config.offsets))
    manifest = json.loads(store.get(f"{shard_set.url}/{TARGETS}"))
    return _headline(shard_set) | {"tail_mass": manifest["tail_mass"]}


def training_shards(run: Run) -> list[Path | ShardFiles]:
    """Return the shards with features and teacher's targets, one set for each offset."""
    shard_sets: list[Path | ShardFiles] = []
    for offset in run.setting("targets.offsets"):
        folder = run.need(f"teacher_targets/{offset}")
        if not (folder / ADDRESS).exists():
            shard_sets.append(folder)
            continue
        cache = run.config.cache.folder or _user_cache()
        shard_sets.append(CachedShards(_address(folder), _store(run), cache, run.config.cache))
    return shard_sets


def _place(run: Run, name: str) -> str:
    """Return where the pipeline's steps write `name`: a folder, or an address in `storage`."""
    storage = run.config.storage
    if not storage:
        return str(run.make(f"pipeline/{name}"))
    # Absolute: the address is read again in other runs, from other working directories.
    if is_local(storage):
        storage = os.path.abspath(local_path(storage))
    return f"{storage.rstrip('/')}/{name}"


def _user_cache() -> Path:
    """Return the folder of cached shards in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return cache / "asr-recipe-toolkit" / "shards"


def _link(shards: ShardSet, store: ObjectStore, out: Path) -> None:
    """Hard-link a set of shards into a folder, without the pipeline's bookkeeping.

    Stages that read the folder thus depend neither on the executor nor on interruptions.
    """
    root = Path(shards.url)
    # Files that begin with "_" are the executor's bookkeeping.
    manifests = [path for path in root.iterdir() if path.is_file() and path.name[0] != "_"]
    listed = [ref for shard in read_shards(store, shards.url) for ref in shard.inputs]
    for path in [*manifests, *(Path(ref.path) for ref in listed)]:
        link_atomically(path, out / path.relative_to(root))


def _name(shards: ShardSet, store: ObjectStore, out: Path) -> None:
    """Write the address of a set of shards into a folder, in place of the shards."""
    address = {"url": shards.url, "list": digest_bytes(store.get(f"{shards.url}/{SHARD_LIST}"))}
    write_atomically(out / ADDRESS, json.dumps(address, indent=1) + "\n")


def _address(folder: Path) -> str:
    """Read the address that `_name` wrote."""
    return json.loads((folder / ADDRESS).read_text(encoding="utf-8"))["url"]


def _fetch(shards: ShardSet, store: ObjectStore, out: Path) -> None:
    """Copy a set of features into a folder, as `FeatureStore` opens it, and note its address."""
    _name(shards, store, out)
    for name in (NORMALISER, MANIFEST, FAILED):
        write_atomically(out / name, store.get(f"{shards.url}/{name}"))
    with rebuild_damaged(store):
        for shard in read_shards(store, shards.url):
            for field, ref in shard.objects.items():
                write_atomically(out / SHARDS / field_file(field, shard.index), store.get(ref))


def _store(run: Run) -> ObjectStore:
    """Return the object store with the configured settings."""
    return ObjectStore(run.config.executor.settings.store)


def _headline(shards: ShardSet) -> dict[str, float]:
    """Return the hours, utterances, shards and losses of a set of shards."""
    return {
        "hours": sum(shard.hours for shard in shards.shards),
        "utterances": sum(shard.utterances for shard in shards.shards),
        "shards": len(shards.shards),
        "lost": len(shards.failures),
    }


def student_normaliser(run: Run) -> Path:
    """Return the normaliser of the student's input, that of the unlabelled features (C19)."""
    return run.need("unlabelled/normaliser.json")


def measure_teacher(run: Run, teacher: str, student: str, aligner: str) -> dict[str, float]:
    """Measure the calibration of the teacher's posteriors, and the cost of keeping only k logits.

    Args:
      run: the run of the stage.
      teacher: name of the teacher.
      student: name of a network of the student's size, trained on labelled data.
      aligner: the GMM system that has aligned val.
    """
    normaliser = run.need("fbank/normaliser.json")
    models = [
        TrainedModel(run.need(system), normaliser, run.device) for system in (teacher, student)
    ]
    features, alignments = validation(run, aligner)
    out = run.make("teacher_evaluation")
    calibration = measure_calibration(
        models[0], features.path, alignments, run.config.calibration, out / "calibration"
    )
    first, second = models
    unlabelled, settings = run.need("unlabelled"), run.config.choice_of_k
    rows = choose_k(first, second, unlabelled, settings, out / "choice_of_k")
    headline_names = ("frame_accuracy", "ece", "temperature")
    return {name: calibration[name] for name in headline_names} | {
        "sufficient k": smallest_sufficient(rows)
    }


def labelled_speech(
    run: Run, aligner: str, baseline: str
) -> tuple[list[FeatureStore], list[Alignments]]:
    """Return the baseline's training data: features of labelled speech and its copies, and targets.

    Args:
      run: the run of the stage.
      aligner: the GMM system that has aligned the speech.
      baseline: the network whose last alignments are the targets, if `align.rounds` has it realign
        the speech (C4).
    """
    alignments, rounds = targets(run, aligner), run.setting("align.rounds")
    if rounds:
        last = run.need(f"{baseline}/rounds/{rounds - 1}")
        alignments = OffsetAlignments.open(last, Senones.load(run.need("senones")))
    train = FeatureStore(run.need("fbank/train"))
    if not has_copies(run):
        return [train], [alignments]
    copies = FeatureStore(run.need("fbank/copies"))
    return [train, copies], [alignments, AugmentedAlignments(alignments, copies)]


def train_teacher(run: Run, system: str, aligner: str, baseline: str) -> dict[str, float]:
    """Train a teacher with cross entropy on the baseline's features and targets (C9).

    The teacher does not realign: with `align.rounds`, its targets are the last alignments of the
    baseline, like the targets of the student's labelled data.

    Args:
      run: the run of the stage.
      system: name of the teacher.
      aligner: the GMM system that has aligned the speech.
      baseline: the network that realigns it, see `labelled_speech`.
    """
    features, alignments = labelled_speech(run, aligner, baseline)
    return train_cross_entropy(
        features,
        alignments,
        Cmvn.load(run.need("fbank/normaliser.json")),
        run.config.teacher,
        Senones.load(run.need("senones")).num_pdfs,
        run.make(system),
        run.device,
        run.progress,
        valid=validation(run, aligner),
    )


def train_student(run: Run, system: str, aligner: str, baseline: str) -> dict[str, float]:
    """Train a student on the teacher's targets and on labelled data in turn (C12)."""
    features, alignments = labelled_speech(run, aligner, baseline)
    return scheduled.train_student(
        unlabelled=training_shards(run),
        features=features,
        alignments=alignments,
        normaliser=Cmvn.load(student_normaliser(run)),
        config=run.config.student,
        num_targets=Senones.load(run.need("senones")).num_pdfs,
        out=run.make(system),
        device=run.device,
        progress=run.progress,
        valid=validation(run, aligner),
    )


def recognise_unlabelled(run: Run, teacher: str) -> dict[str, float]:
    """Recognise the unlabelled data with the teacher; keep the most confident utterances (C13)."""
    return recognise_and_align(
        model=run.need(teacher),
        normaliser=run.need("fbank/normaliser.json"),
        features=run.need("unlabelled"),
        decoder=network_decoder(run),
        tuned=run.need(f"decode/{teacher}/tuned.json"),
        lang=run.need("lang"),
        senones=Senones.load(run.need("senones")),
        config=run.config.self_training,
        out=run.make("recognised"),
        jobs=run.jobs,
        progress=run.progress,
        device=run.device,
    )


def train_on_recognised(run: Run, system: str, aligner: str, baseline: str) -> dict[str, float]:
    """Train a network of the student's size on labelled and recognised utterances (C13)."""
    senones = Senones.load(run.need("senones"))
    features, alignments = labelled_speech(run, aligner, baseline)
    store, recognised = self_labelled(run.need("unlabelled"), run.need("recognised"), senones)
    return train_cross_entropy(
        [*features, store],
        [*alignments, recognised],
        Cmvn.load(student_normaliser(run)),
        run.config.self_trained,
        senones.num_pdfs,
        run.make(system),
        run.device,
        run.progress,
        valid=validation(run, aligner),
    )


def recognise_for_chain(run: Run, teacher: str) -> dict[str, float]:
    """Recognise the unlabelled speech with a network that was trained with LF-MMI (C13)."""
    return recognise_phones(
        model=run.need(teacher),
        normaliser=run.need("fbank/normaliser.json"),
        features=run.need("unlabelled"),
        decoder=network_decoder(run, f"{teacher}/graphs"),
        tuned=run.need(f"decode/{teacher}/tuned.json"),
        lang=network_lang(run),
        senones=Senones.load(run.need(f"{teacher}/graphs")),
        config=run.config.recognised_phones,
        out=run.make("recognised_phones"),
        jobs=run.jobs,
        progress=run.progress,
        device=run.device,
    )


def train_on_recognised_phones(
    run: Run, system: str, teacher: str, aligner: str
) -> dict[str, float]:
    """Train a network with LF-MMI on transcribed and recognised speech, on the teacher's senones.

    The denominator is estimated on the phones of both; a recognised utterance contributes its
    likeliest phones.

    Args:
      run: the run of the stage.
      system: name of the network.
      teacher: the network that has recognised.
      aligner: the GMM system that has aligned the transcribed speech.
    """
    # 1. Transcribed speech: phones of its alignments. Recognised speech: phone sequences sampled
    # from the teacher's lattices.
    out, features = run.make(system), training_features(run, "fbank")
    stores, phones = transcribed_phones(run, aligner, features)
    store = FeatureStore(run.need("unlabelled"))
    samples = run.setting("recognised_phones.samples")
    recognised = RecognisedPhones(run.need("recognised_phones"), store, samples)
    senones = Senones.load(run.need(f"{teacher}/graphs"))

    # 2. The denominator, once for all ranks.
    def write_denominator() -> None:
        if not (out / DENOMINATOR).exists():
            likeliest = (recognised.load(name).times[0] for name in recognised.ids)
            sentences = [
                *phone_sequences(phones[0]),
                *(times.phones.tolist() for times in likeliest),
            ]
            ngram = phone_ngram(sentences, run.config.lfmmi_student.ngram)
            make_denominator(ngram, senones).save(out / DENOMINATOR)

    ranks.on_rank_zero(write_denominator)
    return train_lfmmi(
        [*stores, store],
        [*phones, recognised],
        senones,
        Denominator.load(out / DENOMINATOR),
        Cmvn.load(student_normaliser(run)),
        run.config.lfmmi_student,
        out,
        run.device,
        run.progress,
    )
