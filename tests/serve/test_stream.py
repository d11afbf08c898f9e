"""Bytes to pieces to results."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.decode.decoded import DecodedUtterance
from toolkit.decode.stream import StreamResult
from toolkit.serve.client import ClientStream


class Recorder:
    """Keeps the pieces; every third result is final."""

    def __init__(self):
        self.pieces = []

    def push(self, samples):
        self.pieces.append(samples)
        n = len(self.pieces)
        final = DecodedUtterance(f"{n}") if n % 3 == 0 else None
        return StreamResult(f"{n}", final, 0.0, n / 10, None)

    def finish(self):
        return StreamResult("end", DecodedUtterance("end"), 0.0, 9.0, None)


@given(st.lists(st.integers(0, 900), max_size=12))
def test_pieces_have_one_length_for_any_split_of_the_bytes(sizes):
    samples = np.arange(sum(sizes)).astype("<i2")
    recorder = Recorder()
    stream, place, results = ClientStream(recorder, 1000), 0, []
    for size in sizes:
        results += stream.take(samples[place : place + size].tobytes())
        place += size
    results += stream.finish()
    assert [len(piece) for piece in recorder.pieces[:-1]] == [100] * (len(recorder.pieces) - 1)
    received = torch.cat([torch.zeros(0), *recorder.pieces]).numpy()
    assert np.array_equal(received * 32768, samples.astype(np.float32))
    finals = [result.text for result in results if result.final]
    assert finals == [f"{n}" for n in range(3, len(recorder.pieces) + 1, 3)] + ["end"]


@pytest.mark.parametrize(("pieces", "expected"), [(1, "1"), (3, "3"), (5, "35"), (8, "368")])
def test_only_the_newest_partial_result_is_shown(pieces, expected):
    stream = ClientStream(Recorder(), 1000)
    assert "".join(result.text for result in stream.take(bytes(200 * pieces))) == expected
