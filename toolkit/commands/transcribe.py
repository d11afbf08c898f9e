"""The command `toolkit transcribe`."""

import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.config.click_types import FILE, TEXT_IN, Number
from toolkit.decode.config import FORMATS

if TYPE_CHECKING:
    from toolkit.decode.decoded import Transcript
    from toolkit.decode.sources import Ids, Source
    from toolkit.decode.stream import StreamResult

ON_A_GPU = 16
"""Number of utterances that a GPU processes at a time."""


@click.command()
@click.option(
    "--model", type=FILE, required=True, help="A model bundle: the final/ folder of a run."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Output format. All formats except text contain word times and confidences.",
)
@click.option(
    "--lower", is_flag=True, help="Write words in lower case. Not possible with --stream."
)
@click.option("--out", type=FILE, help="Write one file per recording to this folder.")
@click.option(
    "--ids",
    type=click.Choice(("stem", "relative", "path")),
    default="stem",
    show_default=True,
    help="Recording id: the file name without suffix (stem), the path below the folder in AUDIO "
    "without suffix (relative), or the whole path (path). For wav.scp files and cuts, the ids in "
    "them are used.",
)
@click.option(
    "--channel",
    type=click.IntRange(1),
    help="Audio channel to use, counted from 1; default: the mean of all channels.",
)
@click.option(
    "--raw-rate",
    type=click.IntRange(1),
    help="Read raw 16-bit samples with this sampling rate, in Hz, from standard input.",
)
@click.option(
    "--allow-pipes",
    is_flag=True,
    help="Run the shell commands in a wav.scp. Use this option only for files that you trust.",
)
@click.option(
    "--stream", is_flag=True, help="Streaming recognition: show words as they are recognised."
)
@click.option(
    "--piece",
    type=Number(0.01, 10),
    help="Process a stream in pieces of this length, in seconds; default: 0.1.",
)
@click.option(
    "--endpoint",
    type=Number(0.1),
    help="Length of the silence that ends an utterance of a stream, in seconds. With --format text "
    "each utterance is a line that begins with the id of its recording, so several lines have the "
    "same id. For scoring, use --format json.",
)
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="Device that runs the network: cpu, cuda, cuda:1, ... Streaming needs cpu.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of worker processes. Each one loads the bundle. With more than one process, all "
    "results are printed at the end.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    help="Batch size of the network in utterances; default: 1 on a CPU, 16 on a GPU.",
)
@click.option(
    "--system",
    help="Name of a system in the bundle. Default: the system with the fewest errors on "
    "development data for this kind of input (known speakers, unknown speakers, or a stream).",
)
@click.option(
    "--int8",
    is_flag=True,
    help="Compute a CTC network on a CPU with 8-bit integers, which is faster.",
)
@click.option("--fast", is_flag=True, help="Do not rescore with the larger language models.")
@click.option(
    "--speakers",
    type=TEXT_IN,
    help="File with lines `recording speaker`, such as utt2spk. Systems with speaker adaptation "
    "adapt to all recordings of a speaker.",
)
@click.argument("audio", nargs=-1, required=True)
@click.pass_context
def transcribe(
    ctx: click.Context,
    model: Path,
    form: str,
    lower: bool,
    out: Path | None,
    ids: "Ids",
    channel: int | None,
    raw_rate: int | None,
    allow_pipes: bool,
    stream: bool,
    piece: float | None,
    endpoint: float | None,
    device: str,
    jobs: int,
    batch: int | None,
    system: str | None,
    int8: bool,
    fast: bool,
    speakers: Path | None,
    audio: tuple[str, ...],
) -> None:
    """Recognise the speech in recordings of any length.

    AUDIO is one or more audio files, folders of audio files, wav.scp files (*.scp) or lhotse cuts
    (*.jsonl, *.json). Use - for standard input, which may contain a list of paths, an audio file
    or, with --raw-rate, raw samples. Prints a line per recording with its id and words, which you
    can pipe to `toolkit score --hyp -`. With --out, writes files instead. If recordings cannot be
    read, the command lists them at the end, and the exit status is 1.

    If --speakers or cuts contain the speakers, the command uses the system of the bundle that was
    best on development data with known speakers. A system with speaker adaptation first reads all
    recordings of a speaker. Without speakers, each recording is treated as a separate speaker, and
    the command uses the system that was best with unknown speakers. On standard error, the command
    prints the name of this system, its training data, and its error rates with known and unknown
    speakers.

    With --stream, the command uses the best unidirectional LSTM or TDNN-F and shows words as they
    are recognised. On a terminal, it updates the words of an utterance in one line. With --format
    json, it prints a line for each update. At the end, it prints the latency on standard error.

    \b
    Examples:
      toolkit transcribe --model exp/demo/final a.wav b.flac
      toolkit transcribe --model exp/demo/final --format srt --out subtitles/ talks/
      arecord -t raw -f S16_LE -r 16000 | \\
        toolkit transcribe --model exp/demo/final --stream --raw-rate 16000 -
    """
    from toolkit.decode.bundle import Bundle, read_card
    from toolkit.decode.formats import SUFFIXES, WITH_WORDS
    from toolkit.decode.sources import Inputs, check_ids, check_keys, role_of
    from toolkit.decode.transcribe import transcribe_in_processes
    from toolkit.processes.devices import check_device, choose_device, one_thread

    # 1. Check the options together, before anything is loaded: each row is one contradiction.
    one_file = form in ("srt", "vtt") and out is None and not stream
    _check_number(len(audio), form, one_file)
    refused = (
        (
            stream and (form not in ("text", "json") or out is not None),
            "--stream only prints text or json: leave out --out and other values of --format",
        ),
        (
            not stream and (piece is not None or endpoint is not None),
            "--piece and --endpoint need --stream",
        ),
        (
            stream and speakers is not None,
            "--stream cannot use speakers: leave out --speakers",
        ),
        (stream and device != "cpu", "--stream runs only on the CPU: leave out --device"),
        (stream and int8, "--int8 does not work with --stream: leave out one of them"),
        (
            stream and batch is not None,
            "--stream does not batch utterances: leave out --batch",
        ),
        (stream and lower, "--lower does not work with --stream: leave out one of them"),
        (int8 and (batch or 1) > 1, "--int8 does not work with batches: leave out --batch"),
        (
            jobs > 1 and (stream or raw_rate is not None),
            "--jobs does not work with --stream or --raw-rate: leave out --jobs",
        ),
        (
            raw_rate is not None and "-" not in audio,
            "--raw-rate needs raw samples on standard input: give - as AUDIO",
        ),
    )
    for is_refused, message in refused:
        if is_refused:
            raise click.UsageError(message)
    # 2. List the recordings. A folder may hold several, so their number is checked once more.
    inputs = Inputs(None if channel is None else channel - 1, allow_pipes, raw_rate, speakers, ids)
    check_device(device)
    # One thread, as in worker processes. On busy cores several threads wait for each other, which
    # takes four times as long as one thread's computation; on idle cores a second thread gains
    # nothing.
    with tempfile.TemporaryDirectory() as scratch_folder, one_thread():
        stdin = None if sys.stdin is None else sys.stdin.buffer
        sources = inputs.sources(audio, stdin, Path(scratch_folder))
        _check_number(len(sources), form, one_file)
        # Printed lines must differ in their ids, files in their paths.
        check_ids(sources, inputs.ids) if out is None else check_keys(sources, SUFFIXES[form])
        # 3. Choose the system that is best for these recordings, and say which one it is.
        bundle = Bundle(model).choose("stream" if stream else role_of(sources), system)
        if card := read_card(bundle):
            prefix = "without rescoring (error rates here are with rescoring): " if fast else ""
            click.echo(f"{prefix}{card}", err=True)
        # 4. Recognise. A recording that cannot be read is a fault; the others go on.
        if stream:
            faults = _stream(bundle, fast, sources, form, piece or 0.1, endpoint)
        else:
            if note := _speaker_note(model, bundle, sources):
                click.echo(note, err=True)
            chosen_device = choose_device(device)
            transcripts = transcribe_in_processes(
                bundle,
                sources,
                jobs,
                details=form in WITH_WORDS,
                device=chosen_device,
                fast=fast,
                int8=int8,
                batch=batch or (1 if chosen_device == "cpu" else ON_A_GPU),
            )
            if lower:
                transcripts = (transcript.in_lower_case() for transcript in transcripts)
            channels = {source.key: source.channel for source in sources}
            faults = _write(transcripts, len(sources), form, out, channels)
    for fault in faults:
        click.echo(f"Error: {fault}", err=True)
    ctx.exit(1 if faults else 0)


