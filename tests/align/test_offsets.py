"""Targets from alignments at the three offsets of the low rate."""

import pytest
import torch

from toolkit.align.store import AlignmentStore, OffsetAlignments, write_shard
from toolkit.features.low_frame_rate import centre
from toolkit.hmm.senones import Senones
from toolkit.hmm.topology import Topology

SENONES = Senones.monophone(Topology(("SIL", "A", "B"), ("SIL",)).at_low_rate())


def num_output_frames(frames, offset):
    return -((offset - frames) // 3)


@pytest.mark.parametrize("frames", [3, 4, 5, 17])
def test_each_offset_gets_its_own_alignment(tmp_path, frames):
    stores, rows = [], []
    for offset in range(3):
        generator = torch.Generator().manual_seed(offset)
        rows.append(torch.randint(0, 6, (num_output_frames(frames, offset),), generator=generator))
        folder = tmp_path / f"{offset}"
        folder.mkdir()
        aligned = {"u": rows[-1]} | ({"lost": rows[-1]} if offset != 1 else {})
        write_shard(folder / "ali.000000.tar", aligned, [])
        stores.append(AlignmentStore(folder))
    targets = OffsetAlignments(stores, SENONES)
    assert targets.ids == ["u"]
    utterance_targets = targets.load("u")
    assert len(utterance_targets) == frames
    for offset, row in enumerate(rows):
        at = centre(frames, offset)
        inside = at < frames - 1  # at the end the stacks of several offsets have one middle
        assert torch.equal(utterance_targets[at][inside], row[inside])
