"""Tokenizers for text with WordPiece, byte-level BPE and Unigram vocabularies. The units are words.

All three define a word as BERT does: a run of characters without white space and punctuation, or one
punctuation mark. Bits per word are therefore comparable. They differ in how they divide a word:

    bpe.v1        merges of bytes; no text is unknown, and every text has an exact likelihood
    wordpiece.v1  longest match; a word with a character that is not in the training data is [UNK]
    unigram.v1    most probable segmentation; a character that is not in the training data is [UNK]

Case is kept unless `lowercase` is set. Names, starts of sentences and German nouns contain information that
scores and labels need. Vocabularies are learnt from word counts, which need bounded memory, not from the
text. Training is deterministic: the same words in any order give the same ids.
"""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from seqmlm.engine.types import Encoding
from seqmlm.errors import DataError, UsageError
from seqmlm.tokenizers.backend import BackendTokenizer, backend_content, read_backend
from seqmlm.tokenizers.base import Traits, read_card, space_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


LONGEST_WORD = 100  # longer ones are not words (base64, missing spaces), and WordPiece maps them to [UNK]
_DISTINCT_WORDS = 5_000_000
_FEED = 1 << 16

SMALLEST, LARGEST = 1024, 32768


PIECE = 1 << 18
"""Longer texts are passed to the library in pieces, because it keeps 700 bytes per word."""

_BETWEEN = re.compile(r"(?<=[^\W_]) (?=[^\W_])")  # every pre-tokenizer here begins a word there


def pieces(text: str) -> Iterator[tuple[int, str]]:
    """Cut a text between words, and yield (start, piece). A piece has about `PIECE` characters.

    The encodings of the pieces are equal to the encoding of the whole text. A text without spaces between
    letters is one piece.
    """
    start = 0
    while len(text) - start > PIECE and (match := _BETWEEN.search(text, start + PIECE)):
        yield start, text[start : match.start()]
        start = match.end()  # without the space, which pre-tokenizers put before the first word of a text
    yield start, text[start:]


def count_words(
    texts: Iterable[str], normalizer: Any, pre_tokenizer: Any, *, min_records: int = 1
) -> dict[str, int]:
    """Count the words in a stream of texts. They are sorted by spelling, for a reproducible vocabulary.

    Args:
        texts: the texts, read once.
        normalizer, pre_tokenizer: objects of the `tokenizers` library. They define a word.
        min_records: words that occur in fewer texts are left out.

    The number of distinct words is bounded. Beyond 5 million, words that occurred once so far are forgotten.
    """
    counts: Counter[str] = Counter()
    spread: Counter[str] = Counter()
    for text in texts:
        if not text or text.isspace():
            continue
        words_of_text: set[str] = set()
        for _, piece in pieces(text):
            normal = normalizer.normalize_str(piece) if normalizer is not None else piece
            words = [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]
            counts.update(words)
            words_of_text.update(words if min_records > 1 else ())
        spread.update(words_of_text)
        if len(counts) > _DISTINCT_WORDS:
            counts = Counter({word: n for word, n in counts.items() if n > 1})
            spread = Counter({word: n for word, n in spread.items() if word in counts})
    common = counts if min_records <= 1 else [word for word, n in spread.items() if n >= min_records]
    return {word: counts[word] for word in sorted(common) if 0 < len(word) <= LONGEST_WORD}


def fitted_size(counts: Mapping[str, int]) -> int:
    """The vocabulary size for an amount of text: 2 sqrt(characters), a multiple of 8 from 1,024 to 32,768.

    A classifier is less accurate for classes with few examples. Gowda and May (2020) advise the largest
    vocabulary with 95 % of the pieces occurring 100 times ("Finding the optimal vocabulary size for neural
    machine translation"). On natural text, this rule gives similar sizes: 2,000 pieces for 1 MB, 10,000 for
    25 MB, and 32,768 for 270 MB or more.
    """
    characters = sum(len(word) * n for word, n in counts.items())
    return min(max(math.ceil(2 * math.sqrt(characters) / 8) * 8, SMALLEST), LARGEST)


def frequent_letters(counts: Mapping[str, int], limit: int) -> list[str]:
    """The `limit` most frequent characters, in code point order. Ties select the smaller code point."""
    letters: Counter[str] = Counter()
    for word, n in counts.items():
        for letter in word:
            letters[letter] += n
    return sorted(sorted(letters, key=lambda letter: (-letters[letter], letter))[:limit])