def _check_number(recordings: int, form: str, one_file: bool) -> None:
    """Refuse to print several recordings in a format for one."""
    if one_file and recordings > 1:
        raise click.UsageError(
            f"a {form} file can contain only one recording: use --out FOLDER to write a file for "
            "each recording"
        )


def _speaker_note(model: Path, bundle: Path, sources: "Sequence[Source]") -> str | None:
    """Return a note on recordings without a speaker: "which system, and what would be better?".

    None if every recording has a speaker, or if speakers make no difference to this bundle.
    """
    from toolkit.decode.bundle import Bundle, adapts_to_speakers, read_card

    unnamed = [source for source in sources if source.speaker is None]
    adapts = adapts_to_speakers(bundle)
    if not unnamed or not (adapts or read_card(bundle)):
        return None
    if len(unnamed) == len(sources):
        note = "no speaker is named: every recording counts as a separate speaker"
    else:
        note = (
            f"{len(unnamed)} of {len(sources)} recordings, such as {unnamed[0].called}, have no"
            " speaker, so each counts as a separate speaker"
        )
    if adapts:
        return (
            f"Warning: {note}. {bundle.name} adapts to speakers and makes more errors without"
            " them. Name the speakers with --speakers"
        )
    # The chosen system does not adapt. Another one may be better once speakers are named.
    with_speakers = Bundle(model).choose("speaker_known").name
    better = f": {with_speakers} is the best system for known speakers"
    suffix = better if with_speakers != bundle.name else ""
    return f"{note}. Name the speakers with --speakers{suffix}"


