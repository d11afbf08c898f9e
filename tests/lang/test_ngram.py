"""Back-off models: estimation, interpolation, pruning, perplexity."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.lang.arpa import read_arpa
from toolkit.lang.ngram import (
    LOG_ZERO,
    BackoffModel,
    Level,
    NgramError,
    discount,
    estimate,
    interpolate,
    mixture_weights,
    ngrams,
    perplexity,
    prune_by_entropy,
    removal_losses,
    renormalised,
)

CORPUS = [["A", "B", "A"], ["A", "C"], ["B", "A", "B", "Z"], ["C", "A", "B"]]
VOCABULARY = {"A", "B", "C"}


@pytest.fixture
def model():
    return estimate(CORPUS, VOCABULARY, order=3)[0]


def entries(model):
    """The model as {n-gram: (log10 probability, back-off)}."""
    table, histories = {}, [()]
    for level in model.levels:
        ngrams = [
            (*histories[c], model.vocabulary[w])
            for c, w in zip(level.context, level.word, strict=True)
        ]
        table.update(zip(ngrams, zip(level.logprob, level.backoff, strict=True), strict=True))
        histories = ngrams
    return table


def by_definition(table, word, history):
    if (*history, word) in table:
        return table[(*history, word)][0]
    if not history:
        return LOG_ZERO
    weight = table[history][1] if history in table else 0.0
    return weight + by_definition(table, word, history[1:])


@pytest.mark.parametrize("sentence", [[], ["A"], ["A", "B", "A", "C"], ["C", "C", "Q", "B", "A"]])
def test_sentence_scores_equal_the_definition(model, sentence):
    table = entries(model)
    words = ["<s>", *(w if w in VOCABULARY else "<UNK>" for w in sentence), "</s>"]
    expected = sum(
        by_definition(table, words[i], tuple(words[max(0, i - 2) : i]))
        for i in range(1, len(words))
    )
    assert model.logprob(sentence) == pytest.approx(expected, abs=1e-10)


def test_token_logprobs_sum_to_the_scores_of_the_sentences(model):
    sentences = [["A", "B"], [], ["C", "Q", "A"]]
    tokens = [i for s in sentences for i in model.word_ids(["<s>", *s, "</s>"])]
    logprobs = model.token_logprobs(np.array(tokens))
    assert logprobs[logprobs > LOG_ZERO].sum() == pytest.approx(sum(map(model.logprob, sentences)))


def test_scores_word_by_word_equal_the_score_of_the_sentence(model):
    state = model.start(2)
    total = np.zeros(2)
    for pair in (["A", "C"], ["B", "A"], ["</s>", "</s>"]):
        logprob, state = model.step(state, np.array(model.word_ids(pair)))
        total += logprob
    assert total == pytest.approx([model.logprob(["A", "B"]), model.logprob(["C", "A"])])


def test_restriction_keeps_weights_and_drops_words(model):
    small = model.restrict({"A", "B"})
    assert small.vocabulary == ("</s>", "<UNK>", "<s>", "A", "B")
    expected = {g: weights for g, weights in entries(model).items() if "C" not in g}
    assert entries(small) == expected
    assert model.restrict(VOCABULARY).logprob(["A", "C"]) == model.logprob(["A", "C"])


def test_restriction_to_nothing_leaves_unigrams_and_the_weights_of_their_contexts():
    whole = estimate([["A", "B"]], {"A", "B"}, order=3)[0]
    model, table = whole.restrict(set()), entries(whole)
    assert [len(level.word) for level in model.levels] == [3, 0]
    start = table[("<s>",)][1]
    expected = start + table[("<UNK>",)][0] + table[("</s>",)][0]
    assert model.logprob(["A"]) == pytest.approx(expected, abs=1e-12)
    assert start != 0


def test_a_highest_level_without_ngrams_and_weights_is_dropped(model):
    bare = [replace(level, backoff=np.zeros(len(level.word))) for level in model.levels[:1]]
    nothing = Level(*(np.zeros(0, dtype=np.int64) for _ in range(4)))
    assert BackoffModel(model.vocabulary, [*bare, nothing]).order == 1


@settings(max_examples=100, deadline=None)
@given(order=st.integers(1, 4), seed=st.integers(0, 10**6), dropped=st.sets(st.integers(0, 3)))
def test_a_restricted_model_scores_like_the_full_one(order, seed, dropped):
    """Any words may remain, even if no n-gram of the highest order does."""
    rng = np.random.default_rng(seed)
    vocabulary = sorted(["<s>", "</s>", "<UNK>", *"ABCD"])
    levels, below = [], 1
    for n in range(order):
        keys = np.arange(below * 7)
        if n:
            keys = np.sort(rng.choice(keys, len(keys) // 4, replace=False))
        weights = rng.uniform(-2, 0, (2, len(keys)))
        levels.append(Level(keys // 7, keys % 7, *weights))
        below = len(keys)
    whole = BackoffModel(vocabulary, levels)
    words = [w for i, w in enumerate("ABCD") if i not in dropped]
    small = whole.restrict(words)
    for length in range(4):
        sentence = rng.choice(words, length).tolist() if words else []
        assert small.logprob(sentence) == pytest.approx(whole.logprob(sentence), abs=1e-12)


def test_bigram_probabilities_equal_values_computed_by_hand():
    model, discounts = estimate([["A", "B"], ["A", "C"]], {"A", "B", "C"}, order=2)
    assert [d.rule for d in discounts] == ["absolute", "absolute"]
    # left neighbours: A 1, B 1, C 1, </s> 2; n1 = 3, n2 = 1: D = 3/5; 0.48 shared by 5 symbols
    # bigrams: <s> A twice, four others once; n1 = 4, n2 = 1: D = 2/3
    expected = {
        (): {"A": 0.176, "B": 0.176, "C": 0.176, "</s>": 0.376, "<UNK>": 0.096, "<s>": 0},
        ("<s>",): {"A": 2 / 3 + 0.176 / 3, "B": 0.176 / 3, "<UNK>": 0.032},
        ("A",): {"B": 1 / 6 + 0.176 * 2 / 3, "</s>": 0.376 * 2 / 3},
        ("B",): {"</s>": 1 / 3 + 0.376 * 2 / 3, "A": 0.176 * 2 / 3},
        ("<UNK>",): {"A": 0.176},
    }
    for history, probabilities in expected.items():
        distribution = model.distribution(history)
        for word, probability in probabilities.items():
            assert distribution[model.ids[word]] == pytest.approx(probability, abs=1e-12)


def test_modified_kneser_ney_has_three_discounts():
    discounts = discount(np.array([0, 0, 1, 1, 1, 1, 2, 2, 3, 4, 9]))
    assert discounts.rule == "modified"
    assert discounts.values == pytest.approx((0.5, 1.25, 1.0))  # Y = 4 / 8


@pytest.mark.parametrize(
    ("counts", "rule", "values"),
    [
        ([1, 1, 2, 3, 4, 4], "absolute", (0.5, 0.5, 0.5)),  # D3 = 3 - 4 * 0.5 * 2 < 0
        ([1, 2], "absolute", (1 / 3, 1 / 3, 1 / 3)),
        ([1, 1, 1], "fixed", (0.5, 1.0, 1.5)),
        ([2, 3, 4], "fixed", (0.5, 1.0, 1.5)),
        ([], "fixed", (0.5, 1.0, 1.5)),
    ],
)
def test_discounts_fall_back_where_counts_of_counts_are_missing(counts, rule, values):
    discounts = discount(np.array(counts))
    assert discounts.rule == rule
    assert discounts.values == pytest.approx(values)


class Reference:
    """Interpolated modified Kneser-Ney by its definition, with dictionaries."""

    def __init__(self, sentences, vocabulary, order, min_counts):
        self.symbols = sorted({*vocabulary, "</s>", "<UNK>"})
        self.raw = [Counter() for _ in range(order)]
        for sentence in sentences:
            mapped = [word if word in vocabulary else "<UNK>" for word in sentence]
            tokens = ["<s>", *mapped, "</s>"]
            for k, i in itertools.product(range(1, order + 1), range(len(tokens))):
                if i + k <= len(tokens):
                    self.raw[k - 1][tuple(tokens[i : i + k])] += 1
        self.raw = [counts for counts in self.raw if counts]
        self.min_counts = [min_counts[min(k, len(min_counts) - 1)] for k in range(order)]
        self.adjusted = []
        for k, counts in enumerate(self.raw):
            if k == len(self.raw) - 1:
                adjusted = dict(counts)
            else:
                num_left_contexts = Counter(ngram[1:] for ngram in self.raw[k + 1])
                adjusted = {
                    g: n if g[0] == "<s>" else num_left_contexts[g] for g, n in counts.items()
                }
            adjusted.pop(("<s>",), None)
            self.adjusted.append(adjusted)
        self.discounts = [discount(np.array(list(a.values()))).values for a in self.adjusted]

    def probability(self, word, history):
        history = tuple(history)[-(len(self.raw) - 1) :] if len(self.raw) > 1 else ()
        lower = self.probability(word, history[1:]) if history else 1 / len(self.symbols)
        k = len(history)
        continuations = {g: n for g, n in self.adjusted[k].items() if g[:-1] == history}
        total = sum(continuations.values())
        if not total:
            return lower
        discounted = {
            g: n - (0, *self.discounts[k])[min(n, 3)]
            for g, n in continuations.items()
            if k == 0 or self.raw[k][g] >= self.min_counts[k]
        }
        gamma = 1 - sum(discounted.values()) / total
        return discounted.get((*history, word), 0.0) / total + gamma * lower


sentences = st.lists(
    st.lists(st.sampled_from("ABCDX"), max_size=8), min_size=1, max_size=30
)  # X: outside the vocabulary


@settings(max_examples=200, deadline=None)
@given(
    sentences=sentences,
    order=st.integers(1, 7),
    min_counts=st.sampled_from([(1,), (1, 1, 2), (1, 2), (1, 2, 3)]),
    history=st.lists(st.sampled_from(["A", "B", "C", "D", "E", "<UNK>"]), max_size=7),
    begin=st.booleans(),
)
def test_estimate_equals_the_reference_and_sums_to_one(
    sentences, order, min_counts, history, begin
):
    vocabulary = {"A", "B", "C", "D", "E"}  # E: never seen
    model, _ = estimate(sentences, vocabulary, order, min_counts)
    reference = Reference(sentences, vocabulary, order, min_counts)
    histories = [tuple(history)] + [tuple(s[:n]) for s in sentences[:2] for n in range(len(s))]
    for words in histories:
        mapped = [word if word in vocabulary else "<UNK>" for word in words]
        context = ["<s>", *mapped] if begin else mapped
        distribution = model.distribution(context)
        assert distribution.sum() == pytest.approx(1, abs=1e-9)
        assert distribution[model.ids["<s>"]] == 0
        for word in reference.symbols:
            expected = reference.probability(word, context)
            assert distribution[model.ids[word]] == pytest.approx(expected, abs=1e-10)


def test_tiny_corpora_give_proper_distributions():
    for corpus in ([["A"]], [[]], [["A"] * 50], [["X"]]):
        model, _ = estimate(corpus, {"A"}, order=3)
        assert model.distribution(["<s>"]).sum() == pytest.approx(1)
    with pytest.raises(NgramError, match="no sentence"):
        estimate([], {"A"}, order=3)


def test_result_does_not_depend_on_the_order_of_sentences():
    corpus = [["B", "A"], ["A", "C", "A"], ["C"]]
    model, _ = estimate(corpus, {"A", "B", "C"}, order=3)
    reordered, _ = estimate(corpus[::-1], {"C", "B", "A"}, order=3)
    for level, reordered_level in zip(model.levels, reordered.levels, strict=True):
        np.testing.assert_array_equal(level.logprob, reordered_level.logprob)
        np.testing.assert_array_equal(level.backoff, reordered_level.backoff)
        np.testing.assert_array_equal(level.word, reordered_level.word)


MIXED_VOCABULARY = {"A", "B", "C", "D"}
mixed_texts = st.lists(st.lists(st.sampled_from("ABCX"), max_size=6), min_size=1, max_size=15)
orders = st.integers(1, 4)


def listed(model):
    """Every n-gram of a model, as words."""
    for level in range(model.order):
        for row in ngrams(model, level):
            yield [model.vocabulary[index] for index in row]


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.tuples(mixed_texts, orders), min_size=1, max_size=3),
    shares=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    history=st.lists(st.sampled_from(["<s>", "A", "B", "C", "D", "<UNK>"]), max_size=4),
)
def test_listed_ngrams_have_the_weighted_sum_and_histories_sum_to_one(parts, shares, history):
    models = [estimate(text, MIXED_VOCABULARY, order)[0] for text, order in parts]
    weights = np.array(shares[: len(models)]) / sum(shares[: len(models)])
    mixed = interpolate(models, weights)
    ngrams = set()
    for *context, word in listed(mixed):
        ngrams.add((*context, word))
        expected = sum(
            weight * model.distribution(context)[model.ids[word]]
            for model, weight in zip(models, weights, strict=True)
        )
        distribution = mixed.distribution(context)
        assert distribution[mixed.ids[word]] == pytest.approx(expected, abs=1e-12)
        assert distribution.sum() == pytest.approx(1, abs=1e-9)
    assert ngrams == {tuple(ngram) for model in models for ngram in listed(model)}
    assert mixed.distribution(history).sum() == pytest.approx(1, abs=1e-9)


def test_interpolating_one_model_returns_its_probabilities():
    model = estimate([["A", "B"], ["A", "C", "A"]], MIXED_VOCABULARY, 3, (1, 1, 2))[0]
    mixed = interpolate([model], [1.0])
    for level, mixed_level in zip(model.levels, mixed.levels, strict=True):
        np.testing.assert_array_equal(level.context, mixed_level.context)
        np.testing.assert_allclose(level.logprob, mixed_level.logprob, atol=1e-12)
        np.testing.assert_allclose(level.backoff, mixed_level.backoff, atol=1e-12)


def test_interpolated_models_may_differ_in_vocabulary():
    bigrams = estimate([["A", "B"], ["B"]], {"A", "B"}, 2)[0]
    trigrams = estimate([["A", "Z", "C"], ["Z"]], {"C", "Z", "A"}, 3)[0]
    mixed = interpolate([bigrams, trigrams], [0.25, 0.75])
    assert mixed.vocabulary == ("</s>", "<UNK>", "<s>", "A", "B", "C", "Z")
    unigram_distribution = mixed.distribution([])
    assert unigram_distribution[mixed.ids["B"]] == pytest.approx(
        0.25 * bigrams.distribution([])[bigrams.ids["B"]]
    )
    expected = 0.75 * trigrams.distribution(["A"])[trigrams.ids["Z"]]
    assert mixed.distribution(["A"])[mixed.ids["Z"]] == pytest.approx(expected)
    for history in ([], ["<s>"], ["A"], ["A", "Z"], ["<s>", "A"], ["Z"]):
        assert mixed.distribution(history).sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.6], [-0.5, 1.5], [float("nan"), 0.5]])
def test_weights_must_be_shares(weights):
    model = estimate([["A"]], {"A"}, 2)[0]
    with pytest.raises(NgramError, match="2 models cannot be interpolated"):
        interpolate([model, model], weights)


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(mixed_texts, min_size=2, max_size=2), held_out=mixed_texts)
def test_weights_maximise_the_likelihood_of_held_out_text(parts, held_out):
    models = [estimate(text, MIXED_VOCABULARY, 2)[0] for text in parts]
    weights = mixture_weights(models, held_out, tolerance=1e-9)

    def likelihood(share):
        """Log-likelihood of the known words, from each model's own distributions."""
        total = 0.0
        for sentence in held_out:
            words = ["<s>", *sentence, "</s>"]
            for i in range(1, len(words)):
                if words[i] in MIXED_VOCABULARY | {"</s>"}:
                    p, q = (m.distribution([words[i - 1]])[m.ids[words[i]]] for m in models)
                    total += np.log(share * p + (1 - share) * q)
        return total

    assert sum(weights) == pytest.approx(1)
    best = max(likelihood(share) for share in np.linspace(0, 1, 21))
    assert likelihood(weights[0]) >= best - 1e-4


