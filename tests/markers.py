"""Markers of finished stages, as the runner writes them."""

from toolkit.stages.marker import Attempt, CodeVersion, Marker, Provenance

CODE = CodeVersion("0123456789abcdef" * 2, False, "", {"python": "3.10.1", "k2": None})


def attempt(code=CODE, started="2026-01-01T00:00:00+00:00", numeric=None):
    return Attempt(started, code, numeric or {})


def make_marker(number=1, title="t", *, parameters=None, inputs=None, code=CODE, **values):
    """A marker of one attempt; `values` are fields of `Marker`."""
    defaults = {
        "outputs": {},
        "command": "run.py",
        "started": "2026-01-01T00:00:00+00:00",
        "ended": "2026-01-01T00:00:01+00:00",
        "seconds": 1.0,
        "headline": {},
        "peak_bytes": 2**20,
    }
    provenance = Provenance(parameters or {}, inputs or {}, [attempt(code)])
    return Marker(number, title, provenance, **(defaults | values))
