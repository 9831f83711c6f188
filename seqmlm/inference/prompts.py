"""Fine-tuning with a prompt: the classifier starts as the masked LM's predictions of a word per class.

A record is put into a template with a gap, which is masked. The classifier reads the state at the gap. It
starts with the decoder's rows for the words of the classes (Gao et al. 2021, LM-BFF). Before the first step,
it is a zero-shot classifier, which a few examples only need to correct.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqmlm.data.record import Record
from seqmlm.engine.labels import Labels
from seqmlm.engine.query import Query
from seqmlm.errors import UsageError
from seqmlm.inference.classifier import Classifier, Verbalizer
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.pieces import HeadCard, Piece
from seqmlm.inference.session import Session

if TYPE_CHECKING:
    from seqmlm.engine.heads import LabelledRows


class Prompts:
    """Puts records into the template of a head.

    Raises:
        UsageError: there is no template, a word has several tokens, or the masked-LM head of the architecture
            has another form than the classifier.
    """

    def __init__(self, session: Session, card: HeadCard) -> None:
        if not card.template or len(card.words) != len(card.names):
            names = ", ".join(f"{name}=WORD" for name in card.names[:2])
            raise UsageError(
                "--head prompt needs --set template='\"{text} It was [MASK].\"' and a word for each of the "
                f"classes {', '.join(card.names)}: --set words='[{names}]'"
            )
        self.session, self.card = session, card
        words = {name: [word] for name, word in zip(card.names, card.words, strict=True)}
        self.classifier = Classifier(Cloze(session), [card.template], Verbalizer.of(words))
        empty = Record(id="", raw=session.domain.text.empty, source="", line=0)
        self.ids = [
            int(self._query(empty, word).encoding.ids[self._place(empty, word)]) for word in card.words
        ]

    def _place(self, record: Record, word: str) -> int:
        tokens = self._query(record, word).asked
        if len(tokens) != 1:
            raise UsageError(f"the word {word!r} is several tokens: use a word in the vocabulary")
        return int(tokens[0])

    def _query(self, record: Record, word: str) -> Query:
        return self.classifier.query(record, word, self.card.length)

    def pieces(self, record: Record) -> list[Piece]:
        """The window of a record in the template, with its gap masked, as a list of one piece."""
        query = self._query(record, self.card.words[0])
        ids = query.encoding.ids.copy()
        ids[query.masked] = self.session.tokenizer.space.mask
        where = Labels(query.asked.astype(np.int64), np.ones(1, dtype=np.bool_), np.ones(1, dtype=np.float32))
        return [Piece(replace(query.encoding, ids=ids), where, np.zeros(1, dtype=np.int64))]

    def begin(self, rows: LabelledRows) -> None:
        """Set the weights of the classifier to the decoder's rows for the words."""
        import torch

        decoder: Any = rows.rows.model.get_output_embeddings()
        if rows.rows.model.config.model_type != "modernbert":
            raise UsageError("--head prompt needs a ModernBERT model, such as those from seqmlm train")
        chosen = torch.tensor(self.ids)
        with torch.no_grad():
            rows.classifier.weight.copy_(decoder.weight[chosen])
            rows.classifier.bias.copy_(
                torch.zeros(len(chosen)) if decoder.bias is None else decoder.bias[chosen]
            )
