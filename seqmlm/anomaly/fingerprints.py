"""Fingerprints of findings: equal for the same finding after lines above it came or went.

Two of each, as SARIF's partial fingerprints: one of the place (file, function, the line's words), which is
looked for first, and one of the content alone, which finds it again in a file that was renamed.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256

PLACE, CONTENT = "seqmlmPlace/v1", "seqmlmContent/v1"


class Fingerprints:
    """Makes the fingerprints of one file's findings, asked for in the order they stand in.

    Args:
        path: of the file, as findings name it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: Counter[tuple[str, str, str]] = Counter()

    def of(self, rule: str, scope: str, text: str) -> dict[str, str]:
        """Names to fingerprints, in hex.

        Args:
            rule: what was found.
            scope: full name of the function or class it is in.
            text: what stands there; white space does not count. Of equal ones in one scope, each has its own.
        """
        key = (rule, scope, "".join(text.split()))
        number = str(self._seen[key])
        self._seen[key] += 1
        return {PLACE: _hex(self._path, *key, number), CONTENT: _hex(*key, number)}


def _hex(*parts: str) -> str:
    # The length in front of each part: no two lists of parts look alike.
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()[:32]
