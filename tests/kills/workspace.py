"""Kills commands that share a workspace, and servers under them, and checks that nothing is lost or doubled.

    python workspace.py FOLDER two-trainings [training-and-scoring ...] --kills 20 --seed 0

Scenarios:

* two-trainings: two trainings of different names at once; either is killed at a random moment, both go on;
* training-and-scoring: the same with a training and a scoring that logs a run with a report;
* two-scorings: two scorings with different outputs;
* tracker: a real `mlflow server` is killed in the middle of a training and started again, or never again;
* database: PostgreSQL, which holds runs and registry, is restarted in the middle of a training.

At the end every command has come to its end; models, losses and rows are what one undisturbed run gives, to
the byte; the registry has each model once; MLflow has every point of every metric once.

Prints one JSON object: the number of kills of each scenario, and a sentence for each thing that went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", MLFLOW_DISABLE_TELEMETRY="true")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from forked_cli import Ended, Started, command, import_what, no_threads, start
from formats import PROTEINS

ROOT = Path(__file__).resolve().parents[2]
STEPS = 8
PATIENCE = 240  # seconds, with a busy machine
TINY = (
    *("--domain", "protein", "--size", "tiny", "--max-steps", STEPS, "--json"),
    *("--set", "train.tokens_per_batch=1024"),
    *("--set", "model.overrides={num_hidden_layers: 1, hidden_size: 16, intermediate_size: 32}"),
    *("--set", "train.evaluation_records=10", "--set", "train.checkpoint_every_steps=2"),
    *("--set", "train.evaluate_every=2"),
)


@dataclass
class Job:
    """A command that is run until it has come to its end, however often it is killed.

    Args:
        name: of it.
        first, again: words of the command, and of the command that goes on with it.
        begun: a file that is there once it can be gone on with.
    """

    name: str
    first: tuple[object, ...]
    again: tuple[object, ...]
    begun: Path
    process: Started | None = None
    done: Ended | None = None

    def start(self, streams: Path, environment: Mapping[str, str]) -> None:
        words = self.again if self.begun.exists() else self.first

        def work() -> None:
            os.environ |= environment
            command(*words)()

        self.process = start(work, streams / self.name, seconds=PATIENCE)


@dataclass
class Campaign:
    root: Path
    random: random.Random
    kills: int = 0
    problems: list[str] = field(default_factory=list)
    rounds: int = 0

    def prepare(self) -> None:
        """Data, an empty tracker, and everything imported: one undisturbed training and scoring."""
        self.root.mkdir(parents=True)
        self.data = self.root / "p.fasta"
        self.data.write_text("".join(f">p{n}\n{letters}\n" for n, letters in enumerate(PROTEINS)))
        self.many = self.root / "many.fasta"
        rng = random.Random(0)
        lines = (f">m{n}\n{''.join(rng.choices('ACDEFGHIKLMNPQRSTVWY', k=30))}\n" for n in range(400))
        self.many.write_text("".join(lines))
        home = self.root / "undisturbed"
        home.mkdir()

        def everything() -> None:
            os.environ["SEQMLM_HOME"] = str(home)
            import seqmlm.scoring.score
            from seqmlm.tracking import Tracker
            from seqmlm.workspace import Workspace

            Tracker(Workspace.locate()).ensure()
            shutil.copyfile(home / "mlflow.db", self.root / "empty.db")
            with contextlib.suppress(SystemExit):
                command("train", self.data, "--name", "base", *TINY)()
            seqmlm.scoring.score.__doc__  # noqa: B018 - imported for what it brings

        import_what(everything, self.root / "streams")
        self.model = home / "runs" / "base" / "model"
        if not self.model.is_dir():
            raise RuntimeError((self.root / "streams" / "stderr").read_text())
        began = time.monotonic()
        jobs, home = [self.training("a"), self.scoring("x")], self.home()
        self.begin(home, jobs)
        self.await_all(home, jobs)
        self.expected = self.results(home, jobs)
        self.duration = time.monotonic() - began

    def home(self) -> Path:
        """A workspace whose MLflow database is there already."""
        self.rounds += 1
        home = self.root / f"home-{self.rounds:04d}"
        home.mkdir()
        shutil.copyfile(self.root / "empty.db", home / "mlflow.db")
        return home

    def training(self, name: str) -> Job:
        return Job(
            name,
            ("train", self.data, "--name", name, *TINY),
            ("train", "--resume", name, "--json"),
            Path("runs") / name / "config.yaml",  # from here on the name is taken
        )

    def scoring(self, name: str) -> Job:
        aside = ("--on-error", "quarantine")
        words = ("score", self.model, self.many, "--mode", "partition:4", "--json", *aside)
        out = Path(f"{name}.jsonl")
        return Job(name, (*words, "--out", out), (*words, "--out", out, "--resume"), out)

    def begin(self, home: Path, jobs: list[Job], environment: Mapping[str, str] | None = None) -> None:
        for job in jobs:
            if job.done is None and job.process is None:
                own = {"SEQMLM_HOME": str(home), **(environment or {})}
                placed = Job(job.name, _in(home, job.first), _in(home, job.again), home / job.begun)
                placed.start(home / "streams", own)
                job.process = placed.process

    def await_all(self, home: Path, jobs: list[Job]) -> None:
        for job in jobs:
            if job.process is not None:
                job.done, job.process = job.process.wait(), None
                if job.done.code:
                    self.problems.append(
                        f"{home.name}: {job.name} ended with {job.done.code}: {job.done.err[-600:]}"
                    )

    def run_once(self, home: Path, environment: Mapping[str, str], *words: str) -> None:
        """A command that nobody disturbs."""
        job = Job(words[-1], words, words, Path("none"))
        self.begin(home, [job], environment)
        self.await_all(home, [job])

    def disturb(self, home: Path, jobs: list[Job], most: int) -> None:
        """Start all, kill some at random moments, begin again, up to `most` kills; then let all finish."""
        killed = 0
        while killed < most:
            self.begin(home, jobs)
            for job in self.random.sample(jobs, len(jobs)):
                if job.process is None or killed == most:
                    continue
                time.sleep(self.random.uniform(0.0, self.duration / 2))
                with contextlib.suppress(ProcessLookupError):
                    job.process.kill()
                done, job.process = job.process.wait(), None
                if done.code == -signal.SIGKILL:
                    killed += 1
                    self.kills += 1
                elif done.code == 0:
                    job.done = done
                else:
                    self.problems.append(f"{home.name}: {job.name} ended with {done.code}: {done.err[-600:]}")
            if all(job.done is not None for job in jobs):
                break
        self.begin(home, jobs)
        self.await_all(home, jobs)

    def results(self, home: Path, jobs: list[Job]) -> dict[str, Any]:
        """What is equal, whatever happened: weights, losses, points in MLflow, rows."""
        found: dict[str, Any] = {}
        for job in jobs:
            kind = job.first[0]
            if kind == "score":
                out = home / f"{job.name}.jsonl"
                found["rows"] = out.read_bytes() if out.exists() else None
                found["left"] = sorted(p.name for p in home.glob(f"{job.name}.jsonl?*"))
                continue
            folder = home / "runs" / job.name
            lines = {}
            if (folder / "metrics.jsonl").exists():
                for text in (folder / "metrics.jsonl").read_text().splitlines():
                    line = json.loads(text)
                    lines.setdefault(line["step"], {}).update(
                        {key: line[key] for key in ("train/loss", "eval/loss") if key in line}
                    )
            weights = folder / "model" / "model.safetensors"
            found["weights"] = weights.read_bytes() if weights.exists() else None
            found["losses"] = lines
        return found

    def check(
        self, home: Path, jobs: list[Job], when: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Compare with an undisturbed run, and look into registry and tracker."""
        for job in jobs:
            for key, value in self.results(home, [job]).items():
                if value != self.expected[key]:
                    shown = value if key in ("losses", "left") else "other bytes"
                    self.problems.append(f"{home.name}, {when}: {key} of {job.name}: {shown}")
        trainings = [job.name for job in jobs if job.first[0] == "train"]
        if trainings:
            told = self.in_child(home, _stored, environment)
            for name in trainings:
                for problem in _doubts(name, told):
                    self.problems.append(f"{home.name}, {when}: {problem}")

    def in_child(self, home: Path, ask: Any, environment: Mapping[str, str] | None = None) -> Any:
        """What a function returns in a process of its own, in this workspace."""

        def work() -> None:
            os.environ |= {"SEQMLM_HOME": str(home), **(environment or {})}
            print("\n" + json.dumps(ask()))

        done = start(work, home / "streams" / "asked", seconds=PATIENCE).wait()
        if done.code:
            raise RuntimeError(done.err)
        return json.loads(done.out.splitlines()[-1])

    def is_late(self, home: Path, job: Job, environment: Mapping[str, str] | None = None) -> bool:
        """Whether MLflow lacks parts of a training, which its last words must have said.

        It is silent where a kill came when MLflow had everything already: the status is sent last.
        """
        assert job.done is not None
        missing = list(_doubts(job.name, self.in_child(home, _stored, environment)))
        words = job.done.err.lower()
        if missing and ("mlflow" not in words or "sync" not in words):
            problem = f"{home.name}: nothing is said of the tracker ({missing}): {job.done.err[-600:]}"
            self.problems.append(problem)
        return bool(missing)

    # The scenarios

    def two(self, kinds: tuple[str, str], kills: int) -> None:
        """Two commands at once, killed again and again."""
        while self.kills < kills:
            make = {"training": self.training, "scoring": self.scoring}
            jobs = [make[kind](f"{kind}-{n}") for n, kind in enumerate(kinds)]
            home = self.home()
            self.disturb(home, jobs, min(6, kills - self.kills))
            trainings = [job for job in jobs if job.first[0] == "train"]
            late = [job.name for job in trainings if self.is_late(home, job)]
            if late:  # MLflow's database was locked for long
                self.run_once(home, {}, "runs", "sync")
            self.check(home, jobs, f"after {self.kills} kills")
            shutil.rmtree(home)

    def tracker(self, kills: int) -> None:
        """An MLflow server that is killed during a training, and started again or not."""
        home = self.home()
        server = Server(home)
        environment = {"MLFLOW_TRACKING_URI": server.address}
        for number in range(kills):
            again = number % 2 == 0
            job = self.training(f"a{number}")
            self.begin(home, [job], environment)
            time.sleep(self.random.uniform(0.3, 0.8) * self.duration)
            server.kill()
            self.kills += 1
            if again:
                time.sleep(self.random.uniform(0.0, 0.5))
                server.start()
            self.await_all(home, [job])
            assert job.done is not None
            if not again:
                if "Traceback" in job.done.err:
                    self.problems.append(f"{home.name}: {job.done.err[-600:]}")
                server.start()
                self.is_late(home, job, environment)
            self.run_once(home, environment, "runs", "sync")
            self.check(home, [job], "started again" if again else "never started again", environment)
        server.kill()

    def database(self, kills: int, url: str) -> None:
        """PostgreSQL restarted during a training."""
        from sqlalchemy import create_engine, text

        base = create_engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
        for number in range(kills):
            name = f"seqmlm_kill_{os.getpid()}_{number}"
            with base.connect() as connection:
                connection.execute(text(f"CREATE DATABASE {name}"))
            own = url.rpartition("/")[0] + f"/{name}"
            environment = {"MLFLOW_TRACKING_URI": own, "SEQMLM_DATABASE_URL": own}
            home = self.home()
            self.run_once(home, environment, "db", "upgrade")
            self.in_child(home, _ensure, environment)
            job = self.training("a")
            self.begin(home, [job], environment)
            time.sleep(self.random.uniform(0.1, 1.0) * self.duration)
            base.dispose()
            subprocess.run([ROOT / ".ci" / "postgres", "restart"], check=True, capture_output=True)
            self.kills += 1
            self.await_all(home, [job])
            if "Traceback" in job.done.err:
                self.problems.append(f"{home.name}: {job.done.err[-600:]}")
            self.run_once(home, environment, "runs", "sync")
            self.check(home, [job], "restarted", environment)
            with base.connect() as connection:
                connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        base.dispose()


