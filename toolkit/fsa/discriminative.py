"""Sequence-discriminative criteria over lattices: sMBR, frame-level MPE and MMI (C8)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from toolkit.errors import ToolkitError
from toolkit.fsa.config import Criterion
from toolkit.fsa.forward_backward import expected_sums, pack, total_scores
from toolkit.fsa.fst import FINAL, Lattice
from toolkit.hmm.senones import Senones


class LatticeMismatchError(ToolkitError):
    """Raised when a lattice does not match its scores or reference."""


@dataclass(frozen=True)
class PdfClasses:
    """The phone of each pdf, and whether that phone is silence."""

    silence: Tensor
    """[P] bool: whether the pdf belongs to silence or noise."""
    phones: Tensor
    """[P] int64: the phone of the pdf."""

    @classmethod
    def of(cls, senones: Senones) -> "PdfClasses":
        """Return the classes of senones; a pdf of several phones is in the class of the first."""
        phones = senones.phone_of_pdf
        silent = [senones.topology.is_silence(phone) for phone in phones.tolist()]
        return cls(torch.tensor(silent), phones)

    def to(self, device: torch.device | str) -> "PdfClasses":
        """Return the classes on another device."""
        return PdfClasses(self.silence.to(device), self.phones.to(device))


@dataclass(frozen=True)
class SequenceValue:
    """The value of a criterion for each utterance of a batch."""

    objective: Tensor
    """[N] float64 with gradient, to be maximised. `smbr`, `mpfe`: expected number of right frames,
    0 ... T. `mmi`: log posterior of the reference without its graph score, which is constant."""
    missing: Tensor
    """[N] int64: number of frames whose reference pdf is on no arc of the lattice. For `smbr` and
    `mpfe` these frames cannot be correct, and other frames are not affected; for `mmi` see
    `drop_frames`."""


def lattice_frames(lattice: Lattice) -> int:
    """Return the number of frames of a lattice; 0 if no path reaches the end."""
    emitting = lattice.labels > 0
    if FINAL not in lattice.labels or not emitting.any():
        return 0
    return int(lattice.frame[emitting].max()) + 1


def sequence_objective(
    lattices: Sequence[Lattice],
    log_likelihoods: Tensor,
    references: Sequence[Tensor],
    criterion: Criterion,
    classes: PdfClasses,
) -> SequenceValue:
    """Compute a criterion over lattices with acoustic scores from the network.

    The functions are those of Kaldi's LatticeForwardBackwardMpeVariants and
    LatticeForwardBackwardMmi. The lattices differ: these keep every state sequence, whereas Kaldi's
    keep only the best one of each word sequence. For `smbr` and `mpfe` the gradient for an arc's
    log-likelihood is kappa gamma (c - c_hat). Here kappa is the acoustic scale, gamma the arc's
    posterior, c the accuracy expected on paths through the arc, and c_hat the accuracy expected on
    all paths. Everything that depends on `log_likelihoods` is computed on their device, in float64.

    Args:
      lattices: one per utterance, as `LatticeStore` loads them: labels are pdf + 1, `scores` the
        graph's part alone, `frame` the row of `log_likelihoods` that an arc reads. Dead ends affect
        values and gradients only because a frame whose reference pdf is on a dead end is not
        `missing`.
      log_likelihoods: [N, T, P] log p(x|s), unscaled, up to a constant per frame. Rows beyond an
        utterance's frames are not read.
      references: [T_n] the right pdf of every frame, ideally on the device of `log_likelihoods`.
      criterion: what to compute.
      classes: silence and phones of the P pdfs, on the device of `log_likelihoods`.

    Raises:
      LatticeMismatchError: a lattice is empty, differs in length from its reference, or has pdfs
        that the network lacks.
    """
    for n, (lattice, reference) in enumerate(zip(lattices, references, strict=True)):
        _check(n, lattice, reference, log_likelihoods)
    device = log_likelihoods.device
    packed = pack(lattices, device)
    # Of the E arcs of all lattices that read a frame: utterance and frame, pdf, reference pdf.
    rows, pdfs = (packed.utterance[packed.emitting], packed.frame), packed.pdf
    padded_references = pad_sequence([x.to(device).long() for x in references], batch_first=True)
    arc_references = padded_references[rows]
    is_frame = torch.arange(padded_references.shape[1], device=device) < packed.frames[:, None]
    # [N, T] how many arcs of a frame have its reference pdf. Not `index_put`, which waits for a GPU
    # to check the range of the indices.
    flat_index = rows[0] * padded_references.shape[1] + rows[1]
    hits = torch.zeros_like(padded_references).flatten()
    hits = hits.index_add(0, flat_index, (pdfs == arc_references).long())
    missing = is_frame & (hits.view_as(padded_references) == 0)

    # Scores of arcs: kappa log p(x | pdf) + boost where the phone is wrong + graph score.
    index = (*rows, pdfs)
    arc_likelihoods = log_likelihoods[index].double()
    if criterion.kind == "mmi" and criterion.drop_frames:
        arc_likelihoods = torch.where(missing[rows], arc_likelihoods.detach(), arc_likelihoods)
    arc_acoustics = criterion.acoustic_scale * arc_likelihoods
    if criterion.kind == "mmi" and criterion.boost:
        wrong = (classes.phones[pdfs] != classes.phones[arc_references]) & ~classes.silence[pdfs]
        arc_acoustics = arc_acoustics + criterion.boost * wrong
    scores = (criterion.lm_scale * packed.scores).index_add(0, packed.emitting, arc_acoustics)
    if criterion.kind == "mmi":
        # Numerator: the score of the reference path [N]. Denominator: that of all paths.
        of_reference = log_likelihoods.gather(2, padded_references[:, :, None])[:, :, 0]
        of_reference = of_reference.masked_fill(~is_frame, 0.0)  # [N, T]
        if criterion.drop_frames:
            of_reference = torch.where(missing, of_reference.detach(), of_reference)
        numerator = criterion.acoustic_scale * of_reference.double().sum(dim=1)
        objective = numerator - total_scores(packed, scores)
    else:  # the accuracy expected over all paths
        accuracy = _accuracy(pdfs, arc_references, criterion, classes)
        values = torch.zeros_like(packed.scores).index_add(0, packed.emitting, accuracy)
        objective = expected_sums(packed, scores, values)
    return SequenceValue(objective, missing.sum(dim=1))


def _accuracy(
    pdfs: Tensor, references: Tensor, criterion: Criterion, classes: PdfClasses
) -> Tensor:
    """Return the accuracy (1 or 0) of every arc, which says whether its pdf counts as correct."""
    of_class = classes.phones
    same = (
        of_class[pdfs] == of_class[references] if criterion.kind == "mpfe" else pdfs == references
    )
    silent = classes.silence[pdfs]
    if criterion.one_silence_class:
        return (same | (silent & classes.silence[references])).double()
    return (same & ~silent).double()


def _check(n: int, lattice: Lattice, reference: Tensor, scores: Tensor) -> None:
    """Raise an error if a lattice does not match its reference or scores."""
    frames = lattice_frames(lattice)
    if frames == 0 or frames != len(reference) or frames > scores.shape[1]:
        raise LatticeMismatchError(
            f"utterance {n} of the batch: the lattice has {frames} frames, the reference "
            f"{len(reference)} and the scores {scores.shape[1]}. Make lattices and reference from "
            "the same features"
        )
    if int(lattice.labels.max()) > scores.shape[2]:
        raise LatticeMismatchError(
            f"utterance {n} of the batch: its lattice contains pdf "
            f"{int(lattice.labels.max()) - 1}, but the network has {scores.shape[2]} outputs. Make "
            "the lattices with the graph of this network"
        )
