"""The text sample holds what its truth says: trees, agreement, preferences, probabilities."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.text import TEXT
from seqmlm.domains.text import sample as grammar
from seqmlm.domains.text.sample import draw
from seqmlm.tokenizers.subword import BpeTokenizer


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("text")
    truth = json.loads(TEXT.sample.draw(out, n=3000, seed=11).truth.read_text())
    return truth, list(TEXT.read([out], Problems()))


def words_of(raw: str) -> list[str]:
    assert raw[-1] == "."
    return [*(raw[0].lower() + raw[1:-1]).split(" "), "."]


def pairs(sample):
    """(words, description) of every sentence."""
    return [
        (words_of(record.raw), item) for record, item in zip(sample[1], sample[0]["sentences"], strict=True)
    ]


def class_of(noun: str) -> str:
    for kind, nouns in grammar.NOUNS.items():
        if noun in nouns or noun in map(grammar.plural, nouns):
            return kind
    raise AssertionError(noun)


def test_lines_and_descriptions_go_together(sample):
    for record, item in zip(sample[1], sample[0]["sentences"], strict=True):
        assert record.line == item["line"]
        assert len(words_of(record.raw)) == len(item["heads"]) == len(item["relations"])


def test_heads_make_projective_trees(sample):
    for words, item in pairs(sample):
        heads = item["heads"]
        assert heads.count(0) == 1
        assert item["relations"][heads.index(0)] == "root"
        for start in range(1, len(words) + 1):
            seen, at = set(), start
            while at:
                assert at not in seen
                seen.add(at)
                at = heads[at - 1]
        arcs = [tuple(sorted((d, h))) for d, h in enumerate(heads, start=1) if h]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs)


def test_every_verb_agrees_with_its_subject(sample):
    verbs = {form: number for pair in sample[0]["verb_forms"] for number, form in enumerate(pair)}
    nouns = {form: number for pair in sample[0]["noun_forms"] for number, form in enumerate(pair)}
    attracted = 0
    for words, item in pairs(sample):
        assert len(item["agreement"]) == sum(word in verbs for word in words)
        for subject, verb, attractors in item["agreement"]:
            number = nouns[words[subject - 1]]
            assert verbs[words[verb - 1]] == number
            between = words[subject : verb - 1]
            assert attractors == sum(nouns.get(word, number) != number for word in between)
            attracted += attractors > 0
    assert attracted > 300


def test_determiners_agree_with_their_noun(sample):
    number_of = {form: n for pair in sample[0]["noun_forms"] for n, form in enumerate(pair)}
    for words, item in pairs(sample):
        for word, head, relation in zip(words, item["heads"], item["relations"], strict=True):
            if relation == "det":
                assert word in grammar.DETERMINERS[("singular", "plural")[number_of[words[head - 1]]]]


def test_words_choose_the_class_of_their_nouns(sample):
    verbs = {form: verb for verb in (*grammar.VERBS, grammar.COPULA) for form in (verb.singular, verb.plural)}
    adjectives = {(kind, word) for kind, words in grammar.ADJECTIVES.items() for word in words}
    objects = 0
    for words, item in pairs(sample):
        for place, (word, head, relation) in enumerate(
            zip(words, item["heads"], item["relations"], strict=True)
        ):
            above = words[head - 1]
            if relation == "amod":
                assert (class_of(above), word) in adjectives
            elif relation == "obj" and word != "that":
                assert class_of(word) in verbs[above].objects
                objects += 1
            elif relation == "obj":
                assert class_of(words[item["heads"][head - 1] - 1]) in verbs[above].objects
            elif relation == "nmod":
                case = next(
                    w
                    for w, h, r in zip(words, item["heads"], item["relations"], strict=True)
                    if r == "case" and h == place + 1
                )
                assert (case, class_of(word)) in grammar.PREPOSITIONS[class_of(above)]
        for subject, verb, _ in item["agreement"]:
            assert class_of(words[subject - 1]) in verbs[words[verb - 1]].subjects
    assert objects > 1000


def test_bits_are_the_probability_of_the_sentence():
    """Sentences that are likely enough to recur do so as often as they should."""
    n = 20_000
    sentences = draw(n, seed=2)
    counts = Counter(sentence.text for sentence in sentences)
    bits = {sentence.text: sentence.bits for sentence in sentences}
    assert len({(s.text, round(s.bits, 6)) for s in sentences}) == len(counts)  # one derivation a sentence
    likely = [text for text in counts if bits[text] < 11.5]
    expected = sum(n * 2 ** -bits[text] for text in likely)
    assert len(likely) > 20
    assert sum(counts[text] for text in likely) == pytest.approx(expected, abs=5 * expected**0.5)
    for text in sorted(likely, key=bits.__getitem__)[:5]:
        wanted = n * 2 ** -bits[text]
        assert abs(counts[text] - wanted) < 5 * wanted**0.5


def test_units_of_the_domains_tokenizer_are_the_words_of_the_trees(sample):
    tokenizer = BpeTokenizer.train(record.raw for record in sample[1])
    for words, encoding in zip(
        (w for w, _ in pairs(sample)), tokenizer.encode_batch([r.raw for r in sample[1]]), strict=True
    ):
        assert encoding.groups.max() + 1 == len(words)
    # The vocabulary is small enough for every word to be a token.
    assert max(len(encoding) for encoding in tokenizer.encode_batch(["The teachers repair the clocks."])) == 8
