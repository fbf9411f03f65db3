"""How one artifact of a bucket is published and replaced, by any number of machines at once.

In the bucket an artifact is a prefix with the same files as in a folder, and `receipt.json`; without a receipt the
artifact does not exist. Objects cannot be renamed, so all data are first written to a staging area,
`<artifact>/.staging/<content>-<base>/` (`base` is a digest of the version of the receipt that is to be replaced), and
one conditional write decides:

- a **first publication** writes its receipt as a claim, `.staging/publishing.json`, unless there is a claim already.
  Then the server copies the data to their final keys, and the receipt goes last. Whoever finds a claim and no receipt
  completes that publication before anything else, so a killed run blocks no other.
- a **replacement** writes the receipt, if the present one is still the one that it replaces. That is the switch: before
  it the old artifact is intact, after it the new one is, because a reader takes a file from the staging area as long as
  it is there. Then the server copies the data to their final keys; a kill in between leaves the rest to the next run.

Why two runs never mix their bytes: final keys get data only from the staging area of the content that won, so a loser
never touches them. For each base one content wins, so once its receipt exists, no run will use the other areas of that
base or of older ones, and these are removed before the first copy: a process that was paused while it copied for an
older receipt finds its source gone, and its unfinished requests are aborted. Areas that may belong to the next
replacement have the base of the present receipt, and are left alone. A file that is already under its final key counts
only if the present receipt lists the same bytes: a leftover may be about to be removed. One case remains: a process
that pauses between reading the receipt and removing a file that no receipt listed, while others replace the artifact by
one that has a file of that name, removes that file. That is found as damage, and the artifact is built again.

Two runs that make the same artifact write the same bytes under the same keys. If two make different ones, the
conditional write of the second fails with an error.

Entry points: :class:`Publication` and :func:`differs`.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from dataprep_assets.errors import IntegrityError, MissingArtifactError, count_of
from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.receipt import NAME, Content, FileRecord, Receipt, parse_receipt
from dataprep_assets.stores.pool import map_all
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Store

AT_ONCE = 8
"""Requests of one publication that run at the same time."""

# A try is lost only if another machine changes the object between two requests of this one.
_TRIES = 3
_CLAIM = "publishing.json"


def differs(record: FileRecord, info: ObjectInfo | None, *, certain: bool = False) -> str:
    """Return what is wrong with the object `info` of a file, or "".

    With `certain` an object whose digest the store does not know is not accepted.
    """
    if info is None:
        return f"{record.path}: missing"
    if info.bytes != record.bytes:
        return f"{record.path}: has {count_of(info.bytes, 'byte')}, but the receipt lists {record.bytes}"
    if info.sha256 is not None and info.sha256 != record.sha256:
        return f"{record.path}: has sha256 {info.sha256}, but the receipt lists {record.sha256}"
    return f"{record.path}: its digest is unknown" if certain and info.sha256 is None else ""


@dataclass(frozen=True)
class PresentReceipt:
    """The object of the receipt in the bucket, in this version; `receipt` is None if its bytes are not a receipt."""

    version: str
    receipt: Receipt | None

    def has(self, other: Receipt) -> bool:
        """Return whether it has the same content."""
        return self.receipt is not None and self.receipt.content == other.content

    def is_base_of(self, key: str) -> bool:
        """Return whether a staged object belongs to a replacement of exactly this receipt."""
        area = key.partition(f"/{STAGING}/")[2].partition("/")[0]
        return area.endswith(f"-{_base(self)}")


def _base(present: PresentReceipt | None) -> str:
    """The part of a staging area's name that stands for the receipt to be replaced."""
    return "new" if present is None else hashlib.sha256(present.version.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One artifact in the bucket `store`; `location` is its URL, for messages."""

    store: Store
    artifact: Artifact
    location: str

    @property
    def _claim_key(self) -> str:
        return f"{self.artifact}/{STAGING}/{_CLAIM}"

    def _areas(self, receipt: Receipt) -> str:
        """The prefix of all staged keys of a content. Every intact object there belongs to this content."""
        return f"{self.artifact}/{STAGING}/{receipt.content[:32]}-"

    def area(self, receipt: Receipt, present: PresentReceipt | None) -> str:
        """Return where to stage the data of a content that is to replace the `present` receipt."""
        return f"{self._areas(receipt)}{_base(present)}"

    def settle(self, receipt: Receipt) -> None:
        """Copy the staged objects of this receipt's content to their final keys, and remove unreferenced ones.

        Does nothing if the receipt was replaced.
        """
        staged = [info.key for info in self.store.list(f"{self.artifact}/{STAGING}/")]
        # Checked only now: objects listed while this receipt was there cannot belong to a later one.
        present_receipt = self.read_present()
        if present_receipt is None or not present_receipt.has(receipt):
            return
        mine = self._areas(receipt)
        # Before the first copy: a machine that was paused while it copied for an older receipt finds its source gone.
        map_all(
            self.store.delete,
            [key for key in staged if not key.startswith(mine) and not present_receipt.is_base_of(key)],
            AT_ONCE,
        )
        moved = self._move(receipt, [key for key in staged if key.startswith(mine)])
        # Listed before the receipt is looked at once more: so nothing of a later publication can be among them.
        strays = self._strays(receipt)
        present_receipt = self.read_present()
        if present_receipt is not None and present_receipt.has(receipt):
            map_all(self.store.delete, [*strays, *moved], AT_ONCE)

    def complete_publications(self) -> tuple[PresentReceipt | None, ObjectInfo | None]:
        """The present receipt, after completing publications that other runs left unfinished.

        Without a receipt, also the claim of a publication that cannot be completed because its data are gone.
        """
        key = self._claim_key
        for _ in range(_TRIES):
            present_receipt, broken = self.read_present(), None
            if present_receipt is None and (info := self.store.head(key)) is not None:
                try:
                    data = b"".join(self.store.read(key, version=info.version))
                except (ConflictError, MissingArtifactError):
                    continue
                if self.read_present() is not None:  # the claim may be void, made after the receipt
                    continue
                broken = None if self._complete_claimed(data) else info
                present_receipt = self.read_present()
            if (
                present_receipt is not None
                and present_receipt.receipt is not None
                and not self.is_settled(present_receipt.receipt)
            ):
                self.settle(present_receipt.receipt)
                present_receipt = self.read_present()
            return present_receipt, broken if present_receipt is None else None
        raise self.lost_race_error()

    def _complete_claimed(self, data: bytes) -> bool:
        """Complete the publication of another run; returns False if that cannot be done."""
        try:
            self.complete(parse_receipt(data, f"{self.location}/{STAGING}/{_CLAIM}"), data)
        except IntegrityError:
            return False
        return True

    def claim(self, receipt: Receipt, data: bytes, broken: ObjectInfo | None) -> None:
        """Claim the first publication of this artifact for `receipt`, whose bytes are `data`.

        `broken` is the claim of a publication that cannot be completed: it is replaced. Raises IntegrityError when
        another content was claimed or published.
        """
        key = self._claim_key
        try:
            self.store.put(key, data, if_absent=broken is None, if_version=broken.version if broken else None)
        except ConflictError as error:
            claimed: Content | None
            try:
                claimed = parse_receipt(b"".join(self.store.read(key)), f"{self.location}/{STAGING}/{_CLAIM}").content
            except MissingArtifactError:  # published meanwhile
                claimed = None
            present_receipt = self.read_present()
            # A rival of the same content is none: both write the same bytes under the same keys.
            if claimed != receipt.content if present_receipt is None else not present_receipt.has(receipt):
                raise self.lost_race_error() from error
        else:
            # Claims are removed after the receipt was written: one made since then is void.
            present_receipt = self.read_present()
            if present_receipt is not None and not present_receipt.has(receipt):
                self.store.delete(key)
                raise self.lost_race_error()

    def complete(self, receipt: Receipt, data: bytes) -> None:
        """Copy the claimed data to their final keys and write the receipt `data`; many processes may do so at once.

        Raises IntegrityError if the published files are not those of the receipt.
        """
        self._move(receipt, [info.key for info in self.store.list(self._areas(receipt))])
        defects = map_all(lambda record: differs(record, self.final(record)), receipt.files, AT_ONCE)
        wrong = next(filter(None, defects), "")
        # If there is a receipt, another process has done it, and the artifact may already be the next one.
        if wrong and self.store.head(f"{self.artifact}/{NAME}") is None:
            raise IntegrityError(f"{self.location}: {wrong}, immediately after it was written. Run again")
        # another process has completed the same claim first
        with suppress(ConflictError):
            self.store.put(f"{self.artifact}/{NAME}", data, if_absent=True)

    def replace(self, receipt: Receipt, data: bytes, present: PresentReceipt) -> None:
        """Write the receipt `data` over the `present` one.

        Raises IntegrityError when another run replaced that already.
        """
        try:
            self.store.put(f"{self.artifact}/{NAME}", data, if_version=present.version)
        except ConflictError as error:
            now = self.read_present()
            if now is None or not now.has(receipt):
                raise self.lost_race_error() from error

    def _move(self, receipt: Receipt, staged: Sequence[str]) -> list[str]:
        """Copy staged objects to their final keys; returns those that can be removed now."""
        areas, records = self._areas(receipt), {record.path: record for record in receipt.files}

        def move(key: str) -> str:
            base, _, name = key.removeprefix(areas).partition("/")
            final = f"{self.artifact}/{name}"
            if base != _base(None):  # a first publication has no predecessor that could still be copying
                # a copy in parts that an older replacement has under way would land on top of this one
                self.store.sweep(final)
            if name not in records or not differs(records[name], self.final(records[name]), certain=True):
                return key  # copied before
            for _ in range(_TRIES):
                try:
                    self.store.copy(key, final)
                except (ConflictError, MissingArtifactError):
                    if self.store.head(key) is None:  # another process moved it, or the artifact was replaced
                        return ""
                else:
                    return key
            return ""

        return [key for key in map_all(move, staged, AT_ONCE) if key]

    def _strays(self, receipt: Receipt) -> list[str]:
        """Keys below the artifact that are neither its files nor staged."""
        listed_keys = {f"{self.artifact}/{record.path}" for record in receipt.files} | {f"{self.artifact}/{NAME}"}
        staging = f"{self.artifact}/{STAGING}/"
        keys = [info.key for info in self.store.list(f"{self.artifact}/")]
        strays = [key for key in keys if key not in listed_keys and not key.startswith(staging)]
        # Another artifact below this one must not be removed.
        return [] if any(key.endswith(f"/{NAME}") for key in strays) else strays

    def is_settled(self, receipt: Receipt) -> bool:
        """Return whether nothing is left to copy or to remove for this receipt."""
        staged = [info.key for info in self.store.list(f"{self.artifact}/{STAGING}/")]
        # mostly nothing is staged, and then the receipt need not be read
        present_receipt = self.read_present() if staged else None
        mine = self._areas(receipt)
        remaining_keys = [
            key
            for key in staged
            if key.startswith(mine) or present_receipt is None or not present_receipt.is_base_of(key)
        ]
        return not remaining_keys and not self._strays(receipt)

    def read_present(self) -> PresentReceipt | None:
        """The receipt with its version; None when the artifact does not exist."""
        key = f"{self.artifact}/{NAME}"
        for _ in range(_TRIES):
            info = self.store.head(key)
            if info is None:
                return None
            try:
                data = b"".join(self.store.read(key, version=info.version))
            except (ConflictError, MissingArtifactError):
                continue
            try:
                # in this version, so that a conditional write replaces exactly what was read
                return PresentReceipt(info.version, parse_receipt(data, f"{self.location}/{NAME}"))
            except IntegrityError:
                return PresentReceipt(info.version, None)
        raise self.lost_race_error()

    def final(self, record: FileRecord) -> ObjectInfo | None:
        """The object under a file's final key, whatever its bytes."""
        return self.store.head(f"{self.artifact}/{record.path}")

    def is_kept(self, record: FileRecord, present: PresentReceipt | None) -> bool:
        """Return whether a file is already under its final key, and no run is about to change that."""
        if present is not None and (present.receipt is None or record not in present.receipt.files):
            return False
        return not differs(record, self.final(record), certain=True)

    def located(self, receipt: Receipt, record: FileRecord) -> ObjectInfo | None:
        """The object of a file: staged by a replacement that is not settled yet, or under its final key."""
        final = self.final(record)
        if not differs(record, final, certain=True):
            return final
        areas = self._areas(receipt)
        for info in self.store.list(areas):
            if info.key.removeprefix(areas).partition("/")[2] == record.path:
                # asked for by itself, because a listing need not have digests (S3's has none)
                return self.store.head(info.key) or final
        return final

    def lost_race_error(self) -> IntegrityError:
        """The error of a run that was not the first to publish."""
        return IntegrityError(
            f"{self.location}: another run published different data at the same time. Wait until one of them has "
            "finished, then materialize this artifact again"
        )
