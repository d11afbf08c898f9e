"""Reader of the offline demo corpus, which is synthesised here and read like LibriSpeech."""

from pathlib import Path

from lhotse import MonoCut

from local import librispeech
from local.synthetic.corpus import NOISE
from local.synthetic.corpus import fetch as fetch
from toolkit.corpus.config import CorpusConfig
from toolkit.corpus.manifest import ManifestError
from toolkit.storage.reading import reading


def manifests(corpus: CorpusConfig, audio: Path) -> dict[str, list[MonoCut]]:
    """Read the corpus like LibriSpeech, with the noise of each utterance as `snr_db`."""
    noise = {}
    for path in audio.glob(f"*/*/{NOISE}"):
        with reading(path, ManifestError, "remove the folder of this voice, and make it again"):
            lines = path.read_text(encoding="utf-8").splitlines()
            noise |= {name: float(snr) for name, snr in (line.split("\t") for line in lines)}
    found = librispeech.manifests(corpus, audio)
    for cut in (cut for cuts in found.values() for cut in cuts):
        if cut.id in noise:
            cut.custom = {**(cut.custom or {}), "snr_db": noise[cut.id]}
    return found
