"""Files of a model folder with objects that were fitted to vectors, such as normalizations and senses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from seqmlm.errors import UsageError
from seqmlm.inference.arrays import HEADER, UNFIT, Arrays, damaged_file, read_arrays
from seqmlm.parsing import parse_json


class VectorFacts(Protocol):
    """An object that was fitted to vectors, with facts that identify these vectors."""

    @property
    def facts(self) -> Mapping[str, Any]: ...


Loaded = TypeVar("Loaded", bound=VectorFacts)


def load_vector_file(
    file: Path, make: Callable[[Arrays, Any], Loaded], expected: Mapping[str, Any], *, name: str, remedy: str
) -> Loaded:
    """Load an object that was fitted to vectors from a file of a model folder.

    Args:
        file: the file.
        make: creates the object from the arrays and the header.
        expected: facts that the object must agree with.
        name: name of the kind of object, for messages.
        remedy: advice on how to create another object, for messages.

    Raises:
        UsageError: the file does not exist, or was fitted to other vectors.
        StateError: the file is damaged.
    """
    if not file.is_file():
        raise UsageError(f"{file.parent} has no {name} yet: {remedy}")
    arrays, header = read_arrays(file, remedy)
    try:
        loaded = make(arrays, parse_json(header[HEADER], finite=True))
        differing = next(
            (fact for fact, fact_value in expected.items() if loaded.facts.get(fact) != fact_value), None
        )
    except UNFIT as error:
        raise damaged_file(file, error, remedy) from None
    if differing is not None:
        difference = f"{differing} {loaded.facts.get(differing)}, but these have {expected[differing]}"
        raise UsageError(f"{file} was fitted to vectors with {difference}: {remedy}")
    return loaded