def _in(home: Path, words: tuple[object, ...]) -> tuple[object, ...]:
    """Relative paths of a command, below a workspace."""
    return tuple(home / word if isinstance(word, Path) and not word.is_absolute() else word for word in words)


def _ensure() -> None:
    from seqmlm.tracking import Tracker
    from seqmlm.workspace import Workspace

    Tracker(Workspace.locate()).ensure()


def _stored() -> dict[str, Any]:
    """What registry and tracker have: versions by model; status and points of each metric by run."""
    import mlflow

    from seqmlm.registry.store import Registry
    from seqmlm.workspace import Workspace

    home = Workspace.locate()
    with Registry(home) as registry:
        models = [[entry.name, entry.version] for entry in registry.models()]
    mlflow.set_tracking_uri(home.tracking_uri)
    client = mlflow.MlflowClient()
    runs = []
    for run in client.search_runs([one.experiment_id for one in client.search_experiments()]):
        points = {
            key: [[point.step, point.value] for point in client.get_metric_history(run.info.run_id, key)]
            for key in run.data.metrics
        }
        runs.append({"name": run.info.run_name, "status": run.info.status, "points": points})
    ours = {path.parent.name: path.read_text() for path in home.runs.glob("*/metrics.jsonl")}
    return {"models": models, "runs": runs, "metrics": ours}


