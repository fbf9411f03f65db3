"""Run a job of a quarter of an hour in which something is killed every 30 s: `python -m
dataprep_assets_tests.tools.weather`.

It is a corpus whose shards are encoded by the slow reference engine, with artifacts in a bucket (moto). The kills hit
in turn a worker, the run with all its child processes, and with Ray also the second node with all its processes. A
killed run or node is restarted. A kill waits until files have been in progress for a quarter of the interval, because
otherwise a job would never end on a busy machine.

At the end the bytes in the bucket are compared with those of an undisturbed build. The number of files that were
started more than once is compared with the number in progress in killed processes: one in a worker, as many as there
are workers in a run or a node. The last line summarizes all of it.
"""

import argparse
import glob
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.execution.pool import ENGINES, PROCESSES, RAY
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.verify import read_receipts_below
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stores.connect import S3Address
from dataprep_assets.stream.token_shard import TOKEN_BINS
from dataprep_assets_tests.deploy.tiny_corpus import make_attributes, write_corpus
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.execution.ray_runs import RayCluster, run_ray_cluster
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.moto_server import run_moto_server
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.servers import find_descendants

MODULE = "dataprep_assets_tests.tools.weather"
FILES_A_SHARD, DOCUMENTS, WORKERS = 3, 18_000, 2


@dataclass(frozen=True)
class Job:
    """The corpus, and the location of its artifacts."""

    folder: Path
    shards: int
    engine: str
    server: str
    bucket: str

    def corpus(self, tokenizer_engine: str) -> CorpusDeclaration:
        """Return its declaration; the bytes of token bins do not depend on the engine."""
        declared = make_attributes(self.folder / "corpus", self.shards, views=[], run_on=self.engine)
        declared["tokenizer"] |= {"engine": tokenizer_engine}
        return CorpusDeclaration.model_validate(declared)

    def store(self, name: str) -> BucketArtifacts:
        """Return the bucket, with copies and staging below a folder of the job."""
        place = S3Address(
            bucket=self.bucket,
            prefix="weather",
            endpoint_url=self.server,
            region="us-east-1",
            access_key_id=KEY_ID,
            secret_access_key=SECRET,
        )
        return BucketArtifacts(self.folder / name, place, place.url)

    @property
    def words(self) -> list[str]:
        """The command that runs it."""
        own = [str(self.folder), str(self.shards), self.engine, self.server, self.bucket]
        return [sys.executable, "-m", MODULE, "--job", *own]


@dataclass
class Begun:
    """A counter of how often parts of shards are started: each start creates an empty file, mostly with another
    inode.
    """

    root: Path
    times: Counter[str] = field(default_factory=Counter)
    moments: list[float] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def seconds_after(self, moment: float) -> float:
        """Return how long ago a part was first started after this moment; 0 if none was."""
        return next((time.monotonic() - begun for begun in self.moments if begun > moment), 0.0)

    def __enter__(self) -> "Begun":
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.over.set()
        self._watcher.join()

    def _watch(self) -> None:
        """Watch until `over`; a part takes at least half a second, so that none is missed."""
        sizes: dict[tuple[str, int], int] = {}
        while not self.over.wait(0.05):
            # Do not use Path.glob, which raises an error if a folder is deleted while it is being read.
            for name in glob.glob(f"{glob.escape(str(self.root))}/*/token_bins/.staging/*/*.tokens"):
                with suppress(OSError):
                    now, part = os.stat(name), "/".join(name.split("/")[-2:])
                    if now.st_size < sizes.get((part, now.st_ino), now.st_size + 1):
                        self.times[part] += 1
                        self.moments.append(time.monotonic())
                    sizes[part, now.st_ino] = now.st_size


