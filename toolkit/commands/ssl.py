"""The command `toolkit ssl`."""

from dataclasses import asdict
from pathlib import Path

import click

from toolkit.config.click_types import AS_JSON, FILE, FOLDER, print_json


@click.group()
def ssl() -> None:
    """Evaluate the teacher of semi-supervised training.

    \b
    Example:
      toolkit ssl choose-k --teacher exp/demo/teacher --student exp/demo/baseline \\
        --teacher-normaliser exp/demo/fbank/normaliser.json \\
        --features exp/demo/fbank/val --out exp/demo/choice_of_k
    """


@ssl.command("choose-k")
@click.option("--teacher", type=FILE, required=True, help="Folder of the teacher model.")
@click.option(
    "--teacher-normaliser",
    type=FILE,
    required=True,
    help="normaliser.json of the teacher's features.",
)
@click.option(
    "--student",
    type=FILE,
    required=True,
    help="Folder of a model with the student's architecture. Only its output layer is trained.",
)
@click.option(
    "--student-normaliser",
    type=FILE,
    help="normaliser.json of the student's features; default: the teacher's.",
)
@click.option("--features", type=FILE, required=True, help="Feature folder of unlabelled audio.")
@click.option(
    "--k",
    "ks",
    type=click.IntRange(1),
    multiple=True,
    help="Number of logits to try; may be repeated. Default: 1, 2, 5, 10, 20 and 50.",
)
@click.option(
    "--utterances",
    type=click.IntRange(2),
    default=100,
    show_default=True,
    help="Number of utterances to use.",
)
@click.option("--out", type=FOLDER, required=True, help="Output folder for the table and the plot.")
@AS_JSON
def choose_k(
    teacher: Path,
    teacher_normaliser: Path,
    student: Path,
    student_normaliser: Path | None,
    features: Path,
    ks: tuple[int, ...],
    utterances: int,
    out: Path,
    as_json: bool,
) -> None:
    """Find how many of the teacher's logits to store.

    The targets of a frame are the teacher's k highest logits. For each k the command trains the
    student's output layer on these targets. Prints a table with these columns, and writes
    choice_of_k.tsv, .json and .png to the folder --out:

    \b
      MB/hour    size of the targets in MB per hour of audio
      tail mass  probability mass that is not stored
      error      total variation distance between the teacher's posteriors and
                 those that are rebuilt from the targets
      loss       loss of the student against the teacher's full posteriors
      change     change of this loss relative to training on all logits

    \b
    Example:
      toolkit ssl choose-k --teacher exp/demo/teacher --student exp/demo/baseline \\
        --teacher-normaliser exp/demo/fbank/normaliser.json \\
        --features exp/demo/fbank/val --out exp/demo/choice_of_k
    """
    from toolkit.ssl.config import ChoiceConfig
    from toolkit.ssl.teacher_evaluation import TrainedModel, smallest_sufficient, table
    from toolkit.ssl.teacher_evaluation import choose_k as choose

    config = ChoiceConfig(ks or ChoiceConfig().ks, utterances)
    # Teacher and student see the same audio; only the normaliser of their features may differ.
    models = (
        TrainedModel(teacher, teacher_normaliser),
        TrainedModel(student, student_normaliser or teacher_normaliser),
    )
    rows = choose(*models, features, config, out)
    enough = smallest_sufficient(rows)
    if as_json:
        print_json({"rows": [asdict(row) for row in rows], "smallest_sufficient": enough})
        return
    for line in table(rows):
        click.echo(line)
    click.echo(
        f"With k = {enough} or more, the loss differs by less than 1 % from training on all logits."
    )


@ssl.command()
@click.option("--teacher", type=FILE, required=True, help="Folder of the teacher model.")
@click.option(
    "--normaliser", type=FILE, required=True, help="normaliser.json of the teacher's features."
)
@click.option("--features", type=FILE, required=True, help="Feature folder of held-out data.")
@click.option(
    "--alignments",
    type=FILE,
    required=True,
    help="Folder with alignments of the same utterances, at a frame shift of 10 ms.",
)
@click.option(
    "--topology",
    type=FILE,
    required=True,
    help="topology.json of the GMM system that made the alignments.",
)
@click.option("--senones", type=FILE, required=True, help="Folder of the teacher's senones.")
@click.option(
    "--utterances",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    help="Number of utterances to use.",
)
@click.option("--out", type=FOLDER, required=True, help="Output folder for results and diagram.")
@AS_JSON
def calibration(
    teacher: Path,
    normaliser: Path,
    features: Path,
    alignments: Path,
    topology: Path,
    senones: Path,
    utterances: int,
    out: Path,
    as_json: bool,
) -> None:
    """Measure how well a teacher's posteriors are calibrated.

    Compares the teacher's posteriors on held-out data with alignments of these data. Prints frame
    accuracy, the expected calibration error, the negative log-likelihood per frame, and the
    temperature that minimises the negative log-likelihood. Writes calibration.json and a
    reliability diagram, reliability.png, to the folder --out.

    \b
    Example:
      toolkit ssl calibration --teacher exp/demo/teacher --senones exp/demo/senones \\
        --normaliser exp/demo/fbank/normaliser.json --features exp/demo/fbank/val \\
        --alignments exp/demo/ali_val --topology exp/demo/tri/topology.json \\
        --out exp/demo/calibration
    """
    from toolkit.align.store import AlignmentStore, LowRateAlignments
    from toolkit.hmm.senones import Senones
    from toolkit.hmm.topology import Topology
    from toolkit.ssl.config import CalibrationConfig
    from toolkit.ssl.teacher_evaluation import TrainedModel, measure_calibration

    # The teacher has a lower frame rate and fewer states: alignments at 10 ms become its senones.
    targets = LowRateAlignments(
        AlignmentStore(alignments), Topology.load(topology), Senones.load(senones)
    )
    config = CalibrationConfig(utterances)
    measures = measure_calibration(
        TrainedModel(teacher, normaliser), features, targets, config, out
    )
    if as_json:
        print_json(measures)
        return
    for name, value in measures.items():
        click.echo(f"{name.replace('_', ' '):<20} {value:.6g}")
