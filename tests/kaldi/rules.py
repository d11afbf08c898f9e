"""The rules of Kaldi's validate_lang.pl for a lang directory, for tests.

Those that need Kaldi's own programs (determinisation) are not here.
"""

import itertools
import random
from pathlib import Path

from tests.kaldi.openfst_files import read_openfst

BOUNDARIES = ("nonword", "begin", "end", "internal", "singleton")
# What may follow a phone of each kind within and between words; what begins a word counts it.
BETWEEN = {"nonword", "begin", "singleton", None}
FOLLOWING = {
    **dict.fromkeys((None, "nonword", "end", "singleton"), BETWEEN),
    "begin": {"internal", "end"},
    "internal": {"internal", "end"},
}


def lang_faults(folder, seed=0, sentences=20):
    """The faults of a directory; none if it is valid."""
    return list(_faults(Path(folder), random.Random(seed), sentences))


def _faults(folder, generator, sentences):
    phones, words = (_table(folder / f"{name}.txt") for name in ("phones", "words"))
    for name, table in (("phones", phones), ("words", words)):
        if len(set(table.values())) != len(table):
            yield f"{name}.txt: an id twice"
    lists = {
        name: (folder / f"phones/{name}.txt").read_text("utf-8").split()
        for name in ("silence", "nonsilence", "optional_silence", "context_indep", "disambig")
    }
    for name, members in lists.items():
        yield from _list_faults(folder, name, members, phones)
    silence, speech, symbols = (lists[n] for n in ("silence", "nonsilence", "disambig"))
    for a, b in ((silence, speech), (silence, symbols), (speech, symbols)):
        if set(a) & set(b):
            yield "sets that are not disjoint"
    if not silence or not speech or not symbols:
        yield "an empty set"
    if {*silence, *speech, *symbols, "<eps>"} != set(phones):
        yield "phones in no set, or in none of phones.txt"
    if len(lists["optional_silence"]) != 1 or not set(lists["optional_silence"]) <= set(silence):
        yield "optional silence"
    if not {"#0", "#1"} <= set(symbols):
        yield "disambiguation symbols"
    real = {*silence, *speech}
    for name in ("sets", "roots"):
        rows = list(_rows(folder, name, phones))
        yield from (row for row in rows if isinstance(row, str))
        members = [phone for row in rows if not isinstance(row, str) for phone in row]
        if len(set(members)) != len(members) or set(members) != real:
            yield f"{name}: not each phone once"
    questions = list(_rows(folder, "extra_questions", phones))
    yield from (row for row in questions if isinstance(row, str))
    yield from _topology_faults(folder, {phones[phone] for phone in real})
    yield from _symbol_faults(folder, phones, words)
    if (folder / "oov.int").read_text().split() != [
        str(words.get(word)) for word in (folder / "oov.txt").read_text("utf-8").split()
    ]:
        yield "oov"
    forbidden = {words["<s>"], words["</s>"]}
    yield from _boundary_faults(folder, phones, words, real, symbols, generator, sentences)
    yield from _transducer_faults(folder, forbidden, words["#0"])


def _table(path):
    rows = [line.split() for line in path.read_text("utf-8").split("\n")[:-1]]
    assert all(len(row) == 2 for row in rows)
    return {symbol: int(number) for symbol, number in rows}


def _list_faults(folder, name, members, phones):
    ids = [str(phones.get(phone)) for phone in members]
    lines = (folder / f"phones/{name}.txt").read_text("utf-8").split("\n")[:-1]
    if lines != members:
        yield f"{name}.txt: not a phone per line"
    if (folder / f"phones/{name}.int").read_text().split("\n")[:-1] != ids:
        yield f"{name}.int"
    if (folder / f"phones/{name}.csl").read_text() != ":".join(ids) + "\n":
        yield f"{name}.csl"


def _rows(folder, name, phones):
    """The phones of each line, or the fault of the line."""
    text, numbers = (
        (folder / f"phones/{name}.{end}").read_text("utf-8").split("\n")[:-1]
        for end in ("txt", "int")
    )
    if len(text) != len(numbers) or not text:
        yield f"{name}: other lines in .int"
    for symbols, ids in zip(text, numbers, strict=False):
        row, flags = symbols.split(), []
        if name == "roots":
            flags, row = row[:2], row[2:]
            shared, split = flags
            if shared not in ("shared", "not-shared") or split not in ("split", "not-split"):
                yield "roots: how"
        if name == "word_boundary":
            row, flags = row[:1], row[1:]
            if len(flags) != 1 or flags[0] not in BOUNDARIES:
                yield "word_boundary: kind"
        expected = [str(phones.get(phone)) for phone in row]
        if ids.split() != (expected + flags if name == "word_boundary" else flags + expected):
            yield f"{name}: other phones in .int"
        yield row


