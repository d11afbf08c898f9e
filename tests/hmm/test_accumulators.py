import pickle
from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.hmm.gmm import Accumulators


@dataclass
class Example(Accumulators):
    frames: int
    total: Tensor


def test_add_sums_every_field():
    total, part = Example(3, torch.tensor([1.0, 2.0])), Example(4, torch.tensor([10.0, 20.0]))
    total.add(part)
    assert total.frames == 7
    assert total.total.tolist() == [11.0, 22.0]
    assert part.total.tolist() == [10.0, 20.0]


def test_pickles_hold_numpy_arrays_and_come_back_writable():
    example = Example(3, torch.tensor([1.0, 2.0]).double())
    assert not any(isinstance(v, Tensor) for v in example.__reduce__()[1])
    unpickled = pickle.loads(pickle.dumps(example))
    unpickled.add(example)
    assert unpickled.frames == 6
    assert unpickled.total.dtype == torch.float64
    assert unpickled.total.tolist() == [2.0, 4.0]
