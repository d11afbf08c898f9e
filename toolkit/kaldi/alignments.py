"""Imports and exports alignments: Kaldi's archives of integer vectors, and phone CTMs."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toolkit.align.ctm_textgrid import CtmEntry, TimedToken, write_ctm
from toolkit.align.store import (
    FRAME_SECONDS,
    LOW_RATE_SECONDS,
    AlignmentStore,
    Outcome,
    phone_times,
    write_alignments,
    write_table,
)
from toolkit.errors import ToolkitError
from toolkit.hmm.topology import Topology
from toolkit.kaldi.archive import ArchiveWriter, kaldi_native_io, read_int_vectors, writer_path
from toolkit.kaldi.model import KaldiTransitions
from toolkit.storage.files import write_atomically

STATES = "states.tsv"
PER_SHARD = 500
"""Utterances per shard. Loading one of them reads the headers of its whole shard."""


class KaldiAlignmentError(ToolkitError):
    """Raised for alignments that do not fit the HMMs of the given system."""


def export_alignments(ali: Path, system: Path, out: Path) -> int:
    """Write alignments as `ali.ark` and `ali.scp`, with a table of their HMM states.

    The numbers are ids of this toolkit's HMM states (one for each state of each phone), neither
    pdfs nor transition ids of a Kaldi model: `states.tsv` lists id, phone and position in the
    phone. `phones.ctm` holds the phones of each utterance with their times, for any other program.

    Args:
      ali: folder of an `AlignmentStore`.
      system: folder of the system that made the alignments, for its topology.
      out: output folder.

    Returns:
      Number of utterances.

    Raises:
      KaldiAlignmentError: an alignment has states that the system does not have.
    """
    store, topology = AlignmentStore(ali), Topology.load(Path(system) / "topology.json")
    ids = sorted(store.ids, key=str.encode)
    if not ids:
        raise KaldiAlignmentError(f"{ali} holds no alignments")
    out = Path(out)
    ark = writer_path(out / "ali.ark")

    def write_states() -> Iterator[tuple[str, str, list[TimedToken]]]:
        """Write each utterance's states; yield the phones of each utterance."""
        with ArchiveWriter(kaldi_native_io().Int32VectorWriter, ark, out / "ali.scp") as writer:
            for utterance in ids:
                states = store.load(utterance)
                _check_states(utterance, states, topology)
                writer.write(utterance, states.tolist())
                yield utterance, "1", phone_times(states, topology)

    write_ctm(write_states(), out / "phones.ctm")
    write_atomically(out / STATES, "".join(f"{line}\n" for line in _state_lines(topology)))
    return len(ids)


def import_alignments(table: Path, system: Path, out: Path, model: Path | None = None) -> int:
    """Import alignments from an archive of HMM states or transition ids.

    Args:
      table: `.scp` or archive, binary or text, gzipped or not.
      system: folder of the system with the states; its phones must be those of `model`, as
        `read_senones` makes them.
      out: folder of the `AlignmentStore` to write.
      model: the Kaldi model of the archive's transition ids. None: `export_alignments` wrote the
        archive.

    Returns:
      Number of utterances.

    Raises:
      KaldiAlignmentError: an alignment has states, or transition ids, that do not exist.
    """
    topology = Topology.load(Path(system) / "topology.json")
    state_of_id = None if model is None else _states_of_ids(model, topology)
    alignments: dict[str, Tensor] = {}
    for utterance, states in read_int_vectors(table):
        if utterance in alignments:
            raise KaldiAlignmentError(
                f"{table}: {utterance!r} occurs twice: remove one of its alignments"
            )
        if state_of_id is not None:
            if len(states) and not 0 < states.min() <= states.max() < len(state_of_id):
                invalid = states.max() if states.min() > 0 else states.min()
                raise KaldiAlignmentError(
                    f"{utterance}: {model} has no transition id {int(invalid)}: give the model"
                    " that made the alignments"
                )
            states = state_of_id[states]
        alignments[utterance] = torch.from_numpy(states)
        _check_states(utterance, alignments[utterance], topology)
    return _write_store(alignments, Path(out), {})


def _states_of_ids(model: Path, topology: Topology) -> np.ndarray:
    """Return the topology state of each Kaldi transition id: [ids + 1] int32, -1 for id 0."""
    transitions = KaldiTransitions.read(model)
    sizes = [transitions.num_states[phone] for phone in sorted(transitions.num_states)]
    if sizes != [topology.num_states(phone) for phone in topology.phone_ids()]:
        raise KaldiAlignmentError(
            f"{model} and the system differ in their phones or numbers of states: make the system "
            "from the tree of this model with `toolkit kaldi import-senones`"
        )
    # Phones of the topology are those of the model in the order of their ids.
    phone_index = np.searchsorted(sorted(transitions.num_states), transitions.phone)
    states = np.array(topology.first_state_ids)[phone_index] + transitions.state
    # Transition ids count from 1.
    return np.append(-1, states).astype(np.int32)


