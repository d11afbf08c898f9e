"""Units of a few letters."""

from toolkit.lang.units import UnitsError


class Toy:
    """Units of a few letters, each label one character; `starts` mark pieces that begin words."""

    kind = "toy"

    def __init__(self, letters, starts=""):
        self.symbols = [*letters, "<blank>"]
        self.size, self.blank, self._starts = len(self.symbols), len(letters), starts

    def encode(self, text):
        if not set(text) <= set(self.symbols):
            raise UnitsError(f"cannot write {text!r}")
        return [self.symbols.index(c) for c in text]

    def decode(self, ids):
        text = "".join(f" {c}" if (c := self.symbols[i]) in self._starts else c for i in ids)
        return " ".join(text.split())

    def save(self, folder):
        raise NotImplementedError
