"""A small network, objective and batch for each training criterion."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from toolkit.fsa.config import Criterion
from toolkit.fsa.discriminative import PdfClasses
from toolkit.models.config import BlstmConfig, CtcConfig, LstmConfig
from toolkit.models.ctc import CtcModel
from toolkit.models.lstm import BlstmModel, LstmModel
from toolkit.train.batches import Batch
from toolkit.train.config import TrainerConfig
from toolkit.train.cross_entropy import KBestBatch, cross_entropy, distillation
from toolkit.train.ctc.objective import CtcLoss
from toolkit.train.ctc.readers import CtcBatch
from toolkit.train.sequence import LatticeBatch, SequenceLoss
from toolkit.train.trainer import Trainer

CRITERIA = ("chunks", "padded", "distillation", "smbr", "mpfe", "mmi", "ctc", "ctc both ways")
INPUTS, OUTPUTS, HIDDEN = 12, 30, 64


@dataclass
class Batches:
    """A data source that gives the same batches in every epoch."""

    batch_list: list

    def num_steps(self, epoch, world_size=1):
        return len(self.batch_list) // world_size

    def batches(self, epoch, start=0, rank=0, world_size=1):
        yield from self.batch_list[start * world_size + rank :: world_size]


@dataclass
class Task:
    """A model, an objective and a batch to train on."""

    model: nn.Module
    objective: object
    batch: Batch

    def trainer(self, out, device, **config):
        settings = TrainerConfig(**{"epochs": 1, **config})
        source = Batches([self.batch] * 1000)
        return Trainer(self.model.train(), self.objective, source, settings, out, device=device)


def make(criterion, device, sentences):
    """Return the training task of a criterion, the same for every device."""
    torch.manual_seed(5)
    if criterion.startswith("ctc"):
        return _ctc(bidirectional="both" in criterion)
    if criterion in ("smbr", "mpfe", "mmi"):
        return _sequence(criterion, device, *sentences)
    config = {"input_dim": INPUTS, "output_dim": OUTPUTS, "hidden": HIDDEN, "layers": 2}
    if criterion == "padded":
        return Task(BlstmModel(BlstmConfig(**config)), cross_entropy, _batch([40, 25, 33], 0))
    model = LstmModel(LstmConfig(**config, lookahead=3))
    if criterion == "chunks":
        return Task(model, cross_entropy, _batch([32] * 7 + [20], 3))
    batch = _batch([32] * 7 + [20], 3)
    senones = torch.rand(8, 32, OUTPUTS).argsort(dim=-1)[..., :5]
    logits = 3 * torch.randn(8, 32, 5)
    soft = KBestBatch(**{**vars(batch), "targets": senones[..., 0]}, senones=senones, logits=logits)
    return Task(model, distillation, soft)


def _batch(lengths, lookahead):
    counts, longest = torch.tensor(lengths), max(lengths)
    return Batch(
        ids=[str(n) for n in range(len(lengths))],
        inputs=torch.randn(len(lengths), longest + lookahead, INPUTS),
        targets=torch.randint(OUTPUTS, (len(lengths), longest)),
        weights=(torch.arange(longest) < counts[:, None]).float(),
        lengths=counts,
        frames=sum(lengths),
    )


def _sequence(kind, device, language, pairs):
    config = LstmConfig(INPUTS, language.senones.num_pdfs, HIDDEN, layers=2, lookahead=2)
    lengths = [len(sentence.pdfs) for _, sentence in pairs]
    frames_batch = _batch(lengths, 2)
    targets = pad_sequence([sentence.pdfs for _, sentence in pairs], batch_first=True)
    lattices = [lattice for lattice, _ in pairs]
    batch = LatticeBatch(**{**vars(frames_batch), "targets": targets}, lattices=lattices)
    classes = PdfClasses.of(language.senones).to(device)
    priors = torch.zeros(config.output_dim, device=device)
    objective = SequenceLoss(Criterion(kind), classes, priors, smoothing=0.1)
    return Task(LstmModel(config), objective, batch)


def _ctc(bidirectional):
    config = CtcConfig(
        input_dim=INPUTS,
        output_dim=9,
        channels=(32,),
        lstm_layers=2,
        hidden=HIDDEN,
        bidirectional=bidirectional,
        dropout=0.0,
    )
    lengths, counts = torch.tensor([90, 61, 70]), torch.tensor([8, 5, 6])
    batch = CtcBatch(
        ids=["a", "b", "c"],
        inputs=torch.randn(3, 90, INPUTS),
        input_lengths=lengths,
        labels=torch.randint(8, (3, 8)),
        label_lengths=counts,
        frames=int(lengths.sum()),
    )
    return Task(CtcModel(config), CtcLoss(blank=8), batch)
