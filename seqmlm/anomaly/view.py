"""What of a record the model is shown when a unit is asked: by default all that surrounds it."""

from __future__ import annotations

from seqmlm.anomaly.values import Bools
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import Units
from seqmlm.engine.windows import central_windows
from seqmlm.tokenizers.base import Tokenizer


class View:
    """The whole record, in windows that put each unit where it is most central."""

    def units(self, tokenizer: Tokenizer) -> Units:
        """How units are hidden and read back."""
        return tokenizer.units

    def windows(
        self, encoding: Encoding, tokenizer: Tokenizer, max_length: int, wanted: Bools | None = None
    ) -> list[tuple[Encoding, Bools]]:
        """What the model is shown, each with True at the tokens it is asked about there.

        Args:
            encoding: the record.
            max_length: tokens the model takes.
            wanted: (L,) True at the tokens to score; None for all.

        Returns:
            Windows; every wanted token that can be scored is asked in exactly one of them.
        """
        return central_windows(encoding, tokenizer.space, max_length, wanted)


WHOLE = View()
