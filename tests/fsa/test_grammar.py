"""G equals the definition of back-off, by enumeration, and agrees with kaldilm."""

import itertools
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.fsa.transducers import assert_scores_equal, transductions, without_labels
from toolkit.fsa.fst import FINAL
from toolkit.fsa.grammar import GrammarError, grammar_acceptor
from toolkit.fsa.remove_epsilon import remove_epsilon
from toolkit.lang.arpa import write_arpa
from toolkit.lang.ngram import estimate, prune_by_entropy
from toolkit.lang.ngram import ngrams as words_of_ngrams
from toolkit.lang.tables import SymbolTable

WORDS = "<eps> 0\nA 1\nB 2\nC 3\n<UNK> 4\n#0 5\n<s> 6\n</s> 7\n"
NAMES = {1: "A", 2: "B", 3: "C"}
# The context "B C" is missing below "A B C"; "C" has no followers; D is not in words.txt.
ARPA = """\\data\\
ngram 1=7
ngram 2=7
ngram 3=4

\\1-grams:
-99 <s> -0.3
-0.8 </s>
-0.6 A -0.2
-0.5 B -0.1
-0.9 C -0.4
-1.5 D -0.4
-1.7 <unk>

\\2-grams:
-0.3 <s> A -0.15
-0.2 A B -0.25
-0.4 A </s>
-0.7 B A
-0.6 A D -0.1
-0.1 B D
-0.2 <s> B -0.35

\\3-grams:
-0.05 <s> A B
-0.15 A B C
-0.45 <s> A D
-0.55 A B </s>

\\end\\
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "words.txt").write_text(WORDS)
    (tmp_path / "g.arpa").write_text(ARPA)
    return tmp_path / "g.arpa", tmp_path / "words.txt"


def ngrams():
    scores_by_ngram, level = {}, 0
    for line in ARPA.splitlines():
        if line.startswith("\\") and "-grams" in line:
            level = int(line[1])
        elif level and line and not line.startswith("\\"):
            fields = line.split()
            backoff = float(fields[level + 1]) if len(fields) > level + 1 else 0.0
            scores_by_ngram[tuple(fields[1 : level + 1])] = (float(fields[0]), backoff)
    return scores_by_ngram


def best_scores(listed, memory, length):
    """The best score of every string, by enumeration of n-grams and back-offs at each word."""
    listed = {gram: entry for gram, entry in listed.items() if "D" not in gram}

    def state(history):
        history = history[-memory:]
        while history and history not in listed:
            history = history[1:]
        return history

    def ways(history, word):
        total = 0.0
        while True:
            if (*history, word) in listed:
                yield (*history, word), total + listed[(*history, word)][0]
            if not history:
                return
            total += listed[history][1]
            history = state(history[1:])

    best = {}
    for n in range(length + 1):
        for words in itertools.product(NAMES, repeat=n):
            paths = {state(("<s>",)): 0.0}
            for word in [*(NAMES[w] for w in words), "</s>"]:
                longer = {}
                for history, total in paths.items():
                    for gram, score in ways(history, word):
                        next_state = state(gram)
                        longer[next_state] = max(longer.get(next_state, -math.inf), total + score)
                paths = longer
            best[words] = max(paths.values()) * math.log(10)
    return best


def scored(fst, length):
    """The best score of every string of up to `length` words; back-off arcs are epsilons."""
    epsilon_free = remove_epsilon(replace(fst, labels=np.where(fst.labels == 5, 0, fst.labels)))
    scores = transductions(epsilon_free, length + 1)
    assert all(read == wrote for read, wrote in scores)
    return {read: score for (read, _), score in scores.items()}


def test_a_model_in_the_other_case_is_refused(files):
    arpa, table = files
    listed = SymbolTable.read(table)
    swapped_case = SymbolTable.of(w if w.startswith(("<", "#")) else w.swapcase() for w in listed)
    with pytest.raises(GrammarError, match=r"none of its words.*use the same spelling"):
        grammar_acceptor(arpa, swapped_case)


def test_a_grammar_scores_words_as_the_model_defines(files):
    fst = grammar_acceptor(*files)
    scores = {words: s for words, s in scored(fst, 4).items() if 4 not in words}
    assert_scores_equal(scores, best_scores(ngrams(), 2, 4))


def test_higher_orders_and_pruned_models(files):
    sentences = ["ABCAB", "CABC", "AABBC", "BCABA", "C", "ABC"]
    model = estimate(map(list, sentences), "ABC", order=5)[0]
    pruned = prune_by_entropy(model, 0.005)
    assert pruned.order == 5
    sizes = [[len(level.word) for level in m.levels] for m in (model, pruned)]
    assert all(few < many for many, few in zip(sizes[0][1:], sizes[1][1:], strict=True))
    for lm in (model, pruned):
        write_arpa(lm, files[0])
        listed = {}
        for k, level in enumerate(lm.levels):
            names = [tuple(lm.vocabulary[i] for i in row) for row in words_of_ngrams(lm, k)]
            entries = zip(level.logprob.tolist(), level.backoff.tolist(), strict=True)
            listed |= dict(zip(names, entries, strict=True))
        scores = {
            words: s for words, s in scored(grammar_acceptor(*files), 5).items() if 4 not in words
        }
        assert_scores_equal(scores, best_scores(listed, 4, 5))


def test_contexts_without_successors_are_skipped(files):
    fst = grammar_acceptor(*files)
    for state in range(fst.num_states - 1):
        leaving = fst.labels[fst.source == state].tolist()
        assert leaving != [5] or state == 0
    assert (fst.word_counts == ((fst.labels != 5) & (fst.labels != FINAL))).all()
    assert fst.words.tolist() == fst.labels[fst.word_counts > 0].tolist()


def kaldilm(arpa, words):
    """The fields of the arcs and final states that kaldilm writes."""
    command = [sys.executable, "-m", "kaldilm", f"--read-symbol-table={words}"]
    command += ["--disambig-symbol=#0", str(arpa)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split() for line in result.stdout.splitlines() if line]


def kaldilm_scores(lines, sentences):
    """The best score of sentences through kaldilm's arcs; `#0` is an epsilon."""
    arcs, finals = {}, {}
    for fields in lines:
        if len(fields) <= 2:
            finals[fields[0]] = -float(fields[1]) if len(fields) == 2 else 0.0
        else:
            weight = -float(fields[4]) if len(fields) == 5 else 0.0
            arcs.setdefault((fields[0], int(fields[2])), []).append((fields[1], weight))
    scores = []
    for sentence in sentences:
        states = {lines[0][0]: 0.0}
        for word in [*sentence, None]:
            waiting = list(states.items())
            while waiting:
                state, score = waiting.pop()
                for target, weight in arcs.get((state, 5), []):
                    if score + weight > states.get(target, -math.inf):
                        states[target] = score + weight
                        waiting.append((target, score + weight))
            if word is not None:
                longer = {}
                for state, score in states.items():
                    for target, weight in arcs.get((state, word), []):
                        longer[target] = max(longer.get(target, -math.inf), score + weight)
                states = longer
        ends = [score + finals[state] for state, score in states.items() if state in finals]
        scores.append(max(ends, default=-math.inf))
    return scores


