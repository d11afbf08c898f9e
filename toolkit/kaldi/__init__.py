"""Reads and writes the file formats of Kaldi and OpenFst.

    from toolkit import kaldi

    cuts = kaldi.read_kaldi_dir(Path("data/train"))

The names below are imported when they are first used: data directories need neither torch nor the
graph search.
"""

from importlib import import_module
from typing import Any

_FRONT = {
    "data_dir": ("read_kaldi_dir", "write_kaldi_dir", "export_data_dir"),
    "validate": ("data_dir_faults", "data_dir_remarks"),
    "feature_dir": ("read_feature_dir",),
    "archive": ("entries", "read_matrix", "read_vector", "ArchiveWriter"),
    "features": ("import_features", "export_features"),
    "alignments": ("import_alignments", "import_phone_times", "export_alignments"),
    "dict_lang": ("read_lexicon", "read_dict", "write_dict", "read_lang", "write_lang"),
    "model": ("KaldiTransitions", "Transitions", "read_tree", "read_senones"),
    "graph": ("export_graph", "export_likelihoods", "load_graph", "write_lang_dir"),
    "lattices": ("import_lattices", "export_lattices"),
}
"""Public names by module."""
_MODULES = {name: module for module, names in _FRONT.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _MODULES:
        raise AttributeError(f"{__name__} has no {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
