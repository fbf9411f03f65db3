"""Two machines at one artifact in a bucket: stopped or killed before each request, whatever the other does meanwhile.

The first is a process of its own. It stops before its n-th operation on the store, for every n; then the second does
all its work, in this process; then the first goes on, or is killed. The bucket is a real server.
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
    """Stops at the n-th of the operations (from 1): tells `reached`, then goes on when it is told to."""

    operations: tuple[str, ...]
    at: int


@dataclass(frozen=True)
class SteppingPlace:
    """Opens the place's own store, and counts what is asked of it."""

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
    """Hashable, because stores are opened once for each place."""

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


def first_machine(
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
def stepping(place: StoreAddress, cache: Path, artifact: Artifact, step: Step) -> Iterator[tuple[Any, Connection]]:
    """The process of the first machine, and what tells that it stopped, or how it ended."""
    here, there = PROCESSES.Pipe()
    variables = {name: value for name, value in os.environ.items() if name == "STORAGE_EMULATOR_HOST"}
    process = PROCESSES.Process(target=first_machine, args=(place, cache, artifact, step, there, variables))
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
    """One artifact of a place, as others see it, and a folder for their caches. The store is opened once a test."""

    place: StoreAddress
    store: Store
    artifact: Artifact
    folder: Path

    def machine(self, name: str) -> BucketArtifacts:
        return BucketArtifacts(self.folder / name, self.place, self.place.url)

    def intact(self) -> tuple[str, dict[str, bytes]] | None:
        """The receipt's key and what a reader gets who follows it; fails where that is not what it lists."""
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
        """The next look leaves exactly these files, and nothing beside them."""
        assert self.machine("third").find_current(self.artifact, key) is not None
        assert self.under_final_keys() == files
        assert [info.key for info in self.store.list(f"{self.artifact}/{STAGING}/")] == []


def looks(
    place: StoreAddress, folder: Path, replacing: bool, points: range = range(1, 200)
) -> Iterator[tuple[int, Look]]:
    """An artifact of its own for each point at which the first machine stops; with `replacing`, there already."""
    store = place()
    for at in points:
        artifact = Artifact(dataset="ds", name="thing", partition=f"p-{at}")
        look = Look(place, store, artifact, folder / str(at))
        if replacing:
            build(look.machine("before"), artifact, BEFORE, "before")
        yield at, look
    raise AssertionError("never finished")


def attempt(store: BucketArtifacts, artifact: Artifact, files: dict[str, bytes], key: str) -> bool:
    """Whether it was published; a rival that did so at the same time is the only excuse."""
    try:
        build(store, artifact, files, key)
    except IntegrityError as error:
        if "at the same time" not in str(error):
            raise
        return False
    return True


CASES = [
    pytest.param("gcs", False, ONE, WRITES, id="gcs-first-same"),
    pytest.param("gcs", True, TWO, (*WRITES, *READS), id="gcs-replacement-different"),
    pytest.param("moto", False, TWO, WRITES, id="moto-first-different"),
    pytest.param("moto", True, TWO, WRITES, id="moto-replacement-different"),
    pytest.param("folder", True, TWO, WRITES, id="folder-replacement-different"),
]


@pytest.mark.parametrize(("kind", "replacing", "other", "operations"), CASES)
def test_a_machine_that_stops_anywhere_while_another_publishes(
    kind: str, replacing: bool, other: dict[str, bytes], operations: tuple[str, ...], servers: Places, tmp_path: Path
) -> None:
    outcomes = set()
    place, key = servers.new(kind), "one" if other is ONE else "two"
    for at, look in looks(place, tmp_path, replacing):
        with stepping(place, look.folder / "one", look.artifact, Step(operations, at)) as (_, talk):
            if talk.recv() != "stopped":
                assert at > 8, "too few points"
                break
            second = attempt(look.machine("two"), look.artifact, other, key)
            between = look.intact()
            assert between in ([(key, other)] if second else [("one", ONE), None])
            talk.send("go on")
            said = talk.recv()
        first = said == "done"
        assert first or "at the same time" in said
        assert first or second
        after = look.intact()
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
        pytest.param("gcs", True, TWO, id="gcs-replacement-different"),
        pytest.param("moto", True, TWO, id="moto-replacement-different"),
    ],
)
def test_a_machine_that_is_killed_anywhere_is_in_nobodys_way(
    kind: str, replacing: bool, other: dict[str, bytes], servers: Places, tmp_path: Path
) -> None:
    place, key = servers.new(kind), "one" if other is ONE else "two"
    # the even writes: the machine of the test above has stopped before each, and the bucket then holds the same
    for at, look in looks(place, tmp_path, replacing, range(2, 200, 2)):
        with stepping(place, look.folder / "one", look.artifact, Step(WRITES, at)) as (process, talk):
            if talk.recv() != "stopped":
                assert at > 8, "too few points"
                break
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        assert look.intact() in (("one", ONE), ("before", BEFORE) if replacing else None)
        build(look.machine("two"), look.artifact, other, key)
        assert look.intact() == (key, other)
        look.check_settled(key, other)


@dataclass(frozen=True)
class PartedPlace:
    """A bucket whose objects beyond 5 MiB are copied in parts, as those beyond 5 GiB are elsewhere."""

    endpoint: str
    bucket: str

    def __call__(self) -> Store:
        return new_store(self.endpoint, self.bucket, copy_bytes=PART_BYTES)


def test_a_copy_in_parts_that_an_older_replacement_has_under_way_never_lands(moto: str, tmp_path: Path) -> None:
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

    # moto answers the completion of an aborted upload with a 500, which is tried again and given up.
    with FaultProxy(moto, before=overtake) as proxy, raises(TransferError, "big.bin"):
        build(machine("one", proxy.url), artifact, first, "one")
    assert len(overtaken) == 1
    reader = machine("reader", moto)
    assert reader.require(artifact).key == "two"
    assert (reader.local(artifact) / "big.bin").read_bytes() == second["big.bin"]
