"""Self-test of k2, in a second: a dense pruned intersection with a known best path."""

import math

import k2
import torch

_GRAPH = """0 1 1 -0.5
0 1 2 0.0
1 2 1 0.0
1 2 2 -0.25
2 3 -1 0.0
3"""


def intersect_two_frames() -> str:
    """Decode two frames on a two-word graph; the best of four paths was found by hand.

    Returns:
      What was tested, for a report.

    Raises:
      RuntimeError: k2 runs but finds another path or score.
    """
    frames = torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.1, 0.7]]).log()  # [T, C]
    lattice = k2.intersect_dense_pruned(
        k2.create_fsa_vec([k2.arc_sort(k2.Fsa.from_str(_GRAPH))]),
        k2.DenseFsaVec(frames[None], torch.tensor([[0, 0, 2]], dtype=torch.int32)),
        search_beam=20.0,
        output_beam=10.0,
        min_active_states=1,
        max_active_states=100,
    )
    best = k2.shortest_path(lattice, use_double_scores=True)
    labels = best.labels.tolist()
    score = best.get_tot_scores(use_double_scores=True, log_semiring=False).item()
    expected = math.log(0.6) - 0.5 + math.log(0.7) - 0.25
    if labels != [1, 2, -1] or abs(score - expected) > 1e-5:
        raise RuntimeError(f"k2 found {labels} at {score}, not [1, 2, -1] at {expected}")
    return "dense pruned intersection"
