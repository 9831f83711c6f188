"""One module a format; a reader is `read_x(path, problems, **options) -> Iterator[Record]` and streams."""

from seqmlm.data.readers.bed import read_bed
from seqmlm.data.readers.conllu import read_conllu
from seqmlm.data.readers.fasta import read_a3m, read_fasta
from seqmlm.data.readers.fastq import read_fastq
from seqmlm.data.readers.genbank import read_genbank
from seqmlm.data.readers.genome import read_genome
from seqmlm.data.readers.huggingface import read_parquet
from seqmlm.data.readers.jsonl import read_jsonl
from seqmlm.data.readers.tables import read_csv, read_tsv
from seqmlm.data.readers.text import read_txt

__all__ = [
    "read_a3m",
    "read_bed",
    "read_conllu",
    "read_csv",
    "read_fasta",
    "read_fastq",
    "read_genbank",
    "read_genome",
    "read_jsonl",
    "read_parquet",
    "read_tsv",
    "read_txt",
]
