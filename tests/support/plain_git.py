"""Git as a person calls it in a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

SETTINGS = ("user.name=n", "user.email=n@localhost", "protocol.file.allow=always", "core.quotePath=false")


def git(folder: Path, *arguments: str) -> bytes:
    """What a command of git prints.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    named = ["git", "-C", str(folder), *(word for one in SETTINGS for word in ("-c", one)), *arguments]
    done = subprocess.run(named, capture_output=True, check=True, stdin=subprocess.DEVNULL, timeout=60)
    return done.stdout