def spelled_with(counts: Mapping[str, int], letters: Iterable[str]) -> dict[str, int]:
    """The words that consist only of these characters."""
    alphabet = frozenset(letters)
    return {word: n for word, n in counts.items() if alphabet.issuperset(word)}


def repeated(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield lines of words, separated by spaces. Each word occurs as often as its count.

    The trainers of the `tokenizers` library count words themselves and accept no counts.
    """
    line: list[str] = []
    size = 0
    for word, n in counts.items():
        per_line = max(1, _FEED // (len(word) + 1))
        for start in range(0, n, per_line):
            line += [word] * min(per_line, n - start)
            size += (len(word) + 1) * min(per_line, n - start)
            if size >= _FEED:
                yield " ".join(line)
                line, size = [], 0
    if line:
        yield " ".join(line)


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_PRIVATE = 0xF0000  # private code points, not used by texts
_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
_WORD = rf" ?[{_PUNCTUATION}]| ?[^\s{_PUNCTUATION}]+|\s+(?!\S)|\s+"
_MARKED_WORD = rf"▁?[{_PUNCTUATION}]|▁?[^▁{_PUNCTUATION}]+|▁"  # after Metaspace has turned spaces into ▁


class SubwordTokenizer(BackendTokenizer):
    """The base class of the three subword tokenizers.

    Args:
        backend: a trained tokenizer. `train` and `load` make it.
        lowercase: whether it converts text to lower case.
    """

    traits: ClassVar[Traits] = Traits(unit="word", trainable=True, sensitive_options={"min_records": 10})

    def __init__(self, backend: tokenizers.Tokenizer, *, lowercase: bool = False) -> None:
        super().__init__(backend, space_of(SPECIAL, backend.get_vocab_size()))
        self.options = {"lowercase": lowercase}

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocabulary_size: int | None = None,
        lowercase: bool = False,
        min_records: int = 1,
        **options: Any,
    ) -> Self:
        """Learn a vocabulary from texts.

        Args:
            texts: the texts, read once. Memory grows only with the number of distinct words.
            vocabulary_size: the largest number of ids, including the five special ids. A small text gives
                fewer. With None, the size depends on the text (`fitted_size`).
            lowercase: convert to lower case, now and in every later `encode`.
            min_records: learn only from words that occur in at least this many texts.

        Raises:
            UsageError: an option is unknown, or the vocabulary size is too small.
            DataError: the texts have no words.
        """
        if options:
            raise UsageError(f"{cls.name} has no option {min(options)!r}; known: lowercase, min_records")
        normalizer = cls._normalizer(lowercase)
        counts = count_words(texts, normalizer, cls._pre_tokenizer(), min_records=min_records)
        if not counts:
            raise DataError(
                "there is no text to learn a vocabulary from", remedy="give files that contain text"
            )
        size = fitted_size(counts) if vocabulary_size is None else vocabulary_size
        return cls._of_counts(counts, size, normalizer, lowercase=lowercase)

    @classmethod
    def _of_counts(cls, counts: Mapping[str, int], size: int, normalizer: Any, **options: Any) -> Self:
        """A tokenizer with at most `size` ids, learnt from word counts."""
        if size < cls._smallest():
            raise UsageError(f"{cls.name} needs a vocabulary_size of at least {cls._smallest()}; got {size}")
        backend = cls._assembled(cls._learn(counts, size), cls._pre_tokenizer())
        backend.normalizer = normalizer
        return cls(backend, **options)

    def encode_batch(self, raws: Sequence[str]) -> list[Encoding]:
        """Encode each text. Texts of more than `PIECE` characters are encoded in pieces."""
        short = iter(super().encode_batch([raw for raw in raws if len(raw) <= PIECE]))
        return [next(short) if len(raw) <= PIECE else self._in_pieces(raw) for raw in raws]

    def _in_pieces(self, raw: str) -> Encoding:
        ids, groups, spans = [], [], []
        words = 0
        for start, piece in pieces(raw):
            [encoding], [offsets] = self._encoded([piece])
            assert encoding.spans is not None
            last = start + len(piece) == len(raw)
            inner = slice(0 if start == 0 else 1, None if last else -1)  # without [CLS], [SEP]
            own = encoding.groups[inner]
            ids.append(encoding.ids[inner])
            groups.append(np.where(own >= 0, own + np.int32(words), own))
            spans.append(encoding.spans[inner] + np.int32(start))
            spans[-1][-1] -= start if last else 0  # that of [SEP]
            words += next((word for word in reversed(offsets.word_ids) if word is not None), -1) + 1
        return Encoding(ids=np.concatenate(ids), groups=np.concatenate(groups), spans=np.concatenate(spans))

    @classmethod
    def _assembled(cls, model: Any, pre_tokenizer: Any) -> tokenizers.Tokenizer:
        """The complete backend of a learnt model: pre-tokenizer, model, decoder and special tokens."""
        backend = tokenizers.Tokenizer(model)
        backend.pre_tokenizer, backend.decoder = pre_tokenizer, cls._decoder()
        backend.add_special_tokens(list(SPECIAL))
        backend.post_processor = cls._post_processor()
        return backend

    @classmethod
    def load(cls, directory: Path) -> Self:
        card = read_card(directory, expected=cls.name)
        content = json.loads(read_backend(directory).to_str())
        cls._around_mask(content, plain=False)
        return cls(tokenizers.Tokenizer.from_str(json.dumps(content)), **card["options"])

    def hf(self) -> PreTrainedTokenizerFast:
        from transformers import PreTrainedTokenizerFast

        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        content = json.loads(self._backend.to_str())
        self._around_mask(content, plain=True)
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(content)),
            **dict(zip(names, SPECIAL, strict=True)),
        )

    @classmethod
    def _around_mask(cls, content: dict[str, Any], *, plain: bool) -> None:
        """Change the file of a tokenizer for use with plain transformers (`plain`), or change it back.

        With this change, text with masks is divided in the same way as without masks. The space before a mask
        belongs to the mask, and text after a mask gets no additional space.

        If a text begins with white space, plain transformers treat its first space as the space that is added
        before a text.
        """
        for token in content["added_tokens"]:
            token["lstrip"] = plain and token["content"] == "[MASK]"

    def _content(self) -> Any:
        return backend_content(self._backend)

    @classmethod
    def _smallest(cls) -> int:
        return len(SPECIAL) + 3

    @classmethod
    @abstractmethod
    def _normalizer(cls, lowercase: bool) -> Any:
        """The normalizer. It is applied first, and keeps offsets into the raw text."""

    @classmethod
    @abstractmethod
    def _pre_tokenizer(cls) -> Any:
        """The pre-tokenizer. It divides a text into words."""

    @classmethod
    @abstractmethod
    def _decoder(cls) -> Any:
        """The decoder. It joins pieces."""

    @classmethod
    @abstractmethod
    def _learn(cls, counts: Mapping[str, int], size: int) -> Any:
        """The model of the `tokenizers` library with at most `size` ids. Special ids come first."""

    @classmethod
    def _post_processor(cls) -> Any:
        return processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )


_FIRST_SPACE = {"type": "Metaspace", "replacement": " ", "prepend_scheme": "first", "split": False}


class BpeTokenizer(SubwordTokenizer):
    """Byte-level byte-pair encoding (Sennrich et al. 2016; bytes as in GPT-2 and RoBERTa).

    A space belongs to the word after it, and a space is added before the text. Therefore a word has the same
    ids at every position.
    """

    name: ClassVar[str] = "bpe.v1"

    @classmethod
    def _smallest(cls) -> int:
        return len(SPECIAL) + 256

    @classmethod
    def _normalizer(cls, lowercase: bool) -> Any:
        space = normalizers.Prepend(" ")
        return normalizers.Sequence([normalizers.Lowercase(), space]) if lowercase else space

    @classmethod
    def _pre_tokenizer(cls) -> Any:
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_WORD), behavior="isolated"), bytes_of])

    @classmethod
    def _around_mask(cls, content: dict[str, Any], *, plain: bool) -> None:
        super()._around_mask(content, plain=plain)
        lowercase = "Lowercase" in json.dumps(content["normalizer"])
        steps = content["pre_tokenizer"]["pretokenizers"]
        if plain:
            content["normalizer"] = {"type": "Lowercase"} if lowercase else None
            steps.insert(0, _FIRST_SPACE)
        elif steps[0] == _FIRST_SPACE:
            content["normalizer"] = json.loads(cls._normalizer(lowercase).__getstate__())
            del steps[0]

    @classmethod
    def _decoder(cls) -> Any:
        return decoders.ByteLevel()

    @classmethod
    def _post_processor(cls) -> Any:
        # Spans exclude the space before a word. `add_prefix_space`: the first space is not in the raw text.
        trim = processors.ByteLevel(trim_offsets=True, add_prefix_space=True)
        return processors.Sequence([trim, super()._post_processor()])

    @classmethod
    def _learn(cls, counts: Mapping[str, int], size: int) -> Any:
        return _merges(counts, size, sorted(pre_tokenizers.ByteLevel.alphabet())).model


class WordPieceTokenizer(SubwordTokenizer):
    """WordPiece as in BERT: pieces inside a word begin with "##", and the longest match divides a word.

    The vocabulary comes from byte-pair merges of characters. The first character of a word is marked. The
    WordPiece trainer of the library does the same, but its ids differ between runs.
    """

    name: ClassVar[str] = "wordpiece.v1"
    divided: ClassVar[bool] = True  # a word with an unknown letter would be [UNK]

    @classmethod
    def _normalizer(cls, lowercase: bool) -> Any:
        return normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=lowercase
        )

    @classmethod
    def _pre_tokenizer(cls) -> Any:
        return pre_tokenizers.BertPreTokenizer()

    @classmethod
    def _around_mask(cls, content: dict[str, Any], *, plain: bool) -> None:
        """Change nothing: words are divided at spaces, and spaces are not part of any word."""

    @classmethod
    def _decoder(cls) -> Any:
        return decoders.WordPiece(prefix="##", cleanup=False)

    @classmethod
    def _learn(cls, counts: Mapping[str, int], size: int) -> Any:
        letters = frequent_letters(counts, limit=max(1, (size - len(SPECIAL)) // 3))
        inside = {letter: chr(_PRIVATE + number) for number, letter in enumerate(letters)}
        outside = {code: letter for letter, code in inside.items()}
        shift = str.maketrans(inside)
        marked = {word[0] + word[1:].translate(shift): n for word, n in spelled_with(counts, letters).items()}
        learnt = _merges(marked, size, [*letters, *outside])
        unshift = str.maketrans(outside)
        vocabulary = {
            ("##" if piece[0] in outside else "")
            + (piece if piece in SPECIAL else piece.translate(unshift)): number
            for piece, number in learnt.get_vocab().items()
        }
        return models.WordPiece(vocab=vocabulary, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)


class UnigramTokenizer(SubwordTokenizer):
    """Unigram language model segmentation (Kudo 2018; spaces as in SentencePiece)."""

    name: ClassVar[str] = "unigram.v1"

    @classmethod
    def _normalizer(cls, lowercase: bool) -> Any:
        spaces = normalizers.Replace(Regex(r"\s+"), " ")
        return normalizers.Sequence([spaces, normalizers.Lowercase()]) if lowercase else spaces

    @classmethod
    def _pre_tokenizer(cls) -> Any:
        words = pre_tokenizers.Split(Regex(_MARKED_WORD), behavior="isolated")
        return pre_tokenizers.Sequence([pre_tokenizers.Metaspace(split=False), words])

    @classmethod
    def _around_mask(cls, content: dict[str, Any], *, plain: bool) -> None:
        super()._around_mask(content, plain=plain)
        content["pre_tokenizer"]["pretokenizers"][0]["prepend_scheme"] = "first" if plain else "always"

    @classmethod
    def _decoder(cls) -> Any:
        return decoders.Metaspace()

    @classmethod
    def _learn(cls, counts: Mapping[str, int], size: int) -> Any:
        letters = frequent_letters(counts, limit=max(1, (size - len(SPECIAL)) // 3))
        scratch = tokenizers.Tokenizer(models.Unigram())
        scratch.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.UnigramTrainer(
            vocab_size=size - len(SPECIAL), show_progress=False, special_tokens=["[UNK]"], unk_token="[UNK]"
        )
        scratch.train_from_iterator(repeated(spelled_with(counts, letters)), trainer)
        # The trainer sums in the order of its threads. Rounding removes the digits that differ.
        learnt = json.loads(scratch.to_str())["model"]["vocab"]
        scores = {piece: round(score, 4) for piece, score in learnt if piece not in SPECIAL}
        pieces = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
        return models.Unigram([*((name, 0.0) for name in SPECIAL), *pieces], unk_id=1, byte_fallback=False)


def _merges(counts: Mapping[str, int], size: int, alphabet: Sequence[str]) -> tokenizers.Tokenizer:
    """Learn BPE with at most `size` ids, from words without white space. Merges seen once are left out."""
    scratch = tokenizers.Tokenizer(models.BPE())
    scratch.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(SPECIAL),
        initial_alphabet=list(alphabet),
    )
    scratch.train_from_iterator(repeated(counts), trainer)
    return scratch
