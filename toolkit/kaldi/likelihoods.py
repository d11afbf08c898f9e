"""Log-likelihoods of an acoustic model for Kaldi's decoders."""

from pathlib import Path

from toolkit.align.scorer import Scorer
from toolkit.kaldi.archive_writer import ArchiveWriter
from toolkit.kaldi.features import check_key
from toolkit.kaldi.tables import native
from toolkit.processes.bars import Bar
from toolkit.storage.files import write_atomically

NAME = "loglikes"


def export_likelihoods(scorer: Scorer, out: Path) -> int:
    """Write loglikes.ark and loglikes.scp: a matrix [T, pdfs] per utterance, not scaled.

    Args:
      scorer: the acoustic model with its features.
      out: the folder to write.

    Returns:
      Number of utterances.

    Raises:
      KaldiFeaturesError: an id that Kaldi's tables cannot hold.
      KaldiIoError: the archive cannot be written.
    """
    kaldi, out = native(), Path(out)
    ids = sorted(scorer.store.ids, key=str.encode)
    for utterance in ids:
        check_key(utterance)
    part = out / f".{NAME}.scp"
    (out / f"{NAME}.scp").unlink(missing_ok=True)  # it would name other bytes of the new archive
    with ArchiveWriter(kaldi.FloatMatrixWriter, out / f"{NAME}.ark", part) as writer:
        for utterance in Bar(ids, unit="utt", desc="likelihoods"):
            writer.write(utterance, scorer.log_likelihoods(utterance).cpu().numpy())
    write_atomically(out / f"{NAME}.scp", part.read_text("utf-8"))
    part.unlink()
    return len(ids)