def test_weights_without_held_out_text_are_equal():
    models = [estimate([["A"]], {"A"}, 1)[0]] * 3
    assert mixture_weights(models, []) == pytest.approx([1 / 3] * 3)
    assert mixture_weights(models, [["Q"]])[0] == pytest.approx(1 / 3)


@pytest.mark.timeout(20)
def test_weights_of_text_that_all_models_find_all_but_impossible(tmp_path):
    ngrams = "".join(f"\\{n}-grams:\n-1{' A' * n} -99\n\n" for n in (2, 3))
    text = (
        "\\data\\\nngram 1=3\nngram 2=1\nngram 3=1\nngram 4=1\n\n"
        "\\1-grams:\n-1 <s> -99\n-99 </s>\n-1 A -99\n\n"
        f"{ngrams}\\4-grams:\n-1 A A A A\n\n\\end\\\n"
    )
    models = []
    for name, score in (("one", "-1"), ("other", "-0.5")):
        (tmp_path / name).write_text(text.replace("-1 A A A A", f"{score} A A A A"))
        models.append(read_arpa(tmp_path / name))
        tokens = np.array(models[-1].word_ids(["<s>", *"AAAA", "</s>"]))
        assert models[-1].token_logprobs(tokens)[-1] < -330  # 0 as a probability in float64
    weights = mixture_weights(models, [list("AAAA")])
    assert sum(weights) == pytest.approx(1)
    assert weights[1] > weights[0]


