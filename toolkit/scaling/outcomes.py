"""How simulated trainings are named and written into tables."""

from math import isnan

from toolkit.scaling.simulator.run import Outcome

NAMES = {
    "ssgd": "S-SGD",
    "scpsgd": "SCPSGD",
    "gtc": "GTC",
    "bmuf": "BMUF",
    "asgd": "A-SGD",
    "adpsgd": "ADPSGD",
    "adpsgd random": "ADPSGD, random pairs",
    "adpsgd shuffled": "ADPSGD, shuffled ring",
    "adpsgd delayed": "ADPSGD, delay by one",
    "hadpsgd": "H-ADPSGD",
}


def outcome_values(outcome: Outcome) -> dict[str, object]:
    """Return a training's values in the CSVs."""
    return {
        "method": NAMES[outcome.method],
        "workers": outcome.workers,
        "speedup": round(outcome.speedup, 3),
        "efficiency": round(outcome.efficiency, 4),
        "bytes_per_step": round(outcome.bytes_per_step),
        "bytes_between_hosts_per_step": round(outcome.between / outcome.minibatches),
        "computation_by_communication": round(outcome.ratio, 3),
        "density": None if isnan(outcome.density) else round(outcome.density, 5),
        "loss": outcome.loss,
        "accuracy": outcome.accuracy,
    }
