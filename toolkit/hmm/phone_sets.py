"""Phone variants by stress and word position, and phones that share tree roots."""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.hmm.topology import Topology
from toolkit.storage.lines import read_lines

POSITION = re.compile(r"_([BIES])$")
"""Kaldi's word-position suffixes: begin, internal, end, singleton (a word of one phone)."""
STRESS = re.compile(r"([0-9])$")
"""Lexical stress (0, 1, 2) or a tone, after the position is taken off."""


class PhoneSetError(ToolkitError):
    """Raised for a malformed file of phone sets (questions or roots)."""


class PhoneParts(NamedTuple):
    """The parts of a phone symbol, e.g. (AH, 0, B) for AH0_B."""

    base: str
    stress: str
    position: str


class RootGroup(NamedTuple):
    """Phones that share a tree root for each of their states."""

    phones: tuple[int, ...]
    """Phone ids, ascending."""
    split: bool
    """Whether the root may be split; if not, its phones share their pdfs in every context."""


def split_phone(symbol: str) -> PhoneParts:
    """Split a phone symbol into its parts; a symbol of suffixes only is its own base."""
    base, stress, position = symbol, "", ""
    if (match := POSITION.search(base)) and match.start():
        base, position = base[: match.start()], match[1]
    if (match := STRESS.search(base)) and match.start():
        base, stress = base[: match.start()], match[1]
    return PhoneParts(base, stress, position)


def base_phone_groups(topology: Topology) -> list[tuple[int, ...]]:
    """Group phone ids by base phone, ordered by first id; silence and speech never mix."""
    groups: dict[tuple[str, bool], list[int]] = {}
    for phone, symbol in enumerate(topology.phones, 1):
        silence = topology.is_silence(phone)
        groups.setdefault((split_phone(symbol).base, silence), []).append(phone)
    return [tuple(phones) for phones in groups.values()]


def default_roots(topology: Topology) -> list[RootGroup]:
    """Return default roots: one per base phone; roots of silence phones are not split."""
    return [RootGroup(p, not topology.is_silence(p[0])) for p in base_phone_groups(topology)]


def read_roots(path: Path, topology: Topology) -> list[RootGroup]:
    """Read Kaldi's roots.txt, with lines `shared split PHONE ...`.

    The phones of a line share a root. `not-split` keeps the root whole: the phones share their
    pdfs in every context. Roots of silence phones are kept whole either way. In Kaldi `shared` lets
    the HMM states of a phone share a root too; here each state always has a root of its own, so
    that `shared` and `not-shared` mean the same.

    Raises:
      PhoneSetError: a line is malformed or mixes silence and speech; or a phone is unknown,
        repeated or missing. Names the file and line.
    """
    groups: list[RootGroup] = []
    line_of: dict[int, int] = {}
    for number, line in read_lines(path, PhoneSetError):
        fields = line.split()
        if not fields:
            continue
        if (
            len(fields) < 3
            or fields[0] not in ("shared", "not-shared")
            or fields[1] not in ("split", "not-split")
        ):
            raise PhoneSetError(
                f"{path}:{number}: expected `shared split PHONE ...` (or `not-shared` instead of "
                f"`shared`, `not-split` instead of `split`), found {line!r}"
            )
        phones = phone_ids(fields[2:], topology, f"{path}:{number}")
        for phone in phones:
            if phone in line_of:
                raise PhoneSetError(
                    f"{path}:{number}: {topology.phones[phone - 1]} already has a root in line "
                    f"{line_of[phone]}"
                )
            line_of[phone] = number
        silence = {topology.is_silence(phone) for phone in phones}
        if len(silence) > 1:
            raise PhoneSetError(
                f"{path}:{number}: silence and speech phones cannot share a root: write them on "
                "different lines"
            )
        groups.append(RootGroup(phones, fields[1] == "split" and not silence.pop()))
    missing = [topology.phones[p - 1] for p in topology.phone_ids() if p not in line_of]
    if missing:
        raise PhoneSetError(f"{path}: no root for {' '.join(missing)}: add these phones to a line")
    return groups


def phone_ids(symbols: list[str], topology: Topology, place: str) -> tuple[int, ...]:
    """Return the distinct ids of phone symbols in ascending order.

    Args:
      symbols: phone symbols.
      topology: holds all the phones.
      place: file and line, for the error message.

    Raises:
      PhoneSetError: a symbol is not one of the phones.
    """
    for symbol in symbols:
        if symbol not in topology.phones:
            near = get_close_matches(symbol, topology.phones, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise PhoneSetError(f"{place}: no phone {symbol!r}{hint}")
    return tuple(sorted({topology.phones.index(symbol) + 1 for symbol in symbols}))
