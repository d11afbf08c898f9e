"""The command `toolkit align`."""

from pathlib import Path

import click

from toolkit.config.click_types import FILE, FOLDER, TEXT_IN


@click.command()
@click.option(
    "--model", type=FILE, required=True, help="A model bundle: the final/ folder of a run."
)
@click.option(
    "--audio-dir",
    type=FILE,
    required=True,
    help="A folder of audio files. Its subfolders are searched too.",
)
@click.option(
    "--text",
    type=TEXT_IN,
    required=True,
    help="Transcripts: a file with lines `name words ...`, or a folder of .txt or .lab files that "
    "are named like the audio files. Use - to read the lines from standard input.",
)
@click.option("--out", type=FOLDER, required=True, help="The folder to write.")
@click.option(
    "--speakers",
    type=TEXT_IN,
    help="File with lines `name speaker`; default: one speaker per folder.",
)
@click.option(
    "--channel",
    type=click.IntRange(1),
    help="Audio channel to align, counted from 1; default: the mean of all channels.",
)
@click.option(
    "--complete",
    is_flag=True,
    help="The texts have all words that were spoken, and no others: every word gets times. Faster, "
    "and works with models that hardly fit the speech.",
)
@click.option(
    "--reference", type=TEXT_IN, help="CTM file with true word times to compare the result with."
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Worker processes."
)
@click.pass_context
def align(
    ctx: click.Context,
    model: Path,
    audio_dir: Path,
    text: Path,
    out: Path,
    speakers: Path | None,
    channel: int | None,
    complete: bool,
    reference: Path | None,
    jobs: int,
) -> None:
    """Align recordings with their transcripts.

    Finds the times of words and phones. Writes words.ctm and phones.ctm (with confidences),
    textgrid/NAME.TextGrid and table.tsv (the outcome of each file) to the folder --out. Files may
    have any length. Each `name` in the transcripts is the path of an audio file below --audio-dir
    without suffix, or only its file name without suffix. If a file cannot be aligned, the command
    prints the reason on standard error, aligns the other files, and exits with status 1.

    Audio whose words the text lacks becomes the token <unaligned>, and words that nobody spoke get
    no times. The status of such a file is `partly`, and table.tsv names what differs. If less than
    half of a text is found in the audio, or with hardly any confidence, the file fails.

    With a CTC network, which has no phones, the command writes the times of the network's output
    units, such as letters, to units.ctm. It finds a place for every word of the text.

    \b
    Example:
      toolkit align --model exp/demo/final --audio-dir recordings --text transcripts --out times
    """
    from toolkit.align.aligner import GmmAlignerFiles
    from toolkit.align.ctm_textgrid import read_ctm
    from toolkit.align.folder import UNALIGNED, align_folder, summary
    from toolkit.decode.bundle import Bundle, read_card
    from toolkit.decode.ctc.recogniser import CtcAlignerFiles
    from toolkit.score.boundaries import compare_boundaries

    # 1. Read the reference before the slow alignment: a fault in the reference shows at once.
    true_times = None if reference is None else read_ctm(reference)
    # 2. A GMM bundle aligns phones, a CTC network its output units.
    ctc = Bundle(model).ctc_network()
    aligner = GmmAlignerFiles.find(model, complete) if ctc is None else CtcAlignerFiles(ctc)
    if card := read_card(aligner.bundle):
        click.echo(card, err=True)
    if speakers is not None and not aligner.by_speaker:
        note = "Note: --speakers has no effect, because a CTC network does not adapt to speakers."
        click.echo(note, err=True)
    index = None if channel is None else channel - 1  # channels count from 1 for users, 0 in arrays
    # 3. Align. A recording that fails is an outcome, not an exception: the others go on.
    outcomes = align_folder(aligner, audio_dir, text, out, speakers, jobs, index)
    for outcome in outcomes:
        if not outcome.aligned:
            click.echo(f"Error: {outcome.utterance}: {outcome.reason}", err=True)
        elif outcome.status == "partly":
            click.echo(f"Note: {outcome.utterance}: {outcome.reason}", err=True)
    click.echo(summary(outcomes))
    if true_times is not None:
        words = [entry for entry in read_ctm(out / "words.ctm") if entry.token != UNALIGNED]
        report = compare_boundaries(true_times, words)
        click.echo(report.text(), nl=False)
    ctx.exit(0 if all(outcome.aligned for outcome in outcomes) else 1)
