"""Drawing a domain's built-in sample, for the user and for `train` without data."""

from __future__ import annotations

from pathlib import Path

from seqmlm import plugins
from seqmlm.domains.base import Sample
from seqmlm.errors import StateError
from seqmlm.workspace import FileLock, Workspace


def draw_sample(domain: str, out: Path, *, n: int | None = None, seed: int = 0) -> Sample:
    """Write the sample of `domain` into `out`.

    Raises:
        UsageError: an unknown domain.
        StateError: the folder cannot be written.
    """
    found = plugins.domain(domain)
    try:
        return found.sample(out, n=n, seed=seed)
    except OSError as error:
        raise StateError(
            f"cannot write the sample to {out}: {error.strerror}; choose another --out"
        ) from None


def cached_sample(domain: str, workspace: Workspace, seed: int) -> Sample:
    """The sample of `domain` in the workspace's cache; drawn on first use."""
    folder = workspace.cache / "samples" / f"{domain}-{seed}"
    with FileLock(folder.with_suffix(".lock")):
        return draw_sample(domain, folder, seed=seed)
