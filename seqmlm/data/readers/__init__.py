"""One module a format; a reader is `read_x(path, problems, **options) -> Iterator[Record]` and streams."""

from seqmlm.data.readers.conllu import read_conllu
from seqmlm.data.readers.fasta import read_a3m, read_fasta
from seqmlm.data.readers.jsonl import read_jsonl
from seqmlm.data.readers.parquet import read_parquet
from seqmlm.data.readers.tables import read_csv, read_tsv
from seqmlm.data.readers.text import read_txt

__all__ = [
    "read_a3m",
    "read_conllu",
    "read_csv",
    "read_fasta",
    "read_jsonl",
    "read_parquet",
    "read_tsv",
    "read_txt",
]
