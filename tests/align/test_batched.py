"""Batched alignment against the alignment of each utterance by itself."""

import pytest
import torch

from toolkit.align import force_align as force_align_module
from toolkit.align.config import AlignConfig
from toolkit.align.force_align import align_batched, force_align


@pytest.mark.parametrize("frames", [1, 400, 10**6])
def test_batched_alignments_equal_single_alignments(synthesise, monkeypatch, frames):
    monkeypatch.setattr(force_align_module, "SEARCH_FRAMES", frames)
    synthetic = {f"u{seed}": synthesise(4 + seed, seed) for seed in range(5)}
    synthetic["u2"].scores = synthetic["u2"].scores[:6]  # too few frames for its words
    alignments = dict(
        align_batched(
            [(name, utterance.words) for name, utterance in synthetic.items()],
            lambda name, pdfs: synthetic[name].scores[:, pdfs],
            synthesise.compiler,
            AlignConfig(),
        )
    )
    assert list(alignments) == list(synthetic)
    assert [name for name, path in alignments.items() if path is None] == ["u2"]
    for name, path in alignments.items():
        graph = synthesise.compiler.compile(synthetic[name].words)
        scores = synthetic[name].scores[:, graph.pdfs]
        (alone,) = force_align([scores], [graph], synthesise.senones, AlignConfig())
        if path is not None:
            assert torch.equal(path.states, alone.states)
            assert path.words == alone.words
            assert path.score == pytest.approx(alone.score, abs=1e-4)


def test_no_utterances_give_nothing(synthesise):
    assert (
        list(align_batched([], lambda name, pdfs: None, synthesise.compiler, AlignConfig())) == []
    )