@pytest.mark.parametrize("source", ["by hand", "estimated"])
def test_kaldilm_agrees(files, source):
    pytest.importorskip("kaldilm")
    arpa, words = files
    rng = np.random.default_rng(0)
    if source == "estimated":
        text = [[NAMES[w] for w in rng.integers(1, 4, n)] for n in rng.integers(1, 6, 30)]
        write_arpa(estimate(text, {"A", "B", "C"}, order=3)[0], arpa)
    scores = scored(grammar_acceptor(arpa, words), 4)
    sentences = [words for words in scores if 4 not in words]
    reference_scores = kaldilm_scores(kaldilm(arpa, words), sentences)
    assert_scores_equal(
        dict(zip(sentences, reference_scores, strict=True)),
        {words: scores[words] for words in sentences},
    )
    assert len(sentences) == sum(3**n for n in range(5))


def test_scores_go_with_words_through_epsilon_removal(files):
    """With back-off symbols kept, every string has the same score."""
    fst = grammar_acceptor(*files)
    with_symbols = without_labels(transductions(fst, 9), 5)
    short = {read: s for (read, _), s in with_symbols.items() if len(read) <= 2}
    assert_scores_equal(short, {words: s for words, s in scored(fst, 2).items()})


def test_broken_arpa_is_reported(tmp_path):
    (tmp_path / "words.txt").write_text("<eps> 0\nA 1\n#0 2\n")
    (tmp_path / "bad.arpa").write_text("this is not a language model\n")
    with pytest.raises(GrammarError, match=r"bad\.arpa"):
        grammar_acceptor(tmp_path / "bad.arpa", tmp_path / "words.txt")


def test_no_common_word_is_reported(files):
    arpa, words = files
    arpa.write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-1 <s>\n-1 </s>\n-1 c\n\n\\end\\\n")
    with pytest.raises(GrammarError, match="use the same spelling") as error:
        grammar_acceptor(arpa, words)
    assert str(arpa) in str(error.value)
    assert str(words) in str(error.value)


def test_a_model_of_the_backoff_symbol_is_refused(files):
    arpa, words = files
    arpa.write_text(ARPA.replace("-1.7 <unk>", "-1.7 #0"))
    with pytest.raises(GrammarError, match="reserved symbol"):
        grammar_acceptor(arpa, words)
