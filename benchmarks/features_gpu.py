"""Feature extraction on a device: the front end in batches, alone and fed with FLAC files."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.run import Case, Table, compare
from benchmarks.synthetic import write_noise
from toolkit.environment import usable_cpus
from toolkit.features.config import FrontendConfig
from toolkit.features.cut_audio import load_cut_audio
from toolkit.features.extract import BATCH, features_on_device
from toolkit.features.frontend import Frontend
from toolkit.features.shards import write_shard
from toolkit.processes.devices import one_thread
from toolkit.processes.workers import map_in_threads

SECONDS = 10.0
FILES = 256
REPEATS = 5

CPU = "one core, samples to features"
DEVICE = "device, samples to features"
AUDIO = "threads, FLAC to samples"
FED = "device and threads, FLAC to features"
STORED = "device and threads, FLAC to shard"


def measure(device: str) -> Table:
    """Measure seconds of audio per second for 64 log-mel (C5) on FLAC files of 10 s of noise.

    In all rows, samples are copied from the processor's memory and features back to it, which waits
    for the device to finish. FLAC is read by one thread per usable core.

    Args:
      device: where the front end computes.
    """
    jobs = usable_cpus()
    with tempfile.TemporaryDirectory() as name, one_thread():
        folder = Path(name)
        cuts = [write_noise(folder, number, SECONDS) for number in range(FILES)]
        samples = [load_cut_audio(cut) for cut in cuts]
        alone, batched = Frontend(FrontendConfig()), Frontend(FrontendConfig(), device=device)

        # One batch is enough for the slow case: rates are per second of audio.
        def on_cpu() -> None:
            for x in samples[:BATCH]:
                alone(x)

        def on_device() -> None:
            for first in range(0, FILES, BATCH):
                batched.batch(samples[first : first + BATCH])

        # Threads decode FLAC ahead of the device.
        def fed() -> list[torch.Tensor]:
            return list(features_on_device(cuts, batched, jobs))

        def audio() -> None:
            list(map_in_threads(load_cut_audio, cuts, jobs, 2 * jobs))

        def stored() -> None:
            features = features_on_device(cuts, batched, jobs)
            utterances = ((cut, "noise", x) for cut, x in zip(cuts, features, strict=True))
            write_shard(folder / "shards", 0, utterances, batched.config)

        cases = [
            _case(CPU, on_cpu, min(BATCH, FILES)),
            _case(DEVICE, on_device, FILES),
            _case(AUDIO, audio, FILES),
            _case(FED, fed, FILES),
            _case(STORED, stored, FILES),
        ]
        table = compare(
            cases,
            unit="s of audio",
            baseline=CPU,
            repeats=REPEATS,
            title=f"Features on {device}",
        )
    hours = ", ".join(f"{row.name} {row.rate / 3600:.4g}" for row in table.rows)
    return table.with_notes(
        f"{FILES} FLAC files of noise, {SECONDS:g} s each, in batches of {BATCH}; {jobs} threads;"
        f" the engine is {batched.engine}.",
        f"Hours of audio per second: {hours}.",
    )


def _case(name: str, function: Callable[[], object], files: int) -> Case:
    """Return a case that extracts the features of `files` files."""

    def run() -> float:
        function()
        return SECONDS * files

    return Case(name, run)