PRUNED_VOCABULARY = {"A", "B", "C", "D"}
texts = st.lists(st.lists(st.sampled_from("ABCX"), max_size=7), min_size=2, max_size=20)


def names(model, level):
    return [tuple(model.vocabulary[i] for i in row) for row in ngrams(model, level)]


def without(model, row):
    """Remove the n-gram `row` of the highest order; recompute the back-off weights."""
    *below, last = model.levels
    keep = np.arange(len(last.word)) != row
    level = Level(last.context[keep], last.word[keep], last.logprob[keep], last.backoff[keep])
    return renormalised(model.vocabulary, [*below, level])


def history_probability(model, history):
    """The product of the model's own probabilities of the words; <s> counts as </s>."""
    product = 1.0
    for i, word in enumerate(history):
        word = "</s>" if word == "<s>" else word
        product *= model.distribution(history[:i])[model.ids[word]]
    return product


@settings(max_examples=40, deadline=None)
@given(text=texts, order=st.integers(2, 4), min_counts=st.sampled_from([(1,), (1, 1, 2)]))
def test_losses_are_relative_entropies(text, order, min_counts):
    model = estimate(text, PRUNED_VOCABULARY, order, min_counts)[0]
    losses = removal_losses(model) if model.order > 1 else []
    for row, loss in enumerate(losses):
        *history, _ = names(model, model.order - 1)[row]
        p = model.distribution(history)
        q = without(model, row).distribution(history)
        mass = p > 0
        entropy = (p[mass] * np.log(p[mass] / q[mass])).sum()
        assert loss == pytest.approx(history_probability(model, history) * entropy, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    text=texts,
    mixed_text=texts,
    order=st.integers(1, 4),
    threshold=st.sampled_from([1e-6, 1e-3, 1e-2, 0.1, 0.99]),
)
def test_pruning_removes_ngrams_by_their_relative_entropy(text, mixed_text, order, threshold):
    model = interpolate(
        [estimate(t, PRUNED_VOCABULARY, order)[0] for t in (text, mixed_text)], [0.6, 0.4]
    )
    pruned = prune_by_entropy(model, threshold)
    assert pruned.vocabulary == model.vocabulary
    remaining = [set(names(pruned, level)) for level in range(pruned.order)] + [set()] * order
    for k in range(1, model.order):
        present = BackoffModel(model.vocabulary, model.levels[: k + 1])
        for name, loss in zip(names(model, k), removal_losses(present), strict=True):
            context = any(longer[:-1] == name for longer in remaining[k + 1])
            assert (name in remaining[k]) == (context or np.expm1(loss) >= threshold)
    table = {
        name: logprob
        for k in range(model.order)
        for name, logprob in zip(names(model, k), model.levels[k].logprob, strict=True)
    }
    for k in range(pruned.order):
        for name, logprob in zip(names(pruned, k), pruned.levels[k].logprob, strict=True):
            assert logprob == table[name]
            assert pruned.distribution(name).sum() == pytest.approx(1, abs=1e-9)


