"""Reader of the offline demo corpus, which is synthesised here and read like LibriSpeech."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from local.synthetic.config import SyntheticConfig
from toolkit.corpus.config import CorpusConfig
from toolkit.storage.reading import reading

if TYPE_CHECKING:
    from lhotse import MonoCut


def fetch(
    config: SyntheticConfig, out: Path, jobs: int, progress: Callable[[int, int], None]
) -> dict[str, float]:
    """Synthesise the corpus: see `local.synthetic.corpus.generate`."""
    from local.synthetic.corpus import generate

    return generate(config, out, jobs, progress)


def manifests(corpus: CorpusConfig, audio: Path) -> "dict[str, list[MonoCut]]":
    """Read the corpus like LibriSpeech, with the noise of each utterance as `snr_db`."""
    from local import librispeech
    from local.synthetic.corpus import NOISE
    from toolkit.corpus.manifest import ManifestError

    noise = {}
    for path in audio.glob(f"*/*/{NOISE}"):
        with reading(path, ManifestError, "remove the folder of this voice, and make it again"):
            lines = path.read_text(encoding="utf-8").splitlines()
            noise |= {name: float(snr) for name, snr in (line.split("\t") for line in lines)}
    cuts_by_split = librispeech.manifests(corpus, audio)
    for cut in (cut for cuts in cuts_by_split.values() for cut in cuts):
        if cut.id in noise:
            cut.custom = {**(cut.custom or {}), "snr_db": noise[cut.id]}
    return cuts_by_split