class Weather:
    """The kills of a job's processes in turn, and their restarts."""

    def __init__(self, job: Job, variables: Mapping[str, str], ray: RayCluster | None) -> None:
        self._job, self._ray = job, ray
        self._environment = {**os.environ, **variables}
        self._runs = itertools.count()
        self.killed: list[str] = []
        self.run = self._start()
        self._victims: Iterator[Callable[[], str | None]] = itertools.cycle(
            [self._worker, self._run, *([self._node] if ray is not None else [])]
        )

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self._job.folder / f"run{next(self._runs)}.log", "wb") as log:
            return subprocess.Popen(self._job.words, stdout=log, stderr=log, env=self._environment)

    def strike(self) -> None:
        """Kill the next existing process."""
        for victim in itertools.islice(self._victims, 3):
            if (what := victim()) is not None:
                self.killed.append(what)
                return

    def ended_well(self) -> bool:
        """Return whether the job is done; restart a run that ended otherwise."""
        if self.run.poll() is None:
            return False
        if self.run.returncode == 0:
            return True
        self.run = self._start()
        return False

    def end(self) -> None:
        """End the run if it is still active."""
        if self.run.poll() is None:
            self._run()

    def _run(self) -> str:
        for pid in [self.run.pid, *find_descendants(self.run.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.run.wait()
        return "run"

    def _worker(self) -> str | None:
        for pid in self._workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return "worker"
        return None

    def _workers(self) -> list[int]:
        if self._ray is not None:
            roots = [self._ray.second.process.pid, self._ray.head.process.pid]
            return [
                pid
                for root in roots
                for pid, title in find_descendants(root).items()
                if title.startswith("ray::train-")
            ]
        # Put the newest process first, because the fork server starts before its forks.
        return [pid for pid, title in find_descendants(self.run.pid).items() if "multiprocessing.forkserver" in title][
            ::-1
        ]

    def _node(self) -> str | None:
        assert self._ray is not None
        self._ray.second.lose()
        self._ray.second = self._ray.new_node()
        return "node"


def differences(job: Job) -> list[str]:
    """Return the shards of the bucket whose files differ from those of an undisturbed build on this machine, by the
    fast engine.
    """
    quiet = LocalArtifacts(job.folder / "quiet")
    declared = job.corpus("fastokens").model_copy(update={"run_on": PROCESSES})
    build_all(corpus_specs(declared), quiet)
    expected = {r.partition: r for _, r in read_receipts_below(quiet.root) if r.artifact == TOKEN_BINS}
    found = job.store("look").receipts([declared.artifact(TOKEN_BINS, partition) for partition in expected])
    different = []
    for (partition, wanted), receipt in zip(expected.items(), found, strict=True):
        files = [] if receipt is None else [(one.path, one.sha256) for one in receipt.files]
        if files != [(one.path, one.sha256) for one in wanted.files]:
            different.append(partition or "")
    return different


def seconds_a_file(job: Job) -> float:
    """Return the seconds that the reference engine takes for one file: the first shard of a corpus of one, without
    start-up.
    """
    specs = corpus_specs(job.corpus("tokenizers").model_copy(update={"run_on": PROCESSES}))
    store = LocalArtifacts(job.folder / "probe")
    build_all(specs, store)
    measured = [r.measured["cpu_seconds"] for _, r in read_receipts_below(store.root) if r.artifact == TOKEN_BINS]
    return sum(measured) / FILES_A_SHARD


def main(folder: Path, engine: str, minutes: float, every: float) -> int:
    """Run the job; return 1 if a byte differs."""
    # Treat a termination signal as an interrupt, because an interrupt also ends the child processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        server = stack.enter_context(run_moto_server())
        probe = Job(folder, 1, engine, server, new_bucket(server))
        write_corpus(folder / "corpus", FILES_A_SHARD, DOCUMENTS)
        seconds = seconds_a_file(probe)
        shards = max(4, round(minutes * 60 * WORKERS / seconds / FILES_A_SHARD))
        job = Job(folder, shards, engine, server, new_bucket(server))
        files = shards * FILES_A_SHARD
        write_corpus(folder / "corpus", files, DOCUMENTS)
        print(
            f"{files} files of {seconds:.1f} s in {shards} shards on {engine}, a death every {every:.0f} s", flush=True
        )
        ray = stack.enter_context(run_ray_cluster(folder)) if engine == RAY else None
        variables = {} if ray is None else ray.variables
        begun = stack.enter_context(Begun(folder / "machine"))
        started = time.monotonic()
        weather = Weather(job, variables, ray)
        stack.callback(weather.end)
        last_death, next_death = started, started + every
        while not weather.ended_well():
            if time.monotonic() >= next_death and begun.seconds_after(last_death) >= every / 4:
                weather.strike()
                last_death = time.monotonic()
                next_death = max(next_death, last_death) + every
            time.sleep(0.2)
        took = time.monotonic() - started
        different = differences(job)
        again, missed = sum(begun.times.values()) - len(begun.times), files - len(begun.times)
        if different:
            print(f"DIFFERENT: {different}")
        deaths = ", ".join(f"{count} {kind}" for kind, count in Counter(weather.killed).items())
        held = sum(1 if kind == "worker" else WORKERS for kind in weather.killed)
        print(
            f"engine {engine}; {took / 60:.1f} minutes; {files} files; {shards} shards; "
            f"{len(weather.killed)} deaths ({deaths}); files begun more than once: {again}, of {held} "
            f"that were at work in what died (not seen: {missed}); "
            f"same bytes: {'no' if different else 'yes'}"
        )
        return int(bool(different))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=ENGINES, default=PROCESSES)
    parser.add_argument("--minutes", type=float, default=15, help="of work, on two CPUs and undisturbed")
    parser.add_argument("--every", type=float, default=30, help="seconds between two deaths")
    parser.add_argument("--folder", type=Path, help="where everything is kept; default: a temporary one")
    parser.add_argument("--job", nargs=5, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    asked = _arguments()
    if asked.job:
        where, count, *names = asked.job
        own = Job(Path(where), int(count), *names)
        build_all(corpus_specs(own.corpus("tokenizers")), own.store("machine"), workers=WORKERS)
        sys.exit(0)
    with tempfile.TemporaryDirectory(prefix="weather") as temporary:
        sys.exit(main((asked.folder or Path(temporary)).resolve(), asked.engine, asked.minutes, asked.every))