def _write(
    transcripts: "Iterable[Transcript]",
    total: int,
    form: str,
    out: Path | None,
    channels: Mapping[str, str],
) -> list[str]:
    """Print or write the transcripts; return error messages of recordings that failed.

    Args:
      channels: the channel of each recording in CTM, by `Transcript.key`.
    """
    from toolkit.decode.formats import SUFFIXES, line, written
    from toolkit.processes.bars import Bar
    from toolkit.storage.files import write_atomically
    from toolkit.storage.paths import UnsafePathError, path_below

    faults = []
    # No bar between printed lines; None: a bar if standard error is a terminal.
    quiet = True if out is None else None
    for transcript in Bar(transcripts, "transcribe", total, disable=quiet):
        if transcript.fault:
            faults.append(transcript.fault)
        if out is None and form in ("text", "json"):
            # JSON has a line for a recording that failed, with the error; text leaves it out.
            if form == "json" or not transcript.fault:
                click.echo(line(transcript, form), nl=False)
        elif out is None:
            click.echo(written(transcript, form, channels[transcript.key]), nl=False)
        # A key comes from a path or a list of the user: the file must not leave the folder.
        elif not transcript.fault:
            try:
                path = path_below(out, f"{transcript.key}{SUFFIXES[form]}")
            except UnsafePathError as error:
                faults.append(str(error))
                continue
            write_atomically(path, written(transcript, form, channels[transcript.key]))
    return faults


def _stream(
    bundle: Path,
    fast: bool,
    sources: "Sequence[Source]",
    form: str,
    piece: float,
    endpoint: float | None,
) -> list[str]:
    """Print the words of each stream as they come; return error messages of those that failed."""
    from time import perf_counter

    from toolkit.decode.config import EndpointConfig
    from toolkit.decode.recogniser import load_recogniser
    from toolkit.decode.stream import Latency, recognise_stream
    from toolkit.decode.transcribe import NO_SOUND, NO_SPEECH
    from toolkit.features.audio import AudioError
    from toolkit.features.frontend import FrontendError

    faults = []
    ends = None if endpoint is None else EndpointConfig(endpoint)
    recogniser = load_recogniser(bundle, fast=fast)
    # Compile before the first stream, whose latency is reported.
    recogniser.warm_up(ends)
    for source in sources:
        stream, latency = recogniser.stream(ends, details=form == "json"), Latency()
        blocks = source.blocks(recogniser.sampling_rate, piece)
        try:
            for result in recognise_stream(blocks, stream, perf_counter, latency):
                _show(source.name, result, form)
            click.echo(f"{source.called}: {latency.summary()}", err=True)
            if not stream.has_speech:
                reason = NO_SPEECH if stream.has_sound else NO_SOUND
                click.echo(f"Warning: {reason}" % source.called, err=True)
        except AudioError as error:
            faults.append(str(error))
        except FrontendError as error:
            faults.append(f"{source.called}: {error}")
    return faults


def _show(name: str, result: "StreamResult", form: str) -> None:
    """Print a result: as JSON; on a terminal as a line that changes; elsewhere when it is final."""
    from toolkit.decode.formats import stream_result_line

    if form == "json":
        click.echo(stream_result_line(name, result), nl=False)
    elif sys.stdout.isatty():
        # A line that is still changing must fit the terminal: carriage return goes back one row
        # only. Its end is shown, and the whole text when it is final.
        columns = shutil.get_terminal_size().columns - 1
        line = f"{name} {result.text}"
        begin = "\r\x1b[K"  # go to the first column and erase the line
        click.echo(begin + (line if result.final else line[-columns:]), nl=bool(result.final))
    elif result.final is not None:
        click.echo(f"{name} {result.text}".rstrip())
    sys.stdout.flush()
