"""Two machines publish one artifact in a bucket, and the first is stopped or killed before each of its requests.

The first machine is a separate process. It stops before its n-th operation on the store, for every n; then the second
machine does all its work in this process; then the first continues or is killed. The bucket is on a real server.
"""

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import IntegrityError, TransferError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.stores.connect import StoreAddress
from dataprep_assets.stores.store import Store
from dataprep_assets_tests.fakes.buckets import PART_BYTES, new_bucket, new_store
from dataprep_assets_tests.fakes.fault_proxy import FaultProxy
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.messages import raises

pytestmark = pytest.mark.slow

BEFORE = {"a.bin": b"before" * 100, "same.bin": b"s" * 50, "left.bin": b"l"}
ONE = {"a.bin": b"one" * 100, "same.bin": b"s" * 50, "one.bin": b"1" * 20}
TWO = {"a.bin": b"two" * 100, "same.bin": b"s" * 50, "two.bin": b"2" * 20}
WRITES = ("put", "upload", "compose", "copy", "delete")
READS = ("head", "list", "read")
PROCESSES = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Step:
    """A stop at the n-th operation (from 1): it signals `reached` and waits for permission to continue."""

    operations: tuple[str, ...]
    at: int


@dataclass(frozen=True)
class SteppingPlace:
    """A location that opens its own store and counts the operations."""

    place: StoreAddress
    reached: Callable[[str], None]

    def __call__(self) -> Store:
        store = self.place()
        for name in (*WRITES, *READS):
            setattr(store, name, partial(self._pass, name, getattr(store, name)))
        return store

    def _pass(self, name: str, do: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.reached(name)
        return do(*arguments, **named)


class Stepper:
    """A hashable hook, because stores are opened once per location."""

    def __init__(self, step: Step, talk: Connection) -> None:
        self._step, self._talk, self._seen = step, talk, 0

    def __call__(self, name: str) -> None:
        if name in self._step.operations:
            self._seen += 1
            if self._seen == self._step.at:
                self._talk.send("stopped")
                self._talk.recv()


def build(store: BucketArtifacts, artifact: Artifact, files: dict[str, bytes], key: str) -> None:
    def write(staged: Path) -> WrittenFiles:
        for name, data in files.items():
            (staged / name).write_bytes(data)
        return WrittenFiles(inputs={})

    ensure_built(Recipe(artifact=artifact, key=key), store, write)


def run_first_machine(
    place: StoreAddress, cache: Path, artifact: Artifact, step: Step, talk: Connection, variables: dict[str, str]
) -> None:
    os.environ.update(variables)
    store = BucketArtifacts(cache, SteppingPlace(place, Stepper(step, talk)), place.url)
    try:
        build(store, artifact, ONE, "one")
    except IntegrityError as error:
        talk.send(str(error))
    else:
        talk.send("done")


@contextmanager
def start_first_machine(
    place: StoreAddress, cache: Path, artifact: Artifact, step: Step
) -> Iterator[tuple[Any, Connection]]:
    """Yield the process of the first machine, and a function that returns that it stopped, or how it ended."""
    here, there = PROCESSES.Pipe()
    variables = {name: value for name, value in os.environ.items() if name == "STORAGE_EMULATOR_HOST"}
    process = PROCESSES.Process(target=run_first_machine, args=(place, cache, artifact, step, there, variables))
    process.start()
    there.close()
    try:
        yield process, here
    finally:
        process.kill()
        process.join()
        here.close()


@pytest.fixture(scope="module", autouse=True)
def preloaded() -> None:
    PROCESSES.set_forkserver_preload([__name__, "dataprep_assets_tests.fakes.warm_clients", "google.cloud.storage"])


@dataclass(frozen=True)
class Look:
    """One artifact of a location as other machines see it, with a folder for their caches.

    The store is opened once per test.
    """

    place: StoreAddress
    store: Store
    artifact: Artifact
    folder: Path

    def machine(self, name: str) -> BucketArtifacts:
        return BucketArtifacts(self.folder / name, self.place, self.place.url)

    def read_intact(self) -> tuple[str, dict[str, bytes]] | None:
        """Return the receipt's key and the files of a reader who follows it; fail if they differ from its list."""
        reader = self.machine("reader")
        if reader.receipt(self.artifact) is None:
            return None
        handle = ArtifactHandle.from_store(reader, self.artifact)
        found = {record.path: handle.read(record.path) for record in handle.files}
        for record in handle.files:
            assert hashlib.sha256(found[record.path]).hexdigest() == record.sha256
        return handle.receipt.key, found

    def under_final_keys(self) -> dict[str, bytes]:
        below = f"{self.artifact}/"
        keys = [info.key for info in self.store.list(below) if f"/{STAGING}/" not in info.key]
        return {key.removeprefix(below): b"".join(self.store.read(key)) for key in keys if not key.endswith(NAME)}

    def check_settled(self, key: str, files: dict[str, bytes]) -> None:
        """Assert that the next check leaves exactly these files and no others."""
        assert self.machine("third").find_current(self.artifact, key) is not None
        assert self.under_final_keys() == files
        assert [info.key for info in self.store.list(f"{self.artifact}/{STAGING}/")] == []


def make_looks(
    place: StoreAddress, folder: Path, replacing: bool, points: range = range(1, 200)
) -> Iterator[tuple[int, Look]]:
    """Yield a separate artifact for each stop of the first machine; with `replacing`, it already exists."""
    store = place()
    for at in points:
        artifact = Artifact(dataset="ds", name="thing", partition=f"p-{at}")
        look = Look(place, store, artifact, folder / str(at))
        if replacing:
            build(look.machine("before"), artifact, BEFORE, "before")
        yield at, look
    raise AssertionError("never finished")


def try_to_publish(store: BucketArtifacts, artifact: Artifact, files: dict[str, bytes], key: str) -> bool:
    """Return whether the artifact was published; the only accepted refusal is a simultaneous publication."""
    try:
        build(store, artifact, files, key)
    except IntegrityError as error:
        if "at the same time" not in str(error):
            raise
        return False
    return True


CASES = [
    pytest.param("gcs", False, ONE, WRITES, id="gcs-first-same"),
    pytest.param("gcs", True, TWO, WRITES, id="gcs-replacement-different"),
    pytest.param("moto", True, TWO, WRITES, id="moto-replacement-different"),
    # Stops before reads and a first publication are tested in a folder, because clients of servers take ten times as
    # long, and the publication sends the same operations to every store.
    pytest.param("folder", False, TWO, WRITES, id="folder-first-different"),
    pytest.param("folder", True, TWO, (*WRITES, *READS), id="folder-replacement-different"),
]


@pytest.mark.parametrize(("kind", "replacing", "other", "operations"), CASES)
def test_a_machine_may_stop_anywhere_while_another_publishes(
    kind: str, replacing: bool, other: dict[str, bytes], operations: tuple[str, ...], servers: Places, tmp_path: Path
) -> None:
    outcomes = set()
    place, key = servers.new(kind), "one" if other is ONE else "two"
    for at, look in make_looks(place, tmp_path, replacing):
        with start_first_machine(place, look.folder / "one", look.artifact, Step(operations, at)) as (_, talk):
            if talk.recv() != "stopped":
                assert at > 8, "too few points"
                break
            second = try_to_publish(look.machine("two"), look.artifact, other, key)
            between = look.read_intact()
            assert between in ([(key, other)] if second else [("one", ONE), None])
            talk.send("go on")
            said = talk.recv()
        first = said == "done"
        assert first or "at the same time" in said
        assert first or second
        after = look.read_intact()
        assert after in [("one", ONE)] * first + [(key, other)] * second
        assert look.under_final_keys() == after[1]
        look.check_settled(*after)
        outcomes.add((first, second))
    if other is TWO:
        assert (False, True) in outcomes, "no interleaving was a race; the test shows nothing"
    else:
        assert outcomes == {(True, True)}


@pytest.mark.parametrize(
    ("kind", "replacing", "other"),
    [
        pytest.param("gcs", False, ONE, id="gcs-first-same"),
        pytest.param("moto", True, TWO, id="moto-replacement-different"),
    ],
)
def test_a_machine_that_is_killed_anywhere_does_not_block_others(
    kind: str, replacing: bool, other: dict[str, bytes], servers: Places, tmp_path: Path
) -> None:
    place, key = servers.new(kind), "one" if other is ONE else "two"
    # Kill only before every second write, because the test above stops the machine before every write, and a stopped
    # machine leaves the same state in the bucket as a killed one.
    for at, look in make_looks(place, tmp_path, replacing, range(2, 200, 2)):
        with start_first_machine(place, look.folder / "one", look.artifact, Step(WRITES, at)) as (process, talk):
            if talk.recv() != "stopped":
                assert at > 8, "too few points"
                break
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        assert look.read_intact() in (("one", ONE), ("before", BEFORE) if replacing else None)
        build(look.machine("two"), look.artifact, other, key)
        assert look.read_intact() == (key, other)
        look.check_settled(key, other)


@dataclass(frozen=True)
class PartedPlace:
    """A bucket that copies objects over 5 MiB in parts, as other buckets do over 5 GiB."""

    endpoint: str
    bucket: str

    def __call__(self) -> Store:
        return new_store(self.endpoint, self.bucket, copy_bytes=PART_BYTES)


def test_a_multipart_copy_of_an_older_replacement_never_completes(moto: str, tmp_path: Path) -> None:
    first, second = ({"big.bin": letter * (PART_BYTES + 1000)} for letter in (b"1", b"2"))
    place = PartedPlace(moto, new_bucket(moto))

    def machine(name: str, endpoint: str) -> BucketArtifacts:
        return BucketArtifacts(tmp_path / name, replace(place, endpoint=endpoint), f"s3://{place.bucket}")

    artifact = Artifact(dataset="ds", name="thing")
    build(machine("before", moto), artifact, BEFORE, "before")
    overtaken: list[str] = []

    def overtake(operation: str, target: str) -> None:
        final = target.partition("?")[0].endswith(f"{artifact}/big.bin")
        if operation == "complete" and final and not overtaken:
            overtaken.append(target)
            build(machine("two", moto), artifact, second, "two")

    # moto answers the completion of an aborted upload with status 500. The client retries the request and then gives
    # up.
    with FaultProxy(moto, before=overtake) as proxy, raises(TransferError, "big.bin"):
        build(machine("one", proxy.url), artifact, first, "one")
    assert len(overtaken) == 1
    reader = machine("reader", moto)
    assert reader.require(artifact).key == "two"
    assert (reader.local(artifact) / "big.bin").read_bytes() == second["big.bin"]