def import_phone_times(
    entries: Iterable[CtmEntry], system: Path, num_frames: Mapping[str, int], out: Path
) -> int:
    """Import alignments from phones with times, such as those of another aligner.

    The frames of a phone are distributed evenly over its HMM states in order. Frames between phones
    are silence. If they are too few for silence, they belong to the phone before them, or at the
    beginning to the phone after them. An utterance with an unknown or too short phone fails, and
    the table has the reason.

    Args:
      entries: phones, as symbols of the system.
      system: folder of the system with the HMM states.
      num_frames: number of frames of each utterance to align, such as from a feature store.
      out: folder of the `AlignmentStore` to write.

    Returns:
      Number of utterances aligned.

    Raises:
      KaldiAlignmentError: no utterance could be aligned.
    """
    topology = Topology.load(Path(system) / "topology.json")
    phones: dict[str, list[CtmEntry]] = {}
    for entry in entries:
        phones.setdefault(entry.utterance, []).append(entry)
    alignments, failed = {}, {}
    for utterance in sorted(num_frames):
        try:
            alignments[utterance] = _states_of(
                phones.get(utterance, []), topology, num_frames[utterance]
            )
        except ValueError as error:
            failed[utterance] = str(error)
    if not alignments:
        raise KaldiAlignmentError(
            f"none of {len(num_frames)} utterances could be aligned"
            + "".join(f". The first is {u}: {reason}" for u, reason in list(failed.items())[:1])
        )
    return _write_store(alignments, Path(out), failed)


def _states_of(entries: Iterable[CtmEntry], topology: Topology, num_frames: int) -> Tensor:
    """Convert timed phones to HMM states [T].

    Raises:
      ValueError: there is no phone, an unknown one, or one with too few frames.
    """
    seconds = LOW_RATE_SECONDS if topology.onset else FRAME_SECONDS
    silence = topology.silence
    spans: list[tuple[int, int]] = []  # (phone, frames)
    at = 0  # frames covered by `spans`

    def fill(until: int) -> None:
        """Fill frames up to `until` with silence, or extend the previous phone if they are few."""
        gap = until - at
        if gap >= topology.min_frames(silence):
            spans.append((silence, gap))
        elif gap > 0:
            spans[-1] = (spans[-1][0], spans[-1][1] + gap)

    for entry in sorted(entries, key=lambda entry: entry.start):
        if entry.token not in topology.phones:
            raise ValueError(
                f"no phone {entry.token!r} in the system, whose first phones are "
                f"{' '.join(topology.phones[:5])}"
            )
        start = min(max(at, round(entry.start / seconds)), num_frames)
        end = min(max(start, round(entry.end / seconds)), num_frames)
        if not spans and start < topology.min_frames(silence):
            start = 0  # the pause is too short: the first phone begins at frame 0
        fill(start)
        spans.append((topology.phones.index(entry.token) + 1, end - start))
        at = end
    if not spans:
        raise ValueError("no phones")
    fill(num_frames)
    return torch.tensor([s for span in spans for s in _states(topology, *span)], dtype=torch.int32)


def _states(topology: Topology, phone: int, frames: int) -> list[int]:
    """Distribute a phone's frames over its HMM states."""
    if frames < topology.min_frames(phone):
        raise ValueError(
            f"phone {topology.phones[phone - 1]} has {frames} frames but needs at least "
            f"{topology.min_frames(phone)}"
        )
    number = topology.num_states(phone)
    if topology.onset:
        # Low frame rate: the onset takes one frame, and the last state takes the rest.
        positions = [min(i, number - 1) for i in range(frames)]
    elif frames < number:  # silence, whose middle states may be skipped
        # Evenly spaced states, including the first and the last.
        positions = [round(i * (number - 1) / (frames - 1)) for i in range(frames)]
    else:
        # Equal shares of the frames for all states.
        positions = [i * number // frames for i in range(frames)]
    return [topology.state_id(phone, state) for state in positions]


def _check_states(utterance: str, states: Tensor, topology: Topology) -> None:
    """Raise a KaldiAlignmentError for states that the topology does not have."""
    if not len(states):
        raise KaldiAlignmentError(f"{utterance}: has no frames")
    if states.min() < 0 or states.max() >= topology.num_state_ids:
        raise KaldiAlignmentError(
            f"{utterance}: the alignment has states {int(states.min())} to {int(states.max())}, "
            f"but the system has only states 0 to {topology.num_state_ids - 1}: the alignment is "
            "from another system, or contains Kaldi's transition ids (then give the Kaldi model, "
            "or import phone times)"
        )


def _state_lines(topology: Topology) -> Iterator[str]:
    """Yield the lines of `states.tsv`."""
    yield "state\tphone\tposition"
    for phone in topology.phone_ids():
        for state in range(topology.num_states(phone)):
            yield f"{topology.state_id(phone, state)}\t{topology.phones[phone - 1]}\t{state}"


def _write_store(alignments: dict[str, Tensor], out: Path, failed: Mapping[str, str]) -> int:
    """Replace a folder's alignments by new shards and a new table."""
    (out / "table.tsv").unlink(missing_ok=True)
    for path in [*out.glob("ali.*.tar"), *out.glob("ali.*.tsv")]:
        path.unlink()
    names = sorted(alignments)
    for number, begin in enumerate(range(0, max(len(names), 1), PER_SHARD)):
        shard_alignments = {name: alignments[name] for name in names[begin : begin + PER_SHARD]}
        write_alignments(out / f"ali.{number:06d}.tar", shard_alignments)
    outcomes = [Outcome(u, "ok", math.nan, 0.0, "") for u in names]
    outcomes += [Outcome(u, "failed", math.nan, 0.0, failed[u]) for u in sorted(failed)]
    write_table(out / "table.tsv", outcomes)
    return len(alignments)
