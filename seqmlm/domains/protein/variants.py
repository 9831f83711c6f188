"""Variants of proteins: read all common notations, check them against the wild type, and compute two rivals.

The notations are `A123G`, several changes joined by `:` `,` `/` `+` or `;`, HGVS (`p.Ala123Val`, deletions,
insertions, duplications) and changed sequences. Tables may also have one column each for the residue, its
number and the new residue. HGVS forms that do not name the residues of one protein (frameshifts,
alternatives, repeats) have no effect. Tables number residues as their authors do. If a wild type begins at
another number, that is inferred from the residues.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from Bio.Data.IUPACData import protein_letters_3to1_extended
from numpy.typing import NDArray

from seqmlm.data.files import stem_suffix
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import read_rows, required
from seqmlm.domains.field import Field
from seqmlm.domains.protein.tokenizer import RESIDUES, STANDARD
from seqmlm.domains.variants import (
    LEAVE_OUT,
    Assay,
    Edit,
    Predict,
    Variant,
    Variants,
    VariantTable,
    additive_prediction,
    bad_variant,
    blosum62,
    changes,
    lower_names,
)
from seqmlm.errors import DataError, UsageError, number_of

NAMES = ("mutant", "mutation", "mutations", "variant", "variants", "hgvs", "hgvs_p", "hgvs_pro", "aa_change")
SEQUENCES = ("mutated_sequence", "mut_seq", "mutant_sequence", "sequence")
WILDTYPES = ("wt_seq", "wildtype_sequence", "wild_type_sequence", "target_seq", "wildtype")
TRIPLES = (
    ("wt", "position", "mutant"),
    ("wt", "pos", "mt"),
    ("wt amino acid", "position", "mutation"),  # Olson et al. 2014
    ("ref_aa", "position", "alt_aa"),
)

LEAST_SHARE = 0.95
"""Least share of a table's places whose residue must fit before another numbering is accepted."""

LEAST_PLACES = 6
"""Least number of distinct places from which another numbering is inferred. Fewer places fit by chance."""

ALIKE = 0.8
"""Share of equal residues from which two rows of an alignment count as one."""

MOST_ROWS = 5000

GAP = "-"
"""Letter in a row for a column without a residue."""

