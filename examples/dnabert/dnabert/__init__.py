"""Overlapping k-mers (Ji et al. 2021, DNABERT): the tokenizer `kmer.v1` and the masker `kmer_span.v1`."""

from dnabert.overlapping import KmerSpan, KmerTokenizer, OverlappingUnits

__all__ = ["KmerSpan", "KmerTokenizer", "OverlappingUnits"]
