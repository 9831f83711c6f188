"""`seqmlm pairs` through the entry point: files as they are published, and what may be wrong in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fork_server import Run
from text_models import text_model
from tiny_models import protein_model, saved
from written import rows as rows_of

PAIRS = [
    ("the cat sees the dog", "the cat see the dog", "agreement"),
    ("the dogs bark", "the dogs barks", "agreement"),
    ("no cats sleep here", "no cats sleep here", "same"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_model(tmp_path_factory.mktemp("pairs"))


@pytest.fixture
def blimp(tmp_path: Path) -> Path:
    path = tmp_path / "blimp.jsonl"
    rows = [
        {"sentence_good": good, "sentence_bad": bad, "UID": uid, "linguistics_term": "t", "pairID": str(n)}
        for n, (good, bad, uid) in enumerate(PAIRS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_blimp_as_it_is(seqmlm: Run, model: Path, blimp: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl"
    done = seqmlm("pairs", model, blimp, "--json", "--out", out).ok()
    lines = rows_of(out)
    assert [line["id"] for line in lines] == ["0", "1", "2"]
    assert lines[2]["margin"] == 0
    assert lines[2]["correct"] is False
    right = [line["pll_good"] > line["pll_bad"] for line in lines]
    assert done.json["accuracy"] == pytest.approx(sum(right) / 3)
    assert done.json["ties"] == 1
    assert set(done.json["groups"]) == {"agreement", "same"}
    assert done.json["groups"]["same"]["accuracy"] == 0
    assert done.json["macro"] == pytest.approx(sum(right[:2]) / 4)
    # "see" is shorter than "sees", "bark" than "barks".
    assert done.json["beside"]["length"]["accuracy"] == pytest.approx(1 / 3)


def test_means_groups_and_tables(seqmlm: Run, model: Path, blimp: Path) -> None:
    done = seqmlm(
        "pairs", model, blimp, "--metric", "mean", "--group", "linguistics_term", "--set", "mode=partition:2"
    ).ok()
    sentence, header, *rows = [line.split("\t") for line in done.out.splitlines()]
    assert "of 3 pairs" in sentence[0]
    assert header[:4] == ["group", "metric", "pairs", "accuracy"]
    assert [row[:3] for row in rows] == [
        ["all", "mean", "3"],
        ["all", "sum", "3"],
        ["all, baseline", "shorter is better", "3"],
    ]


def test_parallel_files_and_named_columns_agree(seqmlm: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("".join(f"{good}\n" for good, _, _ in PAIRS))
    (tmp_path / "b.txt").write_text("".join(f"{bad}\n" for _, bad, _ in PAIRS))
    (tmp_path / "p.tsv").write_text("x\ty\n" + "".join(f"{g}\t{b}\n" for g, b, _ in PAIRS))
    parallel = seqmlm("pairs", model, "--good", tmp_path / "g.txt", "--bad", tmp_path / "b.txt", "--json")
    named = seqmlm("pairs", model, tmp_path / "p.tsv", "--good", "x", "--bad", "y", "--json")
    assert parallel.code == named.code == 0, parallel.err + named.err
    assert parallel.json["margin"] == pytest.approx(named.json["margin"], abs=1e-5)
    (tmp_path / "b.txt").write_text("one\n")
    short = seqmlm("pairs", model, "--good", tmp_path / "g.txt", "--bad", tmp_path / "b.txt")
    short.refused(3, "b.txt: the file ends before line 2")
    (tmp_path / "b.txt").write_text("one\n \nthree\n")
    blank = seqmlm("pairs", model, "--good", tmp_path / "g.txt", "--bad", tmp_path / "b.txt")
    blank.refused(3, "b.txt:2: field 'bad': no text")


def test_a_row_that_is_no_pair_costs_itself(seqmlm: Run, model: Path, tmp_path: Path) -> None:
    table, lines, sentences = tmp_path / "p.csv", tmp_path / "p.jsonl", tmp_path / "sentences.tsv"
    table.write_text("good,bad\na dog,dog a\n,a dog\na dog,no dog,x\nthe cat,cat the\n")
    lines.write_text('{"good": "a dog", "bad": "dog a"}\n{"good": \n{"good": "a dog"}\n')
    rows = ("a.b.0.male.txt\tthe cat", "a.b.0.female.txt\tthe dog", "a.b.1.male.txt\ta dog")
    sentences.write_text("sentid\tsentence\n" + "".join(f"{row}\n" for row in rows))
    for path, bad, pairs in ((table, 2, 2), (lines, 2, 1), (sentences, 1, 1)):
        assert seqmlm("pairs", model, path).code == 3
        done = seqmlm("pairs", model, path, "--on-error", "skip", "--json")
        assert (done.code, done.json["bad"], done.json["pairs"]) == (0, bad, pairs), done.err


def test_crows_pairs_and_its_metric(seqmlm: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "crows.csv"
    path.write_text(
        ",sent_more,sent_less,stereo_antistereo,bias_type\n"
        "0,the cat sees a dog,the dogs sees a dog,stereo,age\n1,no cats,no cats,antistereo,age\n"
    )
    done = seqmlm("pairs", model, path, "--metric", "shared", "--json").ok()
    assert (done.json["pairs"], done.json["ties"]) == (2, 1)
    assert set(done.json["beside"]) == {"length"}


def test_a_domain_without_words_takes_strings_too(seqmlm: Run, tmp_path: Path) -> None:
    model, path = saved(protein_model(), tmp_path / "model"), tmp_path / "variants.csv"
    for mutated, code in (("GGVSE", 0), ("GGV5E", 3)):
        path.write_text(f"id,original,mutated\nA1G,AGVSE,{mutated}\n")
        assert seqmlm("pairs", model, path).code == code


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "nothing to compare"),
        (("--good", "g.txt"), 2, "nothing to compare"),
        (("pairs.txt",), 2, "rows are read from"),
        (("bad.csv",), 3, "no columns with known names"),
        (("hollow.csv",), 3, "hollow.csv:2: field 'good': no text"),
        (("good.csv", "--group", "UIDD"), 3, "field 'UIDD': no such field"),
        (("good.csv", "--metric", "max"), 2, "metric"),
    ],
)
def test_what_is_wrong_is_named(seqmlm, model, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("a,b\n1,2\n")
    Path("good.csv").write_text("good,bad\nthe cat,cat the\n")
    Path("hollow.csv").write_text("good,bad\n,cat the\n")
    for name in ("pairs.txt", "g.txt"):
        Path(name).write_text("x\n")
    seqmlm("pairs", model, *arguments).refused(code, message)
