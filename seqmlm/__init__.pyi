from seqmlm.api import Model as Model
from seqmlm.api import load as load
from seqmlm.api import train as train
from seqmlm.errors import DataError as DataError
from seqmlm.errors import NotFiniteError as NotFiniteError
from seqmlm.errors import SeqmlmError as SeqmlmError
from seqmlm.errors import StateError as StateError
from seqmlm.errors import TrainingError as TrainingError
from seqmlm.errors import UsageError as UsageError
from seqmlm.estimators import Detector as Detector
from seqmlm.estimators import Embedder as Embedder
from seqmlm.frames import RowFrame as RowFrame
from seqmlm.scorer import Scorer as Scorer

__version__: str
__all__: list[str]