_MOST_TOLD = 5  # most bad variants in one message
_THREE: Mapping[str, str] = {**protein_letters_3to1_extended, "Ter": "*"}
_LONG = re.compile(r"[A-Z][a-z]{2}(?=\d|_|$|[A-Z]|del|dup|ins|fs|ext|=|\*|\?|#)")
_MISSING = ("-", ".", "NA", "N/A", "NAN", "NONE", "NULL")
_UNCHANGED = ("=", "wt", "_wt", "wildtype", "wild type", "_sy")
_ACCESSION = re.compile(r"^[^\s:]+:(?=[\[(]?[pcgmnor]\.)")
_CHANGE = re.compile(
    r"([A-Z*])(\d+)(?:_([A-Z*])(\d+))?(delins|del|dup|ins|=|-|\*|[A-Z])([A-Z*]*)", flags=re.ASCII
)
_FORMS = {
    "fs": re.compile(
        r"([A-Z*])(\d+)(?:_[A-Z*]\d+)?(?:delins|ins|del|dup)?[A-Z*=]*fs[*X]?(?:\d+|\?)?", flags=re.ASCII
    ),
    "ext": re.compile(r"([A-Z*])(\d+)[A-Z]?ext(?:-?(?:\d+|\?)|[A-Z]*[*X](?:\d+|\?)?)?", flags=re.ASCII),
    "unknown": re.compile(r"(?:(M)(\d+))?\?|0\??", flags=re.ASCII),
    "length": re.compile(
        r"([A-Z*])(\d+)(?:_[A-Z*]\d+(?:del)?|del)ins(?:[*X]?(?:\d+(?:_\d+)?|\?|#))", flags=re.ASCII
    ),
    "repeat": re.compile(r"([A-Z*])(\d+)(?:_[A-Z*]\d+)?#", flags=re.ASCII),
    "uncertain": re.compile(
        r"(?:~|(?:[A-Z*]\d+|\?)_(?=[~?])|\?_(?=[A-Z*]))(?:_?(?:~|[A-Z*]\d+|\?))?"
        r"(?:del|dup|fs[*X]?\d*|(?:del)?ins(?:[A-Z*]+|\d+|\?)|[A-Z*=#])",
        flags=re.ASCII,
    ),
}
# Meaning of brackets before they are removed: a number of copies becomes "#", an uncertain place "~".
_COPIES = re.compile(r"(?<=[\w)*])\[\(?(?:\d+|\?)(?:_(?:\d+|\?))?\)?\]", flags=re.ASCII)
_ELSEWHERE = re.compile(r"(?<=ins)\[[^\[\]]*:[^\[\]]*\]")  # residues from another sequence
_UNCERTAIN = re.compile(
    r"\((?:(?:[A-Z][a-z]{2}|[A-Z*])\d+|\?)_(?:(?:[A-Z][a-z]{2}|[A-Z*])\d+|\?)\)", flags=re.ASCII
)
# A slash joins changes at several places (A4=/Y5C). For one place, some cells have the change (A4=/C).
_ALLELES = re.compile(
    r"\]\s*;\s*\[|\(;\)|\^|(?<==)//|(?<!\d=)(?<==)/|(?<==)/(?!(?:p\.)?[A-Z](?:[a-z]{2})?\d)", flags=re.ASCII
)
_PRODUCTS = re.compile(r"p\.\[[^\[\];]*,[^\[\];]*\]")  # several proteins from one allele
_PLACE = re.compile(r"(?:p\.)?[\[(]*[A-Za-z*]+\d+(?:_[A-Za-z*]+\d+)?(?:delins|ins)?", flags=re.ASCII)
_OTHER_RESIDUES = frozenset("BOUXZ")
_NUCLEOTIDES = re.compile(r"[cgmnor]\.\S+")
_SEQUENCE = re.compile(r"[A-Za-z]{6,}\*?")


UNSCORED = {
    "stop": "a stop codon: not scored, because it is not a residue",
    "fs": "a frameshift (fs): not scored, because the residues after it are not named",
    "ext": "an extension (ext): not scored, because its residues are not named",
    "unknown": "an unknown protein (p.?, p.0, p.Met1?): not scored",
    "length": "an insertion of unnamed residues (ins23, ins*63): not scored",
    "repeat": "a number of copies (Ala2[10]): not scored, because the residues are not named",
    "uncertain": "a change at an uncertain place ((Ala12_Pro31)Ter): not scored",
    "alternatives": "several possible or coexisting proteins (^, [];[], (;), =/): not scored",
    "residue": "a residue outside the 20 (Xaa, Sec): not scored",
    "nucleotides": "a change of nucleotides (c., g., n.): not scored, because it names no residues",
    "missing": "no change of the protein (NA): not scored",
}
"""The note for each kind of variant that a table may contain but that has no effect."""


class Change(NamedTuple):
    """One written change.

    Attributes:
        places: (residue, number) of one place, or of the first and the last; () if none is named.
        kind: "sub", "del", "dup", "ins", "delins", "=" for no change, or a kind in `UNSCORED`.
        inserted: the new residues.
    """

    places: tuple[tuple[str, int], ...]
    kind: str
    inserted: str