def test_pruning_with_threshold_zero_returns_the_model():
    model = estimate([["A", "B"], ["B", "A", "C"]], PRUNED_VOCABULARY, 3)[0]
    assert prune_by_entropy(model, 0.0) is model


def test_pruning_with_a_high_threshold_leaves_unigrams():
    model = estimate([["A", "B"], ["B", "A", "C"]], PRUNED_VOCABULARY, 3)[0]
    bare = prune_by_entropy(model, 1e9)
    assert bare.order == 1
    np.testing.assert_array_equal(bare.levels[0].logprob, model.levels[0].logprob)
    assert bare.distribution(["A", "B"]).sum() == pytest.approx(1)


@pytest.fixture
def bigrams():
    return estimate([["A", "B"], ["A"], ["B", "C"]], {"A", "B"}, order=2)[0]


def test_perplexity_figures_equal_the_definition(bigrams):
    sentences = [["A", "Q"], ["B"]]
    figures = perplexity(bigrams, sentences)
    assert (figures.sentences, figures.words, figures.oov) == (2, 3, 1)
    assert figures.oov_rate == pytest.approx(1 / 3)
    total = sum(map(bigrams.logprob, sentences))
    assert figures.ppl == pytest.approx(10 ** (-total / 5))
    unknown = math.log10(bigrams.distribution(["<s>", "A"])[bigrams.ids["<UNK>"]])
    assert figures.ppl_known == pytest.approx(10 ** (-(total - unknown) / 4))
    assert figures.ppl_charged == pytest.approx(10 ** (-(total - unknown - 7) / 5))


def test_perplexity_is_infinite_for_unknown_words_without_unk(bigrams):
    closed = bigrams.restrict({"A", "B"})
    closed.ids.pop("<UNK>")
    figures = perplexity(closed, [["Q", "A"]])
    assert math.isinf(figures.ppl)
    assert figures.ppl_charged == pytest.approx(10 ** ((7 + 2 * math.log10(figures.ppl_known)) / 3))
    assert math.isfinite(figures.ppl_known)
    assert perplexity(closed, [["A"]]).ppl == pytest.approx(perplexity(closed, [["A"]]).ppl_known)


def test_perplexity_of_no_text_is_nan(bigrams):
    figures = perplexity(bigrams, [])
    assert figures.oov_rate == 0
    assert math.isnan(figures.ppl)
