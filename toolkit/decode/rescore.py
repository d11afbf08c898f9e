"""Two passes: lattices from a small language model's graph, rescored with a large model."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.decode.first_pass import DecodeConfig, Decoder
from toolkit.decode.system import Pass, Progress, Scorers, decode_passes
from toolkit.lang.arpa import read_arpa
from toolkit.lang.binary import write_binary

RESCORER = "rescorer.safetensors"


def rescore_system(
    system: str,
    scorers: Scorers,
    tune_on: Sequence[str],
    graph: Path,
    words: Path,
    lms: tuple[str, str],
    arpa: Path,
    config: DecodeConfig,
    out: Path,
    jobs: int,
    command: str,
    progress: Progress = lambda done, total: None,
) -> dict[str, float]:
    """Decode every split with a small language model and rescore it with a large one.

    Scale and penalty are tuned for each pass on its own. Both passes get rows in the results; the
    time of the second includes the first. See `toolkit.decode.system.decode_system`.

    Args:
      system: the name of the results' rows.
      scorers: the acoustic model on each split to decode.
      tune_on: the splits that choose scale and penalty.
      graph: the decoding graph, of the small model.
      words: `words.txt`.
      lms: the names of the small and the large model in the results' rows.
      arpa: the large model.
      config: search, grid, and the limits of rescoring.
      out: gets the large model as `rescorer.safetensors`, `tuned.json`, `grid.tsv`, `rows.json`
        and, by split, hypotheses and reports; in `first_pass/` the same of the first pass.
      jobs: worker processes.
      command: the command line, for the rows.
      progress: told (splits decoded, splits).

    Returns:
      WER in percent by split after rescoring, and how many utterances had no path or were cut.
    """
    rescorer = out / RESCORER
    if not rescorer.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_binary(read_arpa(arpa), rescorer)
    decoder = Decoder(graph, words, config, rescorer)
    passes = [Pass(lms[0], out / "first_pass"), Pass(lms[1], out)]
    return decode_passes(system, scorers, tune_on, decoder, passes, out, jobs, command, progress)
