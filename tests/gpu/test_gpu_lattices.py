"""Sequence criteria on a GPU equal those of the compiled loop on the CPU."""

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from toolkit.fsa.config import Criterion
from toolkit.fsa.discriminative import PdfClasses, sequence_objective

CRITERIA = [
    Criterion("smbr"),
    Criterion("smbr", one_silence_class=False),
    Criterion("mpfe"),
    Criterion("mmi", boost=0.1),
    Criterion("mmi", drop_frames=False),
]


@pytest.mark.parametrize("criterion", CRITERIA, ids=str)
def test_value_and_gradient_equal_the_cpu(criterion, device, sentences):
    language, pairs = sentences
    lattices, spoken = zip(*pairs, strict=True)
    scores = pad_sequence([sentence.scores.double() for sentence in spoken], batch_first=True)
    results = []
    for where in (torch.device("cpu"), device):
        leaf = scores.clone().to(where).requires_grad_()
        references = [sentence.pdfs.to(where) for sentence in spoken]
        classes = PdfClasses.of(language.senones).to(where)
        value = sequence_objective(lattices, leaf, references, criterion, classes)
        value.objective.sum().backward()
        results.append((value.objective.detach().cpu(), leaf.grad.cpu(), value.missing.cpu()))
    for on_cpu, elsewhere in zip(*results, strict=True):
        torch.testing.assert_close(elsewhere, on_cpu, rtol=1e-6, atol=1e-6)
