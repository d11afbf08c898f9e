"""Utterances several at a time against each alone."""

import pytest
import torch

pytest.importorskip("k2")

from toolkit.align import batched
from toolkit.align.batched import align_batched
from toolkit.fsa.alignment import AlignConfig, force_align


@pytest.mark.parametrize("frames", [1, 400, 10**6])
def test_batches_of_any_size_give_what_each_utterance_gives_alone(plant, monkeypatch, frames):
    monkeypatch.setattr(batched, "SEARCH_FRAMES", frames)
    planted = {f"u{seed}": plant(4 + seed, seed) for seed in range(5)}
    planted["u2"].scores = planted["u2"].scores[:6]  # too few frames for its words
    found = align_batched(
        [(name, utterance.words) for name, utterance in planted.items()],
        lambda name, pdfs: planted[name].scores[:, pdfs],
        plant.compiler,
        AlignConfig(),
    )
    found = dict(found)
    assert list(found) == list(planted)
    assert [name for name, path in found.items() if path is None] == ["u2"]
    for name, path in found.items():
        graph = plant.compiler.compile(planted[name].words)
        alone = force_align(
            planted[name].scores[:, graph.pdfs], graph, plant.senones, AlignConfig()
        )
        if path is not None:
            assert torch.equal(path.states, alone.states)
            assert path.words == alone.words
            assert path.score == pytest.approx(alone.score, abs=1e-4)


def test_no_utterances_give_nothing(plant):
    assert list(align_batched([], lambda name, pdfs: None, plant.compiler, AlignConfig())) == []