def _doubts(name: str, told: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the stored side of a training."""
    versions = [version for model, version in told["models"] if model == name]
    if versions != [1]:
        yield f"{name} is in the registry as {versions}"
    runs = [run for run in told["runs"] if run["name"] == name]
    if len(runs) != 1:
        yield f"{len(runs)} runs of {name} in MLflow"
        return
    if runs[0]["status"] != "FINISHED":
        yield f"{name} is {runs[0]['status']} in MLflow"
    wanted = Counter(
        line["step"] for line in map(json.loads, told["metrics"][name].splitlines()) if "train/loss" in line
    )
    steps = Counter(step for step, _ in runs[0]["points"].get("train/loss", []))
    if steps != wanted or set(wanted) != set(range(1, STEPS + 1)):
        yield f"train/loss of {name} has steps {dict(steps)} in MLflow, {dict(wanted)} in its folder"
    evaluated = [step for step, _ in runs[0]["points"].get("eval/loss", [])]
    if not evaluated or max(evaluated) != STEPS:
        yield f"eval/loss of {name} has steps {evaluated} in MLflow"


class Server:
    """A real `mlflow server` on a port of its own, which can be killed and started again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        words = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", self.port),
            *("--backend-store-uri", f"sqlite:///{self.home / 'server.db'}", "--workers", 1),
            *("--artifacts-destination", self.home / "server-artifacts"),
        ]
        log = (self.home / "server.log").open("ab")
        self.process = subprocess.Popen(
            [str(word) for word in words],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.address}/health", timeout=5):
                return
            time.sleep(0.1)
        raise RuntimeError((self.home / "server.log").read_text()[-2000:])

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("scenarios", nargs="+")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    campaign = Campaign(arguments.folder.resolve() / "campaign", random.Random(arguments.seed))
    campaign.prepare()
    no_threads()
    began = time.monotonic()
    kinds = {
        "two-trainings": ("training", "training"),
        "training-and-scoring": ("training", "scoring"),
        "two-scorings": ("scoring", "scoring"),
    }
    kills = {}
    for scenario in arguments.scenarios:
        campaign.kills = 0
        if scenario == "tracker":
            # One server is started again and one is not; either takes seconds to start.
            campaign.tracker(min(max(arguments.kills, 2), 6))
        elif scenario == "database":
            campaign.database(arguments.kills, os.environ["SEQMLM_TEST_POSTGRES"])
        else:
            campaign.two(kinds[scenario], arguments.kills)
        kills[scenario] = campaign.kills
    result = {
        "kills": kills,
        "problems": campaign.problems,
        "undisturbed_seconds": round(campaign.duration, 2),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
