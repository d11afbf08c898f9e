"""`toolkit transcribe`."""

from pathlib import Path

import click

from toolkit.commands import FILE


@click.command()
@click.option("--model", type=FILE, required=True, help="A bundle: the final/ folder of a run.")
@click.argument("audio", nargs=-1, required=True, type=FILE)
@click.pass_context
def transcribe(ctx: click.Context, model: Path, audio: tuple[Path, ...]) -> None:
    """Recognise the speech in audio files.

    Prints one line per AUDIO file: its path and the words recognised. A file that cannot be read is
    named on standard error, the others are still transcribed, and the exit status is 1.

    \b
    Example:
      toolkit transcribe --model exp/demo/final a.wav b.flac
    """
    from toolkit.decode.transcribe import transcribe as transcribe_files

    broken = False
    for transcript in transcribe_files(model, list(audio)):
        if transcript.text is None:
            broken = True
            click.echo(f"Error: {transcript.fault}", err=True)
        else:
            click.echo(f"{transcript.path} {transcript.text}".rstrip())
    ctx.exit(1 if broken else 0)