def parse(text: str) -> tuple[Change, ...]:
    """The changes that a notation names; none for the wild type itself.

    Raises:
        ValueError: the text is not a variant; the message says why.

    >>> parse("p.Ala123Val") == parse("A123V")
    True
    >>> [change.kind for change in parse("A1P:D2del, G3_K4insAA, p.Gly9fs")]
    ['sub', 'del', 'ins', 'fs']
    """
    body = _ACCESSION.sub("", _ELSEWHERE.sub("?", text.strip()))
    marked = _UNCERTAIN.sub("~", _COPIES.sub("#", body))
    bare = re.sub(r"[()\[\]\s]", "", marked)
    if not bare:
        raise ValueError("no variant in the cell (write WT for the wild type)")
    if bare.rstrip("?").removeprefix("p.").lower() in (*_UNCHANGED, "c.=", "n.=", "g.="):
        return ()
    if bare.upper() in _MISSING:
        return (Change((), "missing", ""),)
    if _NUCLEOTIDES.fullmatch(bare):
        return (Change((), "nucleotides", ""),)
    proteins = body.split(",") if _PRODUCTS.fullmatch(body) else _ALLELES.split(body)
    if len(proteins) > 1:
        return _alternative_changes(proteins, text)
    return tuple(_change(part.removeprefix("p."), text) for part in re.split(r"[:,/+;]", bare))


def _alternative_changes(proteins: Sequence[str], text: str) -> tuple[Change, ...]:
    """The changes of alternative proteins, none of which is scored.

    Later alternatives may leave out the place.
    """
    place = _PLACE.match(proteins[0])
    alternatives = list[Change]()
    for protein in proteins:
        try:
            try:
                changed = parse(protein)
            except ValueError:
                changed = parse(place[0] + protein) if place else parse(protein)
        except ValueError:
            raise ValueError(
                f"{text[:60]!r} has an alternative {protein[:20]!r}, not a variant such as p.Ala123Val"
            ) from None
        alternatives += [change._replace(kind="alternatives", inserted="") for change in changed]
    return tuple(alternatives)


def _change(part: str, text: str) -> Change:
    """The change that one part of a notation names."""
    short = _LONG.sub(lambda code: _THREE.get(code[0], code[0]), part)
    for kind, form in _FORMS.items():
        if match := form.fullmatch(short):
            letter, number = (*match.groups(), None, None)[:2]
            return Change(((letter, int(number)),) if letter and number else (), kind, "")
    match = _CHANGE.fullmatch(short.rstrip("?"))
    if match is None:
        raise ValueError(f"{text[:60]!r} is not a variant such as A123G, A1P:D2N or p.Ala123Val")
    letter, number, end_letter, end_number, kind, inserted = match.groups()
    places = (
        ((letter, int(number)),)
        if end_letter is None
        else ((letter, int(number)), (end_letter, int(end_number)))
    )
    kind = "del" if kind == "-" else kind
    if len(kind) == 1:
        if inserted or end_letter is not None:
            raise ValueError(f"{text[:60]!r} replaces one residue by several; write delins")
        if kind in _OTHER_RESIDUES and kind != letter:
            return Change(places, "residue", "")
        return Change(places, "=" if kind in ("=", letter) else "sub", "" if kind == "=" else kind)
    if bool(inserted) is not (kind in ("ins", "delins")) or (kind == "ins" and end_letter is None):
        raise ValueError(f"{text[:60]!r} is not a {kind} such as A1del, A1_G3dup, A1_C2insGG or A1delinsGG")
    return Change(places, "residue", "") if _OTHER_RESIDUES & {*inserted} else Change(places, kind, inserted)


class _Row(NamedTuple):
    """A table row with its changes as written, or with None and the changed sequence."""

    name: str
    line: int
    fields: Mapping[str, Any]
    wildtype: str
    changes: tuple[Change, ...] | None
    mutant: str = ""


