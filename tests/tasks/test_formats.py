"""Every option of every reader is explained."""

from __future__ import annotations

import pytest

from seqmlm import plugins
from seqmlm.tasks.inspect import formats


@pytest.mark.parametrize("domain", plugins.names("domains"))
def test_every_option_has_a_meaning(domain: str) -> None:
    found = formats(domain)
    assert [one.name for one in found] == list(plugins.domain(domain).all_formats)
    for one in found:
        assert one.reads, one.name
        for option in one.options:
            assert option.meaning, (one.name, option.name)


def test_meanings_are_those_of_the_docstring() -> None:
    csv = next(one for one in formats("text") if one.name == "csv")
    delimiter = next(option for option in csv.options if option.name == "delimiter")
    assert (delimiter.default, delimiter.meaning) == (",", "one character.")
    logs = next(one for one in formats("logs") if one.name == "auto")
    held = next(option for option in logs.options if option.name == "max_held")
    assert held.meaning.startswith("most sessions open at a time, and most lines")