def _topology_faults(folder, real):
    lines = (folder / "topo").read_text().split("\n")[:-1]
    listed_phones = [
        int(number) for line in lines if not line.startswith("<") for number in line.split()
    ]
    if sorted(listed_phones) != sorted(real):
        yield "topo: not each phone once"


def _symbol_faults(folder, phones, words):
    names = (folder / "phones/wdisambig.txt").read_text().split()
    for kind, table in (("phones", phones), ("words", words)):
        ids = (folder / f"phones/wdisambig_{kind}.int").read_text().split()
        if ids != [str(table.get(name)) for name in names] or not names:
            yield f"wdisambig_{kind}.int"


def _boundary_faults(folder, phones, words, real, symbols, generator, sentences):
    """Phones of sentences through L and L_disambig have as many words by their boundaries."""
    if not (folder / "phones/word_boundary.txt").exists():
        return
    rows = list(_rows(folder, "word_boundary", phones))
    yield from (row for row in rows if isinstance(row, str))
    lines = (folder / "phones/word_boundary.txt").read_text("utf-8").split("\n")[:-1]
    kinds = {phones[phone]: kind for phone, kind in (line.split() for line in lines)}
    if set(kinds) != {phones[phone] for phone in real}:
        yield "word_boundary: other phones"
    left_out = {words[name] for name in ("<eps>", "#0", "<s>", "</s>")}
    spoken = sorted(set(words.values()) - left_out)
    for name in ("L.fst", "L_disambig.fst"):
        lexicon = read_openfst((folder / name).read_bytes())
        for number in range(sentences):
            # Every word is said in one of the sentences.
            sentence = spoken[number::sentences] or [generator.choice(spoken)]
            generator.shuffle(sentence)
            read = _spoken(lexicon, sentence, generator)
            if read is None:
                yield f"{name}: lacks a word"
                continue
            phones_read = [p for p in read if p not in {phones[symbol] for symbol in symbols}]
            if any(phone not in kinds for phone in phones_read):
                yield f"{name}: reads other phones"
                continue
            states = [None, *(kinds[phone] for phone in phones_read), None]
            steps = list(itertools.pairwise(states))
            if any(to not in FOLLOWING[state] for state, to in steps):
                yield f"{name}: boundaries within words"
            if sum(to in ("begin", "singleton") for _, to in steps) != len(sentence):
                yield f"{name}: another number of words"


def _spoken(lexicon, sentence, generator):
    """The input labels of a random path that outputs a sentence; None without a path."""
    _, arcs, finals = lexicon
    leaving = {}
    for arc in arcs:
        leaving.setdefault(arc[0], []).append(arc)
    path, tried, dead = [(0, 0, 0)], [None], set()
    while path:
        state, done, _ = path[-1]
        if done == len(sentence) and state in finals:
            return [read for *_, read in path[1:] if read]
        if tried[-1] is None:
            tried[-1] = generator.sample(leaving.get(state, []), len(leaving.get(state, [])))
        if not tried[-1]:
            dead.add((state, done))
            path.pop()
            tried.pop()
            continue
        _, target, read, written, _ = tried[-1].pop()
        if written and (done == len(sentence) or written != sentence[done]):
            continue
        step = target, done + (written > 0)
        if step not in dead:
            path.append((*step, read))
            tried.append(None)
    return None


def _transducer_faults(folder, forbidden, backoff):
    for name in ("L.fst", "L_disambig.fst"):
        _, arcs, _ = read_openfst((folder / name).read_bytes())
        written = [(arc[0], arc[3]) for arc in arcs]
        if written != sorted(written):
            yield f"{name}: not sorted by output labels"
    if not (folder / "G.fst").exists():
        return
    states, arcs, _ = read_openfst((folder / "G.fst").read_bytes())
    read = [(arc[0], arc[2]) for arc in arcs]
    if not states or read != sorted(read):
        yield "G.fst: empty, or not sorted by input labels"
    silent = {}
    for source, target, label, word, _ in arcs:
        if {label, word} & forbidden:
            yield "G.fst: <s> or </s>"
        if label in (0, backoff):
            silent.setdefault(source, []).append(target)
            if word:
                yield "G.fst: a back-off arc that writes"
        elif label != word:
            yield "G.fst: another output"
    for state in silent:
        reached, waiting = set(), [state]
        while waiting:
            for target in silent.get(waiting.pop(), []):
                if target not in reached:
                    reached.add(target)
                    waiting.append(target)
        if state in reached:
            yield "G.fst: a cycle of back-off arcs"
            return
