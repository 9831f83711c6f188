"""The text domain: sentences or longer pieces of natural language, with words as units.

The vocabulary is learned from the data with byte-level BPE, in which no text is unknown. A text with a
character that does not occur in the training data still has a likelihood. With `[UNK]`, the score would
ignore exactly the unusual word.

Training masks whole words, because evaluation and scoring hide whole words too. A model that always sees the
rest of a word does not learn to predict a word without it. Only the first layer looks beyond the nearest
words. In the first minutes of training this teaches the most, and exact scores then cost little.
"""

from __future__ import annotations

from seqmlm.data.files import stem_suffix
from seqmlm.data.readers.huggingface import read_parquet
from seqmlm.data.readers.tables import read_csv, read_jsonl, read_tsv
from seqmlm.data.readers.text import read_txt
from seqmlm.domains.content import PROSE
from seqmlm.domains.field import BuiltInSample, Defaults, Field, Text, chapter
from seqmlm.domains.files import Format, Reading
from seqmlm.domains.text.conllu import read_conll, read_conllu
from seqmlm.domains.text.levels import SentenceLevel, WordLevel
from seqmlm.engine.masking.base import MaskingConfig


class Sentences(Text):
    """Plain text."""

    example = "The dog sees the cat."


TEXT = Field(
    name="text",
    title="Natural language: sentences, articles, any UTF-8 text",
    unit="word",
    formats={
        "txt": Format(read=read_txt, suffixes=(".txt", ".text")),
        "jsonl": Format(read=read_jsonl, suffixes=(".jsonl", ".ndjson")),
        "csv": Format(read=read_csv, suffixes=(".csv",)),
        "tsv": Format(read=read_tsv, suffixes=(".tsv",)),
        "parquet": Format(read=read_parquet, suffixes=(".parquet",)),
        "conllu": Format(read=read_conllu, suffixes=(".conllu",)),
        "conll": Format(read=read_conll, suffixes=(".conll", ".bio", ".iob", ".iob2")),
    },
    # In a folder, a .json file mostly describes other files. A named .json file has the format jsonl.
    reading=Reading(usual=lambda path: "jsonl" if stem_suffix(path) == ".json" else None, content=(PROSE,)),
    defaults=Defaults(
        tokenizer="bpe.v1",
        masking=MaskingConfig(masker="whole_unit.v1", rate=0.3, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=256,
        model={"layers": "nearby.v1", "initialization": "unigram.v1"},
    ),
    text=Sentences(),
    levels=(SentenceLevel(), WordLevel("word")),
    structure=chapter(__name__, "structure.TreeDecoder"),
    sample=BuiltInSample(write=chapter(__name__, "sample.write")),
)