class ProteinVariants(Variants):
    """Variants of proteins.

    Args:
        domain: the protein field, which reads sequences.
    """

    letters = STANDARD

    def __init__(self, domain: Field) -> None:
        self._domain = domain

    def table_variants(self, table: VariantTable, problems: Problems) -> Iterator[Variant]:
        if table.genes is not None:
            raise UsageError("proteins have no genes: leave out the file of genes")
        wildtype = table.sequence
        if wildtype is None and table.wildtype is not None:
            wildtype = self._read_wildtype(table.wildtype)
        elif wildtype is None and table.family is not None and table.query is not None:
            wildtype = self._member(table.family, table.query)
        bad = list[DataError]()
        rows = list(self._rows(table, wildtype, bad))
        if not rows and not bad:
            raise DataError("no variants", source=table.path, remedy="give a file with one variant per row")
        rows_of: dict[str, list[_Row]] = {}
        for row in rows:
            rows_of.setdefault(row.wildtype, []).append(row)
        firsts = {
            sequence: _numbering(table, own_rows, sequence, problems)
            for sequence, own_rows in rows_of.items()
        }
        variants, kinds = list[Variant](), Counter[str]()
        for row in rows:
            try:
                variant = _variant(row, table.path, firsts[row.wildtype])
                variants.append(variant)
                kinds.update([] if variant.scored else [_unscored_kind(row)])
            except ValueError as error:
                remedy = _RENUMBER if isinstance(error, _Outside) else LEAVE_OUT
                bad.append(bad_variant(str(error), table.path, row.line, remedy))
        _refuse(sorted(bad, key=lambda failure: failure.line or 0), problems)
        if variants and len(variants) == kinds["nucleotides"] + kinds["missing"]:
            reason = f"this column has no change of the protein in {number_of(len(variants), 'row')}"
            remedy = "name the column of the protein changes with --set column=NAME"
            raise DataError(reason, source=table.path, line=variants[0].line, remedy=remedy)
        for kind, note in UNSCORED.items():
            problems.note(note, kinds[kind])
        yield from variants if table.columns is None else self._align_to_family(variants, table, problems)

    def _member(self, family: str, query: str | None) -> str:
        """The residues of an alignment row, insertions included. None for `query` means the first row."""
        for record in self._records(family):
            if query in (None, record.id):
                return _check_residues(str(record.raw), family, record.line)
        remedy = "give the id of a row in the file, or the wild type with --wildtype"
        raise DataError(f"no row has the id {query}", source=family, remedy=remedy)

    def _align_to_family(
        self, variants: Sequence[Variant], table: VariantTable, problems: Problems
    ) -> Iterator[Variant]:
        """Move the variants to aligned rows of their family, for a model that reads such rows."""
        if table.family is None:
            if all(len(variant.wildtype) == table.columns for variant in variants):
                yield from variants
                return
            raise UsageError(
                f"a linear model reads rows of {table.columns} columns: name the alignment that it was "
                "trained on with --family"
            )
        rows = [str(record.raw) for record in self._records(table.family, gaps="keep")]
        if {len(row) for row in rows} != {table.columns}:
            reason = f"not the alignment that the model was trained on, which has {table.columns} columns"
            raise DataError(reason, source=table.family, remedy="name that alignment with --family")
        columns, outside = cache(lambda wildtype: _columns_of(rows, wildtype, str(table.family))), 0
        for variant in variants:
            row_variant = _in_row(variant, columns(variant.wildtype), len(rows[0]))
            outside += variant.scored and not row_variant.scored
            yield row_variant
        problems.note("not in columns of the family, or of another length: not scored", outside)

    def _records(self, path: str, **options: Any) -> Iterator[Record]:
        return self._domain.read([path], Problems(), **options)

    def _read_wildtype(self, path: str) -> str:
        """The only sequence in a file."""
        records = list(self._records(path))
        if len(records) != 1:
            reason = f"{number_of(len(records), 'sequence')}, but the wild type is one sequence"
            raise DataError(reason, source=path, remedy="give a file with only that sequence")
        return _check_residues(str(records[0].raw), path, records[0].line)

    def _rows(self, table: VariantTable, wildtype: str | None, bad: list[DataError]) -> Iterator[_Row]:
        """The rows of a table with their changes; rows that cannot be read go into `bad`."""
        columns: tuple[str, ...] | None = None
        for line, fields in self._fields(table.path):
            columns = columns or _columns(fields, table, line)
            cell = next((str(fields[name]) for name in WILDTYPES if fields.get(name)), None)
            sequence = wildtype or (cell and _check_residues(cell.upper(), table.path, line))
            if sequence is None and table.family is not None:
                sequence = wildtype = self._member(table.family, None)
            if sequence is None:
                raise UsageError("the wild type is unknown: name its FASTA file with --wildtype")
            text = "".join(str(required(fields, name, table.path, line) or "") for name in columns).strip()
            letters = columns[0] in SEQUENCES or _SEQUENCE.fullmatch(text) is not None
            name = str(fields.get("id", "")) if columns[0] in SEQUENCES else text[:200]
            try:
                if letters and text.lower() not in _UNCHANGED:
                    mutant = _check_residues(text.upper().removesuffix("*"), table.path, line)
                    yield _Row(name, line, fields, sequence, None, mutant)
                else:
                    yield _Row(name, line, fields, sequence, parse(text))
            except ValueError as error:
                bad.append(bad_variant(str(error), table.path, line))
            except DataError as error:
                bad.append(error)

    def _fields(self, path: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The rows of a table. Records and lines of text are rows with one column."""
        files = self._domain.files
        if files.in_folders(files.format_of(path)):  # a file of sequences, by its name
            for record in self._records(path):
                yield record.line, {"id": record.id, "mutated_sequence": str(record.raw)}
        elif stem_suffix(path) == ".txt":
            for number, text in lines(path, Problems()):
                if text.strip():
                    yield number, {"mutant": text}
        else:
            yield from read_rows(path)

    def assays(self, folder: Path) -> list[Assay]:
        """ProteinGym's assays: a reference file with `DMS_id` and `target_seq`, and a table for each assay.

        The table of an assay is `DMS_id`.csv. Assays without a table are left out.
        """
        root = folder.parent if folder.is_file() else folder
        files = {path.name.removesuffix(".gz"): path for path in sorted(root.rglob("*.csv*"), reverse=True)}
        assay_list, reference = [], None
        for path in [folder] if folder.is_file() else files.values():
            for line, row in read_rows(str(path)):
                if not {"DMS_id", "target_seq"} <= row.keys():
                    break
                reference = path
                table = files.get(str(row.get("DMS_filename") or f"{row['DMS_id']}.csv"))
                if table is not None:
                    sequence = _check_residues(str(row["target_seq"]).upper(), str(path), line)
                    assay_list.append(
                        Assay(
                            name=str(row["DMS_id"]),
                            table=VariantTable(path=str(table), sequence=sequence, first=1),
                            measured="DMS_score",
                            subject=str(row.get("UniProt_ID") or row["DMS_id"]),
                            kind=str(row.get("coarse_selection_type") or ""),
                        )
                    )
        if not assay_list:
            reason = "no table for any assay" if reference else "no reference file with DMS_id and target_seq"
            remedy = "name the folder with ProteinGym's reference file and its unpacked DMS tables"
            raise DataError(reason, source=str(folder), remedy=remedy)
        return assay_list

    def rivals(self, wildtypes: Sequence[str], alignment: str | None) -> Mapping[str, Predict]:
        """Predictors by name: BLOSUM62, and the residue frequencies of an alignment, column by column."""
        blosum = additive_prediction(
            lambda wildtype, place, residue: blosum62()[wildtype[place], residue], STANDARD
        )
        if alignment is None:
            return {"BLOSUM62": blosum}
        rows = [str(record.raw) for record in self._records(alignment, gaps="keep")]
        sites = {wildtype: _sites(rows, wildtype, alignment) for wildtype in wildtypes}

        def log_ratio(wildtype: str, place: int, residue: str) -> float:
            wild_state, new_state = map(STANDARD.index, (wildtype[place], residue))
            return float(sites[wildtype][place, new_state] - sites[wildtype][place, wild_state])

        return {"BLOSUM62": blosum, "site-independent": additive_prediction(log_ratio, STANDARD)}


def _columns(fields: Mapping[str, Any], table: VariantTable, line: int) -> tuple[str, ...]:
    """The column of the variants, or the three columns that name a variant together."""
    if table.column is not None:
        required(fields, table.column, table.path, line)
        return (table.column,)
    lower = lower_names(fields)
    for triple in TRIPLES:
        if all(name in lower for name in triple):
            return tuple(lower[name] for name in triple)
    column = next((lower[name] for name in (*NAMES, *SEQUENCES) if name in lower), None)
    if column is None:
        reason = "no column with a known name for the variants"
        remedy = f"name it with --set column=NAME; known: {', '.join((*NAMES[:4], *SEQUENCES[:2]))}"
        raise DataError(reason, source=table.path, line=line, remedy=remedy)
    return (column,)


def _check_residues(sequence: str, path: str, line: int) -> str:
    """The sequence itself, if all its letters are residues.

    Raises:
        DataError: the sequence is empty, or a letter is not a residue.
    """
    if not sequence:
        raise bad_variant("an empty sequence", path, line)
    for place, letter in enumerate(sequence, start=1):
        if letter not in RESIDUES:
            raise bad_variant(f"{letter!r} at {place} is not a residue", path, line)
    return sequence


def _refuse(bad: Sequence[DataError], problems: Problems) -> None:
    """Pass bad variants to `problems`. If the first one raises, its message names the next ones too."""
    if len(bad) > 1 and problems.on_error == "raise":
        later_reasons = "; ".join(f"line {failure.line}: {failure.reason}" for failure in bad[1:_MOST_TOLD])
        ending = f"; and {len(bad) - _MOST_TOLD} more" if len(bad) > _MOST_TOLD else ""
        first = bad[0]
        reason = f"{first.reason}; {later_reasons}{ending}"
        problems.bad(bad_variant(reason, first.source or "", first.line or 1, first.remedy or LEAVE_OUT))
    for failure in bad:
        problems.bad(failure)


def _numbering(table: VariantTable, rows: Sequence[_Row], wildtype: str, problems: Problems) -> int:
    """The number that a table gives to the first residue of the wild type.

    Raises:
        DataError: no numbering fits the residues that the variants name.
    """
    if table.first is not None:
        return table.first
    places = _named_places(rows)
    if not places:
        return 1
    letters = np.array([ord(letter) for letter, _ in places])
    numbers = np.array([number for _, number in places])
    residues = np.frombuffer(wildtype.encode(), dtype=np.uint8)

    def fit_of(first: int) -> tuple[float, NDArray[np.bool_]]:
        """Share of fitting residues among places in the wild type, and (P,) which places fit.

        The share is 0 if most places are outside the wild type, or too few are inside.
        """
        place = numbers - first
        inside = (place >= 0) & (place < len(residues))
        fit = np.asarray(inside & (residues[np.where(inside, place, 0)] == letters))
        enough = inside.sum() >= max(LEAST_PLACES, len(places) / 2)
        return float(fit.sum() / inside.sum()) if enough else 0.0, fit

    if fit_of(1)[0] >= LEAST_SHARE or len(places) < LEAST_PLACES:
        return 1
    firsts = range(int(numbers.min()) - len(residues) + 1, int(numbers.max()) + 1)
    best = max(firsts, key=lambda first: (fit_of(first)[0], fit_of(first)[1].sum()))
    share, fit = fit_of(best)
    if share < LEAST_SHARE and (best != 1 or share < 0.5):
        misfit = list(places.items())[int(np.argmin(fit))]
        raise DataError(
            f"the residues in the variants do not fit the wild type: at best {share:.0%} of "
            f"{len(places)} places fit, with its first residue as number {best}",
            source=table.path,
            line=misfit[1],
            remedy="check the wild type, or give the number of its first residue with --set first=NUMBER",
        )
    if best != 1:
        note = f"the table numbers the first residue of the wild type {best}; of its {len(places)} places fit"
        problems.note(note, int(fit.sum()))
    return best


def _named_places(rows: Sequence[_Row]) -> dict[tuple[str, int], int]:
    """The line of each (residue, number) that variants name. Stop codons have no place in the wild type."""
    changed = ((change, row.line) for row in reversed(rows) for change in row.changes or ())
    return {place: line for change, line in changed for place in change.places if place[0] != "*"}


def _variant(row: _Row, path: str, first: int) -> Variant:
    """The variant that a row names.

    Raises:
        ValueError: it does not fit the wild type, or inserts a letter that is not a residue.
    """
    if row.changes is None:
        edits = changes(row.wildtype, row.mutant)
        name = row.name or ":".join(_edit_name(row.wildtype, edit, first) for edit in edits)[:200] or "="
    else:
        located = [
            (change.kind, _edit(change, row, first))
            for change in row.changes
            if change.places and change.places[0][0] != "*"
        ]
        unscored = any(change.kind in UNSCORED for change in row.changes)
        changed = [] if unscored else [edit for kind, edit in located if kind != "="]
        edits, name = tuple(sorted(changed)), row.name or "="
        if any(a.end > b.start or a == b for a, b in pairwise(edits)):
            raise ValueError(f"{name}: two changes at the same place")
    unknown = next((letter for edit in edits for letter in edit.text if letter not in STANDARD + "*"), None)
    if unknown is not None:
        raise ValueError(f"{name}: {unknown} is not one of the 20 residues")
    return Variant(
        name=name, wildtype=row.wildtype, edits=edits, source=path, line=row.line, fields=row.fields,
        first=first, scored=not _unscored_kind(row),
    )  # fmt: skip


def _unscored_kind(row: _Row) -> str:
    """The kind in `UNSCORED` of a row; "" for a row that has an effect."""
    changed = row.changes or ()
    kind = next((change.kind for change in changed if change.kind in UNSCORED), "")
    letters = (
        letter for change in changed for letter in (*change.inserted, *(place[0] for place in change.places))
    )
    return kind or ("stop" if "*" in letters else "")


def _edit_name(wildtype: str, edit: Edit, first: int) -> str:
    """The notation of an edit, such as A12V or 12AC>G, with residues numbered from `first`."""
    residues, number = wildtype[edit.start : edit.end], edit.start + first
    return (
        f"{residues}{number}{edit.text}"
        if len(residues) == len(edit.text)
        else f"{number}{residues}>{edit.text or '-'}"
    )


_RENUMBER = f"give the number of its first residue with --set first=NUMBER, or {LEAVE_OUT}"


class _Outside(ValueError):
    """A place that the wild type does not have, perhaps because its numbers begin elsewhere."""


def _edit(change: Change, row: _Row, first: int) -> Edit:
    """The edit for a written change.

    Raises:
        ValueError: the wild type has another residue there, or ends before that place.
    """
    wildtype = row.wildtype
    for letter, number in change.places:
        at = number - first
        if not 0 <= at < len(wildtype):
            raise _Outside(
                f"{row.name}: {number} is outside the wild type, which has residues {first} to "
                f"{first + len(wildtype) - 1}"
            )
        if wildtype[at] != letter:
            raise ValueError(f"{row.name}: the wild type has {wildtype[at]} at {number}, not {letter}")
    start, end = change.places[0][1] - first, change.places[-1][1] - first + 1
    if end <= start or (change.kind == "ins" and end != start + 2):
        raise ValueError(f"{row.name}: the places are not in order, or not next to each other")
    if change.kind == "ins":
        return Edit(start + 1, start + 1, change.inserted)
    if change.kind == "dup":
        return Edit(end, end, wildtype[start:end])
    return Edit(start, end, change.inserted)


def _in_row(variant: Variant, column: Mapping[int, int], width: int) -> Variant:
    """The variant as an edit of an aligned row of its family.

    It is not scored if a changed place is in no column, or if the length changes.

    Args:
        column: place in the wild type -> its column.
        width: number of columns.
    """
    row, numbers = [GAP] * width, [0] * width
    for place, there in column.items():
        row[there], numbers[there] = variant.wildtype[place], place + variant.first
    fits = variant.substitutions and all(edit.start in column for edit in variant.edits)
    edits = [(column[edit.start], edit.text) for edit in variant.edits] if fits else []
    return replace(
        variant,
        wildtype="".join(row),
        edits=tuple(Edit(there, there + 1, text) for there, text in sorted(edits)),
        numbers=tuple(numbers),
        scored=variant.scored and fits,
    )


# Rivals that need no model.


def _sites(rows: Sequence[str], wildtype: str, path: str) -> NDArray[np.float64]:
    """(L, 20) log frequency of each residue in the column of each place; NaN for places without a column.

    The row most similar to the wild type determines the column of each place. If there are more than
    `MOST_ROWS` rows, only every second, third ... row is used. Two rows are near copies if four of five of
    their residues are equal. The weight of a row is one over its number of near copies, itself included, so
    that near copies count once. Half an observation is added to each residue.
    """
    if len({len(row) for row in rows}) != 1:
        reason, remedy = "not an alignment: its rows differ in length", "give an aligned family"
        raise DataError(reason, source=path, remedy=remedy)
    table = np.full(256, len(STANDARD), dtype=np.int8)
    table[np.frombuffer(STANDARD.encode(), dtype=np.uint8)] = np.arange(len(STANDARD))
    columns = _columns_of(rows, wildtype, path)
    rows = rows[:: 1 + len(rows) // MOST_ROWS]
    cells = table[np.frombuffer("".join(rows).upper().encode(), dtype=np.uint8).reshape(len(rows), -1)]
    is_residue = cells < len(STANDARD)
    least_equal = ALIKE * is_residue.sum(axis=1)
    weights = [
        1 / np.count_nonzero(((cells == row) & is_residue).sum(axis=1) >= threshold)
        for row, threshold in zip(cells, least_equal, strict=True)
    ]
    log_frequencies = np.full((len(wildtype), len(STANDARD)), np.nan)
    for place, column in columns.items():
        counts = np.bincount(cells[:, column], weights, len(STANDARD) + 1)[: len(STANDARD)] + 0.5
        log_frequencies[place] = np.log(counts / counts.sum())
    return log_frequencies


def _columns_of(rows: Sequence[str], wildtype: str, path: str) -> dict[int, int]:
    """Place in the wild type -> its column, by a local alignment with the most similar row.

    A wild type with gaps is a row itself.

    Raises:
        DataError: no row is similar to the wild type.
    """
    if GAP in wildtype:
        return {column: column for column, letter in enumerate(wildtype) if letter != GAP}

    def words(text: str) -> set[str]:
        return {text[i : i + 3] for i in range(len(text) - 2)}

    wild_words = words(wildtype)
    letters = [[(i, c) for i, c in enumerate(row.upper()) if c in RESIDUES] for row in rows]
    texts = ["".join(c for _, c in row_letters) for row_letters in letters]
    shared = [len(wild_words & words(text)) for text in texts]
    best = int(np.argmax(shared))
    if not shared[best]:
        reason = "no row of the alignment is similar to the wild type"
        raise DataError(reason, source=path, remedy="give an alignment of its family")
    usual = str.maketrans("UO", "CK")  # BLOSUM62 does not have U and O
    first, second = wildtype.translate(usual), texts[best].translate(usual)
    gaps = {"open_gap_score": -11, "extend_gap_score": -1}
    aligned = aligned_places(first, second, {"mode": "local", "substitution_matrix": blosum62(), **gaps})
    return {place: letters[best][there][0] for place, there in aligned.items()}


def aligned_places(first: str, second: str, settings: Mapping[str, Any]) -> dict[int, int]:
    """Place in the first sequence -> aligned place in the second, by Biopython's `PairwiseAligner`."""
    from Bio.Align import PairwiseAligner

    spans = zip(*PairwiseAligner(**settings).align(first, second)[0].aligned, strict=True)
    return {int(a) + k: int(c) + k for (a, b), (c, _) in spans for k in range(int(b - a))}
