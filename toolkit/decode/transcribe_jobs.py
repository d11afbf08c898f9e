"""Transcription of many recordings in several processes."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from toolkit.decode.sources import Source, by_speaker
from toolkit.decode.transcribe import transcribe
from toolkit.decode.transcript import Transcript
from toolkit.processes.workers import map_in_processes


def transcribe_in_processes(
    model: Path,
    sources: Sequence[Source],
    jobs: int,
    details: bool,
    device: str,
    fast: bool,
    int8: bool = False,
    batch: int = 1,
) -> Iterator[Transcript]:
    """Transcribe recordings as `toolkit.decode.transcribe` does, in `jobs` processes.

    Every process loads the bundle once and takes whole speakers, so that the results are those of
    one process. They are given in the order of the sources once all are there.

    Args:
      sources: the recordings; they must be files, since processes are handed them.
      jobs: most processes.
      model, details, device, fast, int8, batch: see `toolkit.decode.transcribe.transcribe`.
    """
    shares = share_out(sources, jobs)
    settings = {"details": details, "device": device, "fast": fast, "int8": int8, "batch": batch}
    work = partial(_transcribed, model=model, **settings)
    done: dict[int, Transcript] = {}
    parts = map_in_processes(work, [[sources[n] for n in share] for share in shares], jobs)
    for share, part in zip(shares, parts, strict=True):
        done.update(zip(share, part, strict=True))
    for number in range(len(sources)):
        yield done[number]


def share_out(sources: Sequence[Source], jobs: int) -> list[list[int]]:
    """Return the positions of the sources that each process takes, those of a speaker together."""
    shares: list[list[int]] = [[] for _ in range(jobs)]
    for group in sorted(by_speaker(sources), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return [sorted(share) for share in shares if share]


def _transcribed(
    sources: Sequence[Source], model: Path, **settings: bool | str | int
) -> list[Transcript]:
    return list(transcribe(model, sources, **settings))
