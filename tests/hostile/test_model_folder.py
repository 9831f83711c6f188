"""Model folders that try to run code, and damaged ones: refused in a sentence; nothing on disk changes."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fork_server import ForkServer, Run
from safetensors.numpy import load_file, save_file

from seqmlm.inference.model_folder import Card, seal
from tests.hostile.exploits import EXPLOITS

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def exploits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folders of all exploits, and which of them came to life where they were let to."""
    base = tmp_path_factory.mktemp("exploits")
    done = subprocess.run(
        [sys.executable, HERE / "exploits.py", base], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return base, json.loads(done.stdout)


@pytest.fixture
def model(exploits: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of the harmless folder."""
    return Path(shutil.copytree(exploits[0] / "plain", tmp_path / "model"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat\na dog sat\n")
    return path


def contents(folder: Path) -> dict[str, Any]:
    """All there is in a folder, links not followed."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if not path.is_dir()
    }


def test_the_exploits_are_live(exploits: tuple[Path, dict[str, Any]]) -> None:
    live = exploits[1]["live"]
    assert len(live) >= 9
    assert all(live.values()), live


def test_the_harmless_folder_is_scored(seqmlm: Run, model: Path, text: Path) -> None:
    done = seqmlm("score", model, text, "--set", "domain=text").ok()
    assert len(done.out.splitlines()) == 2


@pytest.mark.parametrize("name", EXPLOITS)
def test_nothing_runs(seqmlm: Run, exploits: tuple[Path, dict[str, Any]], text: Path, name: str) -> None:
    base, said = exploits
    before = contents(base)
    domain = () if (base / name / "seqmlm.json").exists() else ("--set", "domain=text")
    done = seqmlm("score", base / name, text, *domain)
    assert done.code == said["expected"][name], done.err
    assert "Traceback" not in done.err
    if done.code:
        assert done.out == ""
        [message] = [line for line in done.err.splitlines() if line.startswith("error: ")]
        assert str(base / name) in message
        assert ";" in message or ":" in message.removeprefix("error: ")
    assert not (base / "canaries" / name).exists()
    assert contents(base) == before


@pytest.mark.parametrize("name", ["config_code", "tokenizer_code"])
def test_no_answer_is_taken_from_the_data(
    exploits: tuple[Path, dict[str, Any]], tmp_path: Path, forks: ForkServer, name: str
) -> None:
    """transformers would ask whether to run the code, and read the answer where the data come from."""
    base, _ = exploits
    words = ("score", base / name, "-", "--set", "domain=text")
    done = forks.run(*words, stdin="y\ny\nyes\n", environment={"SEQMLM_HOME": str(tmp_path)})
    assert done.refused(4, "auto_map").out == ""
    assert not (base / "canaries" / name).exists()


@pytest.mark.parametrize("command", ["calibrate", "train", "export"])
@pytest.mark.parametrize("name", ["config_code", "tokenizer_code", "disguised_pickle"])
def test_nor_by_other_commands(
    seqmlm: Run, exploits: tuple[Path, Any], text: Path, tmp_path: Path, command: str, name: str
) -> None:
    folder = exploits[0] / name
    given = {
        "calibrate": ("calibrate", folder, text, "--set", "domain=text"),
        "train": ("train", "--domain", "text", "--init", folder, text, "--max-steps", 1),
        "export": ("models", "export", folder, "--out", tmp_path / "out"),
    }[command]
    done = seqmlm(*given)
    assert done.code == (0 if command == "export" else 4), done.err  # a copy runs nothing
    assert "Traceback" not in done.err
    assert not (exploits[0] / "canaries" / name).exists()
    assert not list((tmp_path / "out").glob("*.py"))


# Damage


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def header(path: Path, length: int, data: bytes = b"{}") -> None:
    path.write_bytes(struct.pack("<Q", length) + data)


def index(model: Path, weights: str) -> None:
    """An index in place of the weights."""
    (model / WEIGHTS).unlink()
    (model / "model.safetensors.index.json").write_text(f'{{"weight_map": {weights}}}')


DEEP = "[" * 100_000 + "]" * 100_000
CONFIG, WEIGHTS = "config.json", "model.safetensors"

OURS = {"domain": "text", "unit": "word", "tokenizer": "huggingface.v1", "probability": "full"}
ENDLESS = Card(max_length=1e30, **OURS)  # type: ignore[arg-type]

DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a billion layers": lambda m: rewrite(m / CONFIG, num_hidden_layers=10**9),
    "no number of layers": lambda m: rewrite(m / CONFIG, num_hidden_layers="many"),
    "a huge vocabulary": lambda m: rewrite(m / CONFIG, vocab_size=10**12),
    "a vocabulary that overflows": lambda m: rewrite(m / CONFIG, vocab_size=10**30),
    "a huge width": lambda m: rewrite(m / CONFIG, hidden_size=10**9),
    "a huge inner width": lambda m: rewrite(m / CONFIG, intermediate_size=10**12),
    "huge positions": lambda m: rewrite(m / CONFIG, max_position_embeddings=10**12),
    "another width": lambda m: rewrite(m / CONFIG, hidden_size=32),
    "no heads": lambda m: rewrite(m / CONFIG, num_attention_heads=0),
    "an unknown activation": lambda m: rewrite(m / CONFIG, hidden_act="__import__('os')"),
    "a padding id outside": lambda m: rewrite(m / CONFIG, pad_token_id=10**6),
    "another architecture": lambda m: rewrite(m / CONFIG, model_type="modernbert"),
    "a list as architecture": lambda m: rewrite(m / CONFIG, model_type=["bert"]),
    "a list as config": lambda m: (m / CONFIG).write_text("[1]"),
    "null as config": lambda m: (m / CONFIG).write_text("null"),
    "a deep config": lambda m: (m / CONFIG).write_text(DEEP),
    "a huge number": lambda m: (m / CONFIG).write_text(
        '{"model_type": "bert", "vocab_size": 1%s}' % ("0" * 9999)
    ),
    "NaN in the config": lambda m: rewrite(m / CONFIG, layer_norm_eps=float("nan")),
    "a config in UTF-16": lambda m: (m / CONFIG).write_text((m / CONFIG).read_text(), encoding="utf-16"),
    "a config of NULs": lambda m: (m / CONFIG).write_bytes(b"\0" * 4096),
    "a config of 8 MiB": lambda m: (m / CONFIG).write_text(json.dumps({"x": "y" * (8 << 20)})),
    "a config cut short": lambda m: (m / CONFIG).write_bytes((m / CONFIG).read_bytes()[:-40]),
    "a deep tokenizer": lambda m: (m / "tokenizer.json").write_text(f'{{"model": {DEEP}}}'),
    "a tokenizer cut short": lambda m: (m / "tokenizer.json").write_bytes(b'{"version": "1.0", "trunc'),
    "a deep tokenizer config": lambda m: (m / "tokenizer_config.json").write_text(f'{{"x": {DEEP}}}'),
    "deep special tokens": lambda m: (m / "special_tokens_map.json").write_text(f'{{"x": {DEEP}}}'),
    "no mask token": lambda m: rewrite(m / "tokenizer_config.json", mask_token=None),
    "no tokenizer": lambda m: [(m / "tokenizer.json").unlink(), (m / "tokenizer_config.json").unlink()],
    "a deep index": lambda m: index(m, DEEP),
    "an index of nothing": lambda m: index(m, "5"),
    "an index of missing files": lambda m: index(m, '{"a": "b.safetensors"}'),
    "weights cut short": lambda m: (m / WEIGHTS).write_bytes((m / WEIGHTS).read_bytes()[:-100]),
    "weights cut in the header": lambda m: (m / WEIGHTS).write_bytes((m / WEIGHTS).read_bytes()[:200]),
    "no weights": lambda m: (m / WEIGHTS).write_bytes(b""),
    "a header of 2^60 bytes": lambda m: header(m / WEIGHTS, 1 << 60),
    "a header of 100 MB": lambda m: header(m / WEIGHTS, 100_000_000, b" " * 100_000_000),
    "a deep header": lambda m: header(m / WEIGHTS, 200_005, b'{"a":' + DEEP.encode()[:200_000]),
    "offsets outside": lambda m: header(
        m / WEIGHTS, 64, b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,99999999]}}'.ljust(64)
    ),
    "a weight that is NaN": lambda m: poisoned(m / WEIGHTS, float("nan")),
    "a weight that is infinite": lambda m: poisoned(m / WEIGHTS, float("inf")),
    "weights that overflow": lambda m: poisoned(m / WEIGHTS, 3e38),
    "a folder as weights": lambda m: [(m / WEIGHTS).unlink(), (m / WEIGHTS).mkdir()],
    "a pipe as config": lambda m: [(m / CONFIG).unlink(), os.mkfifo(m / CONFIG)],
    "a pipe as tokenizer": lambda m: [(m / "tokenizer.json").unlink(), os.mkfifo(m / "tokenizer.json")],
    "a deep card": lambda m: (m / "seqmlm.json").write_text(DEEP),
    "a list as card": lambda m: (m / "seqmlm.json").write_text("[]"),
    "a binary card": lambda m: (m / "seqmlm.json").write_bytes(bytes(range(256))),
    "a card of an infinite length": lambda m: seal(m, ENDLESS),
}


