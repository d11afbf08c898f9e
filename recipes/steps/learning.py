"""Learning from unlabelled speech: teacher-student learning and self-training (C10 to C13)."""

from pathlib import Path

from recipes.steps.data import has_copies
from recipes.steps.farfield import validation
from recipes.steps.network import network_decoder, targets
from recipes.steps.unlabelled import training_shards
from toolkit.align.store import AugmentedAlignments, OffsetAlignments
from toolkit.features.normalise import Normaliser
from toolkit.features.shards import FeatureStore
from toolkit.hmm.senones import Senones
from toolkit.ssl import scheduled
from toolkit.ssl.recognition import recognise_and_align, self_labelled
from toolkit.ssl.teacher_evaluation import (
    TrainedModel,
    choose_k,
    measure_calibration,
    smallest_sufficient,
)
from toolkit.stages.run import Run
from toolkit.train.corpus import Alignments
from toolkit.train.cross_entropy import train_cross_entropy


def student_normaliser(run: Run) -> Path:
    """Return the normaliser of the student's input, that of the unlabelled features (C19)."""
    return run.need("unlabelled/normaliser.json")


def measure_teacher(run: Run, teacher: str, student: str, aligner: str) -> dict[str, float]:
    """Measure the calibration of the teacher's posteriors, and the loss of keeping only k logits.

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
    out = run.make("teacher_judged")
    found = measure_calibration(
        models[0], features.path, alignments, run.config.calibration, out / "calibration"
    )
    first, second = models
    unlabelled, settings = run.need("unlabelled"), run.config.choice_of_k
    rows = choose_k(first, second, unlabelled, settings, out / "choice_of_k")
    shown = ("frame_accuracy", "ece", "temperature")
    return {name: found[name] for name in shown} | {"sufficient k": smallest_sufficient(rows)}


def labelled_speech(
    run: Run, aligner: str, baseline: str
) -> tuple[list[FeatureStore], list[Alignments]]:
    """Return the baseline's training data: features of the labelled speech and its copies, targets.

    Args:
      run: the run of the stage.
      aligner: the GMM system that has aligned the speech.
      baseline: the network whose last alignments are the targets, if `align.rounds` has it realign
        the speech (C4).
    """
    found, rounds = targets(run, aligner), run.setting("align.rounds")
    if rounds:
        last = run.need(f"{baseline}/rounds/{rounds - 1}")
        found = OffsetAlignments.open(last, Senones.load(run.need("senones")))
    train = FeatureStore(run.need("fbank/train"))
    if not has_copies(run):
        return [train], [found]
    copies = FeatureStore(run.need("fbank/copies"))
    return [train, copies], [found, AugmentedAlignments(found, copies)]


def train_teacher(run: Run, system: str, aligner: str, baseline: str) -> dict[str, float]:
    """Train a teacher with cross entropy on the baseline's features and targets (C9).

    The teacher realigns nothing itself: with `align.rounds` its targets are the last alignments of
    the baseline, as those of the student's labelled data.

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
        Normaliser.load(run.need("fbank/normaliser.json")),
        run.config.teacher,
        Senones.load(run.need("senones")).num_pdfs,
        run.make(system),
        run.device,
        run.progress,
        valid=validation(run, aligner),
    )


def train_student(run: Run, system: str, aligner: str, baseline: str) -> dict[str, float]:
    """Train a student on the teacher's targets and on labelled data in alternation (C12)."""
    features, alignments = labelled_speech(run, aligner, baseline)
    return scheduled.train_student(
        unlabelled=training_shards(run),
        features=features,
        alignments=alignments,
        normaliser=Normaliser.load(student_normaliser(run)),
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
    store, found = self_labelled(run.need("unlabelled"), run.need("recognised"), senones)
    return train_cross_entropy(
        [*features, store],
        [*alignments, found],
        Normaliser.load(student_normaliser(run)),
        run.config.self_trained,
        senones.num_pdfs,
        run.make(system),
        run.device,
        run.progress,
        valid=validation(run, aligner),
    )
