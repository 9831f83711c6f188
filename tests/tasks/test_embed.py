"""Vectors against plain transformers, one record at a time: pooling, layers, windows, strands, files."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fork_server import Run
from histories import histories
from scipy.stats import spearmanr
from stopped import stopped_by_rows
from text_models import text_model
from tiny_models import dna_model, random_model, residues, saved
from transformers import AutoModel, AutoTokenizer
from written import rows as rows_of

from seqmlm.data.record import Record
from seqmlm.domains.ehr.tokenizer import EventsTokenizer
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.engine.conditionals import evaluation_mode
from seqmlm.engine.types import Encoding
from seqmlm.engine.windows import central_windows
from seqmlm.evaluation.senses import one_sense
from seqmlm.inference import model_folder
from seqmlm.inference.session import Session
from seqmlm.streams.sinks import packed, unpacked
from seqmlm.tasks.embed import Embed, EmbedConfig

SENTENCES = ("the cat sees the dog", "a dog barks", "no cats sleep catsdogs here", "the dogs", "a dog barks")
PETS = tuple(f"the {'cat' if n % 3 else 'dog'} sees {'a ' * n}dog" for n in range(9))
LONG = " ".join(SENTENCES[n % 3] for n in range(9))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_model(tmp_path_factory.mktemp("embed"), wordpiece=True)


@pytest.fixture(scope="module")
def body(model: Path) -> Any:
    return AutoModel.from_pretrained(model).eval()


@pytest.fixture
def session(model: Path) -> Session:
    return Session.open(str(model))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    lines = (json.dumps({"id": f"r{n}", "text": one}) for n, one in enumerate((*SENTENCES, LONG)))
    path.write_text("\n".join(lines) + "\n")
    return path


def records(*texts: str) -> Iterator[Record]:
    return (Record(id=f"r{n}", raw=text, source="x", line=n + 1) for n, text in enumerate(texts))


def whole(session: Session, *texts: str, **how: Any) -> np.ndarray:
    """(N, H) a vector of each text."""
    return np.stack([own[0] for _, own in session.embed(records(*texts), **how)])


def states(body: Any, ids: Any, layer: int = -1) -> np.ndarray:
    """(L, H) what the model alone says of one sequence."""
    with evaluation_mode(body):
        found = body(input_ids=torch.tensor(ids[None].astype(np.int64)), output_hidden_states=True)
    every = [*found.hidden_states[:-1], found.last_hidden_state]
    return np.asarray(every[layer][0])


def by_unit(encoding: Encoding, hidden: np.ndarray) -> np.ndarray:
    """(U, H) the mean of the tokens of each unit."""
    groups = encoding.groups
    return np.stack([hidden[groups == one].mean(0) for one in dict.fromkeys(groups[groups >= 0].tolist())])


POOLS = {
    "mean": lambda encoding, hidden: by_unit(encoding, hidden).mean(0),
    "max": lambda encoding, hidden: by_unit(encoding, hidden).max(0),
    "start": lambda encoding, hidden: hidden[0],
    "tokens": lambda encoding, hidden: hidden.mean(0),
}


@pytest.mark.parametrize("pool", sorted(POOLS))
def test_a_record_is_pooled_as_plain_transformers_has_its_states(
    session: Session, body: Any, pool: str
) -> None:
    encodings = [session.tokenizer.encode(one) for one in SENTENCES]
    assert any(len(set(one.groups.tolist())) < len(one) - 1 for one in encodings), "every unit is one token"
    for (_, (found,)), encoding in zip(session.embed(records(*SENTENCES), pool=pool), encodings, strict=True):
        np.testing.assert_allclose(found, POOLS[pool](encoding, states(body, encoding.ids)), atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "numbers", "scale"),
    [("0", [0], 1), ("-2", [-2], 1), ("1", [1], 1), ("-2:mean", [-2, -1], 1), ("-2:sum", [-2, -1], 2)],
)
def test_layers_are_those_of_transformers(
    session: Session, body: Any, layers: str, numbers: list[int], scale: int
) -> None:
    encoding = session.tokenizer.encode(SENTENCES[0])
    ((_, (found,)),) = session.embed(records(SENTENCES[0]), layers=layers)
    mean = np.mean([states(body, encoding.ids, one) for one in numbers], 0) * scale
    np.testing.assert_allclose(found, by_unit(encoding, mean).mean(0), rtol=1e-5, atol=1e-5)


def test_units_of_a_long_record_are_read_where_they_are_most_central(session: Session, body: Any) -> None:
    encoding = session.tokenizer.encode(LONG)
    assert len(encoding) > session.card.max_length
    wanted = {}
    for window, owned in central_windows(encoding, session.tokenizer.space, session.card.max_length):
        hidden = states(body, window.ids)
        for unit in dict.fromkeys(window.groups[owned].tolist()):
            wanted[unit] = hidden[(window.groups == unit) & owned].mean(0)
    every = np.stack([wanted[unit] for unit in sorted(wanted)])
    ((_, units),) = session.embed(records(LONG), of="unit")
    np.testing.assert_allclose(units, every, atol=1e-5)
    ((_, (mean,)),) = session.embed(records(LONG))
    np.testing.assert_allclose(mean, every.mean(0), atol=1e-5)
    ((_, (largest,)),) = session.embed(records(LONG), pool="max")
    np.testing.assert_allclose(largest, every.max(0), atol=1e-5)


def test_windows_stand_alone_and_cover_the_record(session: Session, body: Any) -> None:
    encoding = session.tokenizer.encode(LONG)
    cut = session.tokenizer.units.windows(encoding, session.card.max_length)
    ((_, found),) = session.embed(records(LONG), of="window")
    wanted = [by_unit(one, states(body, one.ids)).mean(0) for one in cut]
    np.testing.assert_allclose(found, np.stack(wanted), atol=1e-5)


def test_a_vector_of_two_strands_is_their_mean(tmp_path: Path) -> None:
    folder = saved(dna_model(), tmp_path / "dna")
    session, body = Session.open(str(folder)), AutoModel.from_pretrained(folder).eval()
    text, other = "ACGTTGCANCCA", "TGGNTGCAACGT"
    there, back = (
        by_unit(one, states(body, one.ids)) for one in map(session.tokenizer.encode, (text, other))
    )
    ((_, units),) = session.embed(records(text), of="unit")
    known = [number for number, letter in enumerate(text) if letter != "N"]
    np.testing.assert_allclose(
        units[known] if len(units) == len(text) else units, (there + back[::-1]) / 2, atol=1e-5
    )
    ((_, one),), ((_, two),) = session.embed(records(text)), session.embed(records(other))
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_rows_of_spans_have_their_vectors_places_and_columns(
    session: Session, model: Path, texts: Path, tmp_path: Path, seqmlm: Run
) -> None:
    spans, out = tmp_path / "spans.csv", tmp_path / "rows.jsonl"
    spans.write_text("id,start,end,sense\nr0,4,7,cat\nr0,4,16,more\nr1,2,5,dog\nr9,0,1,none\n")
    done = seqmlm("embed", model, texts, "--of", "span", "--set", f"spans={spans}", "--out", out).ok()
    assert "1 span with an id that no record has" in done.err
    rows = rows_of(out)
    found = [" ".join((one["id"], one["sense"], one["unit"])) for one in rows]
    assert found == ["r0 cat cat", "r0 more cat sees the", "r1 dog dog"]
    ((_, units),) = session.embed(records(SENTENCES[0]), of="unit")
    np.testing.assert_allclose(rows[0]["vector"], units[1], atol=1e-5)
    np.testing.assert_allclose(rows[1]["vector"], units[1:4].mean(0), atol=1e-5)


def test_spans_that_are_none_are_bad(model: Path, texts: Path, tmp_path: Path, seqmlm: Run) -> None:
    spans = tmp_path / "spans.csv"
    spans.write_text("id,start,end\nr0,3,4\nr0,5,5\nr1,2,5\n")
    asked = ("embed", model, texts, "--of", "span", "--set", f"spans={spans}")
    seqmlm(*asked).refused(3, f"{spans}:3:", "end is not after its start")
    done = seqmlm(*asked, "--on-error", "skip").ok()
    assert "span without a token of its record" in done.err
    spans.write_text("id,start,end\nr0,3,4\n")
    seqmlm(*asked).refused(3, f"{spans}:2:", "no token is at 4: correct start and end")
    assert [json.loads(one)["unit"] for one in done.out.splitlines()] == ["dog"]
    seqmlm("embed", model, texts, "--of", "span").refused(3, "no column 'start'")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tables_and_arrays_hold_the_same_vectors(
    model: Path, texts: Path, tmp_path: Path, seqmlm: Run, dtype: str
) -> None:
    asked = ("embed", model, texts, "--of", "unit", "--set", f"dtype={dtype}", "--out")
    for ending in ("jsonl", "parquet", "npy", "csv"):
        seqmlm(*asked, tmp_path / f"v.{ending}").ok()
    rows = rows_of(tmp_path / "v.jsonl")
    vectors = np.array([one["vector"] for one in rows], dtype=np.float32)
    array = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, vectors.astype(dtype))
    table = pq.read_table(tmp_path / "v.parquet")
    assert table.schema.field("vector").type.list_size == vectors.shape[1]
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), array)
    facts = json.loads((tmp_path / "v.facts.json").read_text())
    assert facts == json.loads(table.schema.metadata[b"seqmlm"])
    assert (facts["of"], facts["pool"], facts["layers"]) == ("unit", "mean", "last")
    header, *ids = (tmp_path / "v.ids.tsv").read_text().splitlines()
    assert header.split("\t") == [name for name in table.column_names if name != "vector"]
    assert [one.split("\t")[5] for one in ids] == [one["unit"] for one in rows]
    assert not [one for one in tmp_path.iterdir() if "partial" in one.name]


def test_text_of_vectors_is_exact() -> None:
    vector = np.array([0.1, -3e-8, 7.0], dtype=np.float32)
    np.testing.assert_array_equal(unpacked(packed(vector)), vector)
    np.testing.assert_array_equal(unpacked(json.loads(json.dumps(vector.tolist()))), vector)


def test_what_makes_no_sense_is_refused(model: Path, texts: Path, tmp_path: Path, seqmlm: Run) -> None:
    seqmlm("embed", model, texts, "--layers", "3").refused(2, "no layer 3", "2 layers")
    seqmlm("embed", model, texts, "--layers", "-4:mean").refused(2, "no layer -4")
    seqmlm("embed", model, texts, "--layers", "first").refused(2, "last, a number")
    seqmlm("embed", model, texts, "--set", "format_out=parquet").refused(2, "cannot go to standard output")
    seqmlm("embed", model, texts, "--of", "unit", "--set", "pool=tokens").refused(2, "only for records")
    seqmlm("score", model, texts, "--out", tmp_path / "s.npy").refused(2, "only vectors")


def test_a_linear_model_has_no_hidden_states(tmp_path: Path, seqmlm: Run) -> None:
    rows = "\n".join(f">p{n}\n{residues(6)[n % 3 :]}{residues(6)[: n % 3]}" for n in range(60))
    (tmp_path / "a.fasta").write_text(rows + "\n")
    asked = ("--domain", "protein", "--size", "linear", "--name", "flat", tmp_path / "a.fasta")
    seqmlm("train", *asked, "--set", "train.max_steps=2").ok()
    seqmlm("embed", "flat", tmp_path / "a.fasta").refused(2, "linear model", "no hidden states")


def test_a_normalization_is_of_its_corpus_and_belongs_to_the_model(tmp_path: Path, seqmlm: Run) -> None:
    model = text_model(tmp_path / "own")
    corpus, few = tmp_path / "corpus.txt", tmp_path / "few.txt"
    corpus.write_text(
        "".join(f"the {'cat' if n % 2 else 'dog'} sees {'a ' * (n % 7)}dog\n" for n in range(30))
    )
    few.write_text("a dog barks\nno cats sleep\n")
    seqmlm("embed", model, few, "--set", "normal=z").refused(2, "--set fit=true")
    seqmlm("embed", model, few, "--set", "fit=true").refused(3, "2 vectors are too few")
    told = seqmlm("embed", model, corpus, "--set", "fit=true", "--json").ok().json
    card = model_folder.read_card(model)
    assert card is not None
    assert "embedding.safetensors" in card.files
    session = Session.open(str(model))
    raw, over = (whole(session, *one.read_text().splitlines()) for one in (few, corpus))
    for normal, wanted in (("centred", raw - over.mean(0)), ("z", (raw - over.mean(0)) / over.std(0))):
        out = tmp_path / f"{normal}.npy"
        seqmlm("embed", model, few, "--set", f"normal={normal}", "--out", out).ok()
        np.testing.assert_allclose(np.load(out), wanted, atol=1e-4)
        facts = json.loads(out.with_suffix(".facts.json").read_text())
        assert facts["normal"] == f"{normal} {told['fitted']}"
    seqmlm("embed", model, few, "--set", "normal=z", "--layers", "1").refused(2, "with layers last", "have 1")


def test_pairs_have_cosines_that_go_with_a_truth(
    session: Session, model: Path, tmp_path: Path, seqmlm: Run
) -> None:
    pairs = tmp_path / "pairs.csv"
    lines = [
        ("one", "two", "score"),
        *((a, b, str(n)) for n, (a, b) in enumerate(itertools.pairwise(SENTENCES))),
    ]
    pairs.write_text("\n".join(map(",".join, lines)) + "\n")
    asked = ("embed", model, pairs, "--set", "pair=one,two", "--set", "truth=score")
    told = seqmlm(*asked, "--out", tmp_path / "p.jsonl", "--json").ok().json
    vectors = whole(session, *SENTENCES).astype(float)
    wanted = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.pairwise(vectors)]
    found = [one["cosine"] for one in rows_of(tmp_path / "p.jsonl")]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert told["spearman"] == pytest.approx(spearmanr(wanted, range(4)).statistic)
    assert told["pearson"] == pytest.approx(np.corrcoef(wanted, range(4))[0, 1], abs=1e-5)
    assert told["low"] <= told["spearman"] <= told["high"]
    seqmlm("embed", model, pairs, "--set", "pair=one,three").refused(3, "no column 'three'")
    seqmlm("embed", model, pairs, "--set", "pair=none,two").refused(3, "none")
    seqmlm("embed", model, pairs, "--set", "pair=one").refused(2, "two columns")
    seqmlm("embed", model, pairs, "--set", "truth=score").refused(2, "pair=A,B")
    pairs.write_text(pairs.read_text().replace(",2", ",high"))
    seqmlm(*asked).refused(3, f"{pairs}:4:", "no number in column 'score'")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    path = tmp_path / "pets.csv"
    path.write_text("text,pet\n" + "".join(f"{one},{one.split()[1]}\n" for one in PETS))
    return path


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_neighbours_are_those_of_the_vectors(
    model: Path, pets: Path, texts: Path, tmp_path: Path, seqmlm: Run, ending: str
) -> None:
    index, out = tmp_path / f"index.{ending}", tmp_path / "near.jsonl"
    seqmlm("embed", model, pets, "--set", "keep=pet", "--out", index).ok()
    session = Session.open(str(model))
    both = whole(session, *SENTENCES, LONG), whole(session, *PETS)
    unit = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in both]
    every = unit[0] @ unit[1].T
    told = seqmlm(
        "embed", model, texts, "--neighbours", 3, "--set", f"index={index}", "--out", out, "--json"
    ).ok()
    rows = rows_of(out)
    assert told.json["neighbours"] == 3
    assert [one["neighbour"] for one in rows[:3]] == [f"pets.csv:{n + 2}" for n in np.argsort(-every[0])[:3]]
    np.testing.assert_allclose([one["cosine"] for one in rows], -np.sort(-every)[:, :3].ravel(), atol=1e-5)
    assert [one["rank"] for one in rows[:4]] == [1, 2, 3, 1]
    alone, share = tmp_path / "alone.csv", tmp_path / "share.jsonl"
    seqmlm("embed", model, pets, "--neighbours", 8, "--out", alone).ok()
    seqmlm("embed", model, pets, "--neighbours", 8, "--out", share, "--shard", "0/2").refused(
        2, "cannot use --shard"
    )
    with alone.open(newline="") as file:
        near = [(one["id"], one["neighbour"]) for one in csv.DictReader(file)]
    assert len({*near}) == 72
    assert not [one for one, other in near if one == other]


def test_labels_are_those_of_most_neighbours(model: Path, pets: Path, tmp_path: Path, seqmlm: Run) -> None:
    out = tmp_path / "near.jsonl"
    asked = ("embed", model, pets, "--set", "knn=pet")
    told = seqmlm(*asked, "--neighbours", 3, "--out", out, "--json").ok().json
    rows = rows_of(out)
    assert [one["pet"] for one in rows] == ["dog", "cat", "cat"] * 3
    assert told["accuracy"] == pytest.approx(np.mean([one["label"] == one["pet"] for one in rows]))
    assert told["majority"] == pytest.approx(6 / 9)
    assert told["low"] < told["accuracy"] <= told["high"]
    seqmlm("embed", model, pets, "--set", "keep=pet", "--out", tmp_path / "i.parquet").ok()
    same = seqmlm(*asked, "--neighbours", 1, "--set", f"index={tmp_path / 'i.parquet'}", "--json").ok().json
    assert same["accuracy"] == 1.0  # each is in the index itself
    seqmlm("embed", model, pets, "--set", "knn=colour").refused(3, "no column 'colour'")


def test_what_cannot_be_compared_is_refused(
    model: Path, pets: Path, texts: Path, tmp_path: Path, seqmlm: Run
) -> None:
    index = tmp_path / "index.npy"
    seqmlm("embed", model, pets, "--out", index).ok()
    asked = ("embed", model, texts, "--set", f"index={index}")
    seqmlm(*asked).refused(2, "--neighbours K")
    seqmlm(*asked, "--neighbours", 10).refused(2, "9 vectors", "fewer than 10 neighbours")
    seqmlm(*asked, "--neighbours", 2, "--layers", 1).refused(2, "layers last", "have 1")
    seqmlm(*asked, "--set", "knn=pet").refused(2, "no column 'pet'")
    other = text_model(tmp_path / "other")
    seqmlm("embed", other, texts, "--set", f"index={index}", "--neighbours", 2).refused(
        2, "vectors with model"
    )
    seqmlm("embed", model, texts, "--neighbours", 6).refused(3, "6 neighbours were requested")
    seqmlm("embed", model, texts, "--neighbours", 1, "--set", f"index={texts}").refused(
        3, str(texts), "--out NAME"
    )
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"a {'cat ' * n}barks\n" for n in range(12)))
    seqmlm("embed", other, corpus, "--set", "fit=true").ok()
    seqmlm("embed", other, pets, "--out", index).ok()
    asked = ("embed", other, texts, "--set", f"index={index}", "--neighbours", 2)
    seqmlm(*asked, "--set", "normal=z").refused(2, "with normal raw")
    assert "neighbours 2" in seqmlm(*asked, "--out", tmp_path / "n.jsonl").ok().err


@pytest.fixture
def roles(tmp_path: Path) -> tuple[Path, Path]:
    """The word dog as what barks, what is seen, and (twice) as what is told of cats."""
    told = [("a {dog} barks", "agent"), ("the {dog} barks", "agent"), ("the cat sees the {dog}", "patient")]
    told += [("a cat sees a {dog}", "patient"), ("a {dog} sees", "agent"), ("a {cat} sleeps", "cat")]
    new = [("no {dog} barks", "agent"), ("no cats see the {dog}", "patient"), ("a {Dog} barks", "agent")]
    new += [("the {cat} barks", "agent"), ("the dog {barks}", "agent")]
    paths = tmp_path / "train.csv", tmp_path / "new.csv"
    for path, own in zip(paths, (told, new), strict=True):
        rows = [(re.sub("[{}]", "", one), one.index("{"), one.index("}") - 1, name) for one, name in own]
        path.write_text(
            "sentence,start,end,sense\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows)
        )
    return paths


def test_a_word_has_the_sense_whose_centroid_is_nearest(
    roles: tuple[Path, Path], tmp_path: Path, seqmlm: Run
) -> None:
    model, (train, new) = text_model(tmp_path / "own", wordpiece=True), roles
    asked = ("embed", model, new, "--of", "span", "--set", "truth=sense")
    seqmlm(*asked, "--set", "senses=stored").refused(2, "no senses yet")
    told = seqmlm(*asked, "--set", f"senses={train}", "--out", tmp_path / "a.jsonl", "--json").ok().json
    seqmlm(*asked, "--set", "senses=stored", "--out", tmp_path / "b.jsonl").ok()
    rows = rows_of(tmp_path / "a.jsonl")
    assert rows == rows_of(tmp_path / "b.jsonl")
    vectors = []
    for path in (train, new):
        plain = ("--of", "span", "--set", "keep=sense", "--out", tmp_path / "v.jsonl")
        seqmlm("embed", model, path, *plain).ok()
        vectors.append([np.array(one["vector"]) for one in rows_of(tmp_path / "v.jsonl")])
    agents, patients = (sum(vectors[0][n] for n in own) for own in ((0, 1, 4), (2, 3)))
    for row, vector in zip(rows[:3], vectors[1], strict=False):
        cosines = {
            one @ vector / np.linalg.norm(one) / np.linalg.norm(vector): name
            for one, name in ((agents, "agent"), (patients, "patient"))
        }
        assert row["cosine"] == pytest.approx(max(cosines), abs=1e-5)
        assert row["sense"] == cosines[max(cosines)]
        assert (row["frequent"], row["truth"]) == ("agent", "patient" if row["line"] == 3 else "agent")
    assert [(one["sense"], one["frequent"]) for one in rows[3:]] == [("cat", "cat"), ("unknown", "unknown")]
    assert (told["spans"], told["unknown"]) == (5, 1)
    assert told["accuracy"] == pytest.approx(np.mean([one["sense"] == one["truth"] for one in rows]))
    assert told["most_frequent"] == pytest.approx(2 / 5)
    seqmlm(*asked, "--set", "senses=stored", "--layers", "1").refused(2, "layers last", "have 1")
    seqmlm("embed", model, new, "--set", "senses=stored").refused(2, "--of span")
    seqmlm(*asked, "--set", f"senses={new}", "--neighbours", "1").refused(2, "exclude each other")


def test_a_word_has_one_sense_in_a_document() -> None:
    senses = [("x", "Bank", "river"), ("x", "bank", "money"), ("x", "bank", "money"), ("y", "bank", "river")]
    senses += [("x", "tree", "oak"), ("z", "bank", "river"), ("z", "bank", "money")]
    rows = [{"document": one, "unit": unit, "sense": sense} for one, unit, sense in senses]
    found = " ".join(one["sense"] for one in one_sense(rows))
    assert found == "money money money river oak river river"


def test_any_span_with_a_label_has_a_sense(tmp_path: Path, seqmlm: Run) -> None:
    model = saved(random_model("protein", ResidueTokenizer(), spread=4), tmp_path / "protein")
    spans, out = tmp_path / "sites.csv", tmp_path / "s.jsonl"
    rows = ("MKTAYIAKQR,1,2,site", "WWWWKWWWWW,4,5,none", "MKTAYIAKQR,0,1,site")
    spans.write_text("\n".join(("sequence,start,end,sense", *rows)) + "\n")
    asked = ("--of", "span", "--set", f"senses={spans}", "--set", "truth=sense", "--out", out)
    done = seqmlm("embed", model, spans, *asked).ok()
    assert [one["unit"] + one["sense"] for one in rows_of(out)] == ["Ksite", "Knone", "Msite"]
    assert "3 spans: accuracy 1" in done.err


def test_dimensions_that_are_left_out_are_told() -> None:
    session = SimpleNamespace(card=SimpleNamespace(sensitive=False))
    asked: Any = SimpleNamespace(config=EmbedConfig(model="m", fit=True), width=16, session=session)

    def answer(figures: dict[str, int]) -> str:
        return Embed.conclusion(asked, figures, 30, tuple).sentence

    assert "1 dimension without variance" in answer({"vectors": 30, "dropped": 1})
    assert "variance" not in answer({"vectors": 30, "dropped": 0})


def test_senses_of_documents_are_written(roles: tuple[Path, Path], tmp_path: Path, seqmlm: Run) -> None:
    model, (train, new) = text_model(tmp_path / "own", wordpiece=True), roles
    asked = ("embed", model, new, "--of", "span", "--set", f"senses={train}", "--set", "truth=sense")
    seqmlm(*asked, "--set", "discourse=true", "--out", tmp_path / "a.csv").ok()
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len({one["sense"] for one in rows if one["unit"].lower() == "dog"}) == 1


def test_a_report_shows_how_vectors_lie_by_layer(
    model: Path, pets: Path, tmp_path: Path, seqmlm: Run
) -> None:
    page = tmp_path / "page.html"
    asked = ("embed", model, pets, "--of", "unit", "--set", "colour=pet", "--report", page)
    seqmlm(*asked, "--out", tmp_path / "v.jsonl").ok()
    html = page.read_text()
    shown = ("How similar random pairs are", "layer 0, raw", "layer 2, centred", "Frequency", "Map")
    assert not [one for one in (*shown, ">cat<", ">dog<") if one not in html]
    seqmlm("embed", model, pets, "--report", page, "--out", tmp_path / "r.npy").ok()
    assert "Frequency" not in page.read_text()


def test_all_layers_stand_one_behind_the_other(session: Session) -> None:
    ((_, (every,)),) = session.embed(records(SENTENCES[0]), layers="all", of="record")
    for number, own in enumerate(np.split(every, 3)):
        np.testing.assert_allclose(own, whole(session, SENTENCES[0], layers=str(number))[0], atol=1e-6)


def test_an_export_for_sentence_transformers_gives_the_same_vectors(
    model: Path, texts: Path, tmp_path: Path, seqmlm: Run
) -> None:
    out, own = tmp_path / "sentence", tmp_path / "own.npy"
    seqmlm("models", "export", model, out, "--format", "sentence").ok()
    seqmlm("embed", out, texts, "--set", "pool=tokens", "--out", own).ok()
    vectors, short = np.load(own)[:-1], list(SENTENCES)  # one is longer than a window, and would be cut there
    modules = json.loads((out / "modules.json").read_text())
    kinds = {one["path"]: one["type"].rpartition(".")[2] for one in modules}
    assert kinds == {"": "Transformer", "1_Pooling": "Pooling"}
    pooling = json.loads((out / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == vectors.shape[1]
    assert [name for name, value in pooling.items() if value is True] == ["pooling_mode_mean_tokens"]
    tokenizer, body = AutoTokenizer.from_pretrained(out), AutoModel.from_pretrained(out).eval()
    given = tokenizer(short, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = body(**given).last_hidden_state
    seen = given["attention_mask"][..., None]
    np.testing.assert_allclose(vectors, ((hidden * seen).sum(1) / seen.sum(1)).numpy(), atol=1e-5)
    seqmlm("models", "export", model, tmp_path / "x", "--format", "onnx").refused(2, "'onnx'")


def test_sentence_transformers_loads_an_export(
    model: Path, session: Session, tmp_path: Path, seqmlm: Run
) -> None:
    library = pytest.importorskip("sentence_transformers")
    seqmlm("models", "export", model, tmp_path / "out", "--format", "sentence").ok()
    theirs = library.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(list(SENTENCES))
    np.testing.assert_allclose(theirs, whole(session, *SENTENCES, pool="tokens"), atol=1e-5)


def test_what_is_no_text_is_not_exported_for_sentences(tmp_path: Path, seqmlm: Run) -> None:
    events = random_model("ehr", EventsTokenizer.train(histories(30), min_subjects=1), max_length=64)
    folder = saved(events, tmp_path / "events")
    seqmlm("models", "export", folder, tmp_path / "x", "--format", "sentence").refused(2, "plain text")


def test_building_senses_is_gone_on_with_after_a_stop(
    roles: tuple[Path, Path], tmp_path: Path, seqmlm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (train, new) = text_model(tmp_path / "own", wordpiece=True), roles
    monkeypatch.setattr("seqmlm.tasks.reading.BATCH_RECORDS", 2)
    named = ("--of", "span", "--option", "column=sentence")
    asked = ("embed", model, new, *named, "--set", f"senses={train}", "--out", tmp_path / "a.jsonl")
    with stopped_by_rows():
        assert seqmlm(*asked).code == 143
    assert not (model / "senses.safetensors").exists()
    assert "continuing" in seqmlm(*asked, "--resume").ok().err
    seqmlm(*asked[:7], "--set", "senses=stored", "--out", tmp_path / "b.jsonl").ok()
    assert rows_of(tmp_path / "a.jsonl") == rows_of(tmp_path / "b.jsonl")


def test_a_sequence_without_a_unit_has_no_vector(
    session: Session, model: Path, tmp_path: Path, seqmlm: Run
) -> None:
    (_, none), (_, one) = session.embed(records("", "the cat"))
    assert (none.shape, one.shape) == ((0, 16), (1, 16))
    blank = tmp_path / "blank.jsonl"
    blank.write_text('{"text": "a cat"}\n{"text": "\\u200b"}\n')
    seqmlm("embed", model, blank).refused(3, f"{blank}:2:", "a record without a unit has no vector")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("a,b\nthe cat,a dog\nthe dog,\na cat,the dog\n")
    asked = ("embed", model, pairs, "--set", "pair=a,b", "--out", tmp_path / "p.jsonl")
    seqmlm(*asked).refused(3, f"{pairs}:3:", "a record without a unit has no vector")
    seqmlm(*asked, "--on-error", "skip").ok()
    assert [one["line"] for one in rows_of(tmp_path / "p.jsonl")] == [2, 4]


def test_no_file_beside_an_array_is_an_input(model: Path, texts: Path, tmp_path: Path, seqmlm: Run) -> None:
    for name in ("v.facts.json", "v.ids.tsv"):
        path = tmp_path / name
        path.write_bytes(texts.read_bytes())
        done = seqmlm("embed", model, path, "--set", "format=jsonl", "--out", tmp_path / "v.npy")
        done.refused(2, "one of the inputs")
        assert path.read_bytes() == texts.read_bytes()


def test_sensitive_vectors_are_private_and_counts_are_withheld(tmp_path: Path, seqmlm: Run) -> None:
    model, pets = text_model(tmp_path / "own", sensitive=True), tmp_path / "pets.csv"
    pets.write_text("text,pet,other\n" + "".join(f"{text},{text.split()[1]},a dog\n" for text in PETS * 2))
    kept = {"a.npy": (), "n.jsonl": ("--neighbours", 3), "k.jsonl": ("--set", "knn=pet")}
    kept["p.jsonl"] = ("--set", "pair=text,other")
    for name, more in kept.items():
        asked = ("embed", model, pets, "--option", "column=text", *more)
        seqmlm(*asked).refused(2, "not shown on the console")
        seqmlm(*asked, "--out", tmp_path / name).ok()
    for name in (*kept, "a.ids.tsv", "a.facts.json"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name
    fit = ("--set", "fit=true", "--out", tmp_path / "f.jsonl", "--json")
    assert seqmlm("embed", model, pets, "--option", "column=text", *fit).ok().json["items"] == 18
    assert (model / "embedding.safetensors").stat().st_mode & 0o777 == 0o600
    wrong = ("--of", "span", "--set", f"senses={pets}", "--out", tmp_path / "s.jsonl")
    seqmlm("embed", model, pets, *wrong).refused(2, "words of sensitive data")