def poisoned(path: Path, value: float) -> None:
    tensors = {name: tensor.copy() for name, tensor in load_file(path).items()}
    tensors["bert.encoder.layer.0.output.dense.weight"][:, 0] = value
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_said(seqmlm: Run, model: Path, text: Path, name: str) -> None:
    DAMAGE[name](model)
    domain = () if (model / "seqmlm.json").exists() else ("--set", "domain=text")
    done = seqmlm("score", model, text, *domain)
    wrong_request = name in ("no mask token",)
    assert done.code == (2 if wrong_request else 4), (done.code, done.err)
    assert done.out == ""
    assert "Traceback" not in done.err
    [message] = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert str(model) in message or wrong_request
    assert len(message) < 1000


def test_bombs_take_little_memory(exploits: tuple[Path, Any], forks: ForkServer, tmp_path: Path) -> None:
    """A process with 2 GiB beyond what it needs for the harmless folder refuses each of them."""
    for number, name in enumerate(DAMAGE):
        if "pipe" not in name:
            shutil.copytree(exploits[0] / "plain", tmp_path / f"bomb{number}")
            DAMAGE[name](tmp_path / f"bomb{number}")
    script = tmp_path / "script.py"
    script.write_text("""
import resource, sys
from pathlib import Path
from seqmlm.errors import SeqmlmError
from seqmlm.inference import model_folder
base, plain = Path(sys.argv[1]), sys.argv[2]
model_folder.load(plain, domain="text")
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), used + (2 << 30)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loaded = []
for folder in sorted(base.glob("bomb*")):
    try:
        model_folder.load(folder, domain="text")
        loaded.append(folder.name)
    except SeqmlmError:
        pass
print(len(loaded), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
""")
    done = forks.run(tmp_path, exploits[0] / "plain", script=script).ok()
    loaded, mebibytes = map(int, done.out.split()[-2:])
    assert loaded == 1, "only the weights that overflow are found when they are asked"
    assert mebibytes < 400
