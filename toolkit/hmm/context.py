"""Phonetic context: the left and right neighbour of the phone at each frame."""

import torch
from torch import Tensor

from toolkit.hmm.topology import Topology


def phone_contexts(topology: Topology, states: Tensor) -> tuple[Tensor, Tensor]:
    """Find the phones before and after the phone of each frame.

    Before the first phone and after the last one there is silence: the edge of a recording is a
    pause, not a sound of its own.

    Args:
      topology: the HMMs of the alignment.
      states: [T] state ids, T at least 1.

    Returns:
      The phones [T] before and [T] after the frame's phone, int64.
    """
    starts = topology.phone_starts(states)
    instance = starts.long().cumsum(0) - 1
    phones = torch.tensor(topology.phone_of_state_id)[states[starts]]
    edge = torch.tensor([topology.silence])
    return torch.cat([edge, phones[:-1]])[instance], torch.cat([phones[1:], edge])[instance]
