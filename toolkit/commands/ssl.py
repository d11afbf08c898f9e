"""`toolkit ssl`."""

from pathlib import Path

import click

from toolkit.config.parameters import FILE


@click.group()
def ssl() -> None:
    """Look into a teacher's targets for unlabelled data.

    \b
    Example:
      toolkit ssl choose-k --teacher exp/demo/teacher --teacher-normaliser fbank/normaliser.json
    """


@ssl.command("choose-k")
@click.option("--teacher", type=FILE, required=True, help="Folder of the teacher.")
@click.option("--teacher-normaliser", type=FILE, required=True, help="Of its features.")
@click.option("--student", type=FILE, required=True, help="Folder of any model of its kind.")
@click.option("--student-normaliser", type=FILE, help="By default the teacher's.")
@click.option("--features", type=FILE, required=True, help="Store of unlabelled features.")
@click.option("--k", "ks", type=click.IntRange(1), multiple=True, help="To try; may be repeated.")
@click.option("--utterances", type=click.IntRange(2), default=100, show_default=True)
@click.option("--out", type=FILE, required=True, help="Folder of table and figure.")
def choose_k(
    teacher: Path,
    teacher_normaliser: Path,
    student: Path,
    student_normaliser: Path | None,
    features: Path,
    ks: tuple[int, ...],
    utterances: int,
    out: Path,
) -> None:
    """Show what k best logits cost and lose (C11).

    Of a teacher's logits only the k highest are stored. Prints, for each k: MB per hour of audio in
    the files that hold the targets; the probability that is not stored; the total variation between
    the rebuilt posteriors and the teacher's; the loss, against the teacher's full posteriors, of a
    student whose output layer has learnt from the k best, and its change against learning from all.
    --out gets the table as choice_of_k.tsv and .json, and choice_of_k.png.

    \b
    Example:
      toolkit ssl choose-k --teacher exp/demo/teacher --student exp/demo/baseline \\
        --teacher-normaliser exp/demo/fbank/normaliser.json \\
        --features exp/demo/fbank/val --out exp/demo/choice_of_k
    """
    from toolkit.ssl.choice_of_k import ChoiceConfig, smallest_sufficient, table
    from toolkit.ssl.choice_of_k import choose_k as choose
    from toolkit.ssl.judged import Judge

    config = ChoiceConfig(ks or ChoiceConfig().ks, utterances)
    judges = (
        Judge(teacher, teacher_normaliser),
        Judge(student, student_normaliser or teacher_normaliser),
    )
    rows = choose(*judges, features, config, out)
    for line in table(rows):
        click.echo(line)
    click.echo(f"From k = {smallest_sufficient(rows)} on the loss changes by less than 1 %.")


@ssl.command()
@click.option("--teacher", type=FILE, required=True, help="Folder of the teacher.")
@click.option("--normaliser", type=FILE, required=True, help="Of its features.")
@click.option("--features", type=FILE, required=True, help="Store of held-out features.")
@click.option("--alignments", type=FILE, required=True, help="Of these, every 10 ms.")
@click.option("--topology", type=FILE, required=True, help="topology.json of who aligned.")
@click.option("--senones", type=FILE, required=True, help="Folder of the teacher's senones.")
@click.option("--utterances", type=click.IntRange(1), default=500, show_default=True)
@click.option("--out", type=FILE, required=True, help="Folder of figures and diagram.")
def calibration(
    teacher: Path,
    normaliser: Path,
    features: Path,
    alignments: Path,
    topology: Path,
    senones: Path,
    utterances: int,
    out: Path,
) -> None:
    """Judge a teacher's posteriors on held-out data.

    Compares them with an alignment. Prints frame accuracy, the expected calibration error, the
    negative log-likelihood per frame, and the temperature that makes it least. --out gets
    calibration.json and reliability.png.

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
    from toolkit.ssl.calibration import CalibrationConfig, measure_calibration
    from toolkit.ssl.judged import Judge

    targets = LowRateAlignments(
        AlignmentStore(alignments), Topology.load(topology), Senones.load(senones)
    )
    config = CalibrationConfig(utterances)
    found = measure_calibration(Judge(teacher, normaliser), features, targets, config, out)
    for name, value in found.items():
        click.echo(f"{name.replace('_', ' '):<20} {value:.6g}")
