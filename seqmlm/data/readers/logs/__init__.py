"""Logs: formats told by their lines, times, messages of several lines, sessions and windows."""

from seqmlm.data.readers.logs.read import KINDS, READERS, read_logs

__all__ = ["KINDS", "READERS", "read_logs"]
