"""Publication and replacement of one artifact in a bucket, safe for any number of machines at once.

In the bucket, an artifact is a prefix with the same files as in a folder, and `receipt.json`; without a receipt, the
artifact does not exist. Objects cannot be renamed. All data are therefore first written to a staging area,
`<artifact>/.staging/<content>-<base>/` (`base` is a digest of the version of the receipt to be replaced). Then one
conditional write decides:

- A **first publication** writes its receipt as a claim, `.staging/publishing.json`, unless a claim already exists.
  Then the server copies the data to their final keys, and the receipt is written last. A process that finds a claim
  but no receipt completes that publication before anything else, so a killed run never blocks another one.
- A **replacement** writes the receipt if the current receipt is still the one to be replaced. This is the switch: the
  old artifact is intact before it, and the new artifact after it, because readers use files in the staging area as long
  as they exist. Then the server copies the data to their final keys. After a kill, the next run copies the rest.

Two runs never mix their bytes, for these reasons. Final keys receive data only from the staging area of the content
that won, so a losing run never touches them. For each base, one content wins. Once its receipt exists, no run will use
the other areas of that base or of older bases, and these areas are removed before the first copy. A process that was
paused while copying for an older receipt then finds its source missing, and its unfinished requests are aborted. Areas
that may belong to the next replacement have the base of the current receipt, and are kept. A file that is already under
its final key is reused only if the current receipt lists the same bytes, because an unlisted file may be about to be
removed.

One case remains. A process pauses between reading the receipt and removing a file that no receipt listed. Meanwhile,
other processes replace the artifact with one that has a file of that name. The paused process then removes that file.
This is detected as damage, and the artifact is rebuilt.

Two runs that build the same artifact write the same bytes under the same keys. If they build different ones, the
conditional write of the second run fails with an error.

Entry points: :class:`Publication` and :func:`find_object_defect`.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from dataprep_assets.errors import IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.receipt import NAME, Content, FileRecord, Receipt, parse_receipt
from dataprep_assets.stores.pool import REQUESTS_AT_ONCE, map_all
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Store

# A try fails only if another process changes the object between two requests of this process.
_TRIES = 3
_CLAIM = "publishing.json"


def find_object_defect(record: FileRecord, info: ObjectInfo | None, *, certain: bool = False) -> str:
    """Return the defect of the object `info` of a file; `""` if it has none.

    With `certain`, an object whose digest is unknown to the store counts as a defect.
    """
    if info is None:
        return f"{record.path}: missing"
    if info.bytes != record.bytes:
        return record.describe_size_defect(info.bytes)
    if info.sha256 is not None and info.sha256 != record.sha256:
        return record.describe_digest_defect(info.sha256)
    return f"{record.path}: digest unknown" if certain and info.sha256 is None else ""


@dataclass(frozen=True)
class PresentReceipt:
    """One version of the receipt's object in the bucket; `receipt` is None if its bytes are not a receipt."""

    version: str
    receipt: Receipt | None

    def has(self, other: Receipt) -> bool:
        """Return whether the two receipts have the same content."""
        return self.receipt is not None and self.receipt.content == other.content

    def is_base_of(self, key: str) -> bool:
        """Return whether a staged object belongs to a replacement of exactly this receipt."""
        area = key.partition(f"/{STAGING}/")[2].partition("/")[0]
        return area.endswith(f"-{_build_base_id(self)}")


def _build_base_id(present: PresentReceipt | None) -> str:
    """Return the part of a staging area's name that identifies the receipt to be replaced."""
    return "new" if present is None else hashlib.sha256(present.version.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Publication:
    """Publication of one artifact in the bucket `store`; `location` is its URL, for messages."""

    store: Store
    artifact: Artifact
    location: str

    @property
    def _claim_key(self) -> str:
        return f"{self.artifact}/{STAGING}/{_CLAIM}"

    def _build_areas_prefix(self, receipt: Receipt) -> str:
        """Return the prefix of all staged keys of a content. All intact objects below it belong to this content."""
        return f"{self.artifact}/{STAGING}/{receipt.content[:32]}-"

    def area(self, receipt: Receipt, present: PresentReceipt | None) -> str:
        """Return the staging area for the data of a content that is to replace the `present` receipt."""
        return f"{self._build_areas_prefix(receipt)}{_build_base_id(present)}"

    def settle(self, receipt: Receipt) -> None:
        """Copy the staged objects of this receipt's content to their final keys, and remove unreferenced objects.

        Does nothing if the receipt was replaced.
        """
        staged = [info.key for info in self.store.list(f"{self.artifact}/{STAGING}/")]
        # Read the receipt after the listing. In the reverse order, the listing could include objects that were staged
        # for a later receipt, and this method would delete them.
        present_receipt = self.read_present()
        if present_receipt is None or not present_receipt.has(receipt):
            return
        own_areas = self._build_areas_prefix(receipt)
        # Delete other areas before the first copy, so that a paused process cannot resume copying for an older
        # receipt.
        map_all(
            self.store.delete,
            [key for key in staged if not key.startswith(own_areas) and not present_receipt.is_base_of(key)],
            REQUESTS_AT_ONCE,
        )
        moved_keys = self._move(receipt, [key for key in staged if key.startswith(own_areas)])
        # List strays before checking the receipt again, so that they include no objects of a later publication.
        stray_keys = self._list_strays(receipt)
        present_receipt = self.read_present()
        if present_receipt is not None and present_receipt.has(receipt):
            map_all(self.store.delete, [*stray_keys, *moved_keys], REQUESTS_AT_ONCE)

    def complete_publications(self) -> tuple[PresentReceipt | None, ObjectInfo | None]:
        """Return the current receipt, after completing publications that other runs left unfinished.

        If there is no receipt, also return the claim of a publication that cannot be completed because its data are
        missing.
        """
        key = self._claim_key
        for _ in range(_TRIES):
            present_receipt, broken = self.read_present(), None
            if present_receipt is None and (info := self.store.head(key)) is not None:
                try:
                    data = b"".join(self.store.read(key, version=info.version))
                except (ConflictError, MissingArtifactError):
                    continue
                if self.read_present() is not None:  # the claim is already completed, or is void
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
        raise self.build_lost_race_error()

    def _complete_claimed(self, data: bytes) -> bool:
        """Complete the publication of another run; return False if this is impossible."""
        try:
            self.complete(parse_receipt(data, f"{self.location}/{STAGING}/{_CLAIM}"), data)
        except IntegrityError:
            return False
        return True

    def claim(self, receipt: Receipt, data: bytes, broken: ObjectInfo | None) -> None:
        """Claim the first publication of this artifact for `receipt`, whose bytes are `data`.

        `broken` is the claim of a publication that cannot be completed, which is replaced. Raises IntegrityError if
        different content was claimed or published.
        """
        key = self._claim_key
        try:
            self.store.put(key, data, if_absent=broken is None, if_version=broken.version if broken else None)
        except ConflictError as error:
            claimed_content: Content | None
            try:
                claimed_content = parse_receipt(
                    b"".join(self.store.read(key)), f"{self.location}/{STAGING}/{_CLAIM}"
                ).content
            except MissingArtifactError:  # the claim was completed and removed meanwhile
                claimed_content = None
            present_receipt = self.read_present()
            # A run with the same content is not a rival, because both write the same bytes under the same keys.
            if claimed_content != receipt.content if present_receipt is None else not present_receipt.has(receipt):
                raise self.build_lost_race_error() from error
        else:
            # The claim may have succeeded only because another run had already published the artifact and removed its
            # own claim. Then this claim is void.
            present_receipt = self.read_present()
            if present_receipt is not None and not present_receipt.has(receipt):
                self.store.delete(key)
                raise self.build_lost_race_error()

    def complete(self, receipt: Receipt, data: bytes) -> None:
        """Copy the claimed data to their final keys and write the receipt `data`. Safe for concurrent processes.

        Raises IntegrityError if the published files do not match the receipt.
        """
        self._move(receipt, [info.key for info in self.store.list(self._build_areas_prefix(receipt))])
        defects = map_all(
            lambda record: find_object_defect(record, self.find_final(record)), receipt.files, REQUESTS_AT_ONCE
        )
        defect = next(filter(None, defects), "")
        # Ignore a defect if a receipt exists, because then another process has completed the claim, and the artifact
        # may already have been replaced.
        if defect and self.store.head(f"{self.artifact}/{NAME}") is None:
            raise IntegrityError(f"{self.location}: {defect}, immediately after it was written. Run the command again")
        # Ignore a conflict, because another process may have completed the same claim first.
        with suppress(ConflictError):
            self.store.put(f"{self.artifact}/{NAME}", data, if_absent=True)

    def replace(self, receipt: Receipt, data: bytes, present: PresentReceipt) -> None:
        """Write the receipt `data` over the `present` one.

        Raises IntegrityError if another run has already replaced that receipt.
        """
        try:
            self.store.put(f"{self.artifact}/{NAME}", data, if_version=present.version)
        except ConflictError as error:
            now = self.read_present()
            if now is None or not now.has(receipt):
                raise self.build_lost_race_error() from error

    def _move(self, receipt: Receipt, staged: Sequence[str]) -> list[str]:
        """Copy staged objects to their final keys; return the keys that can now be removed."""
        areas, records = self._build_areas_prefix(receipt), {record.path: record for record in receipt.files}

        def move(key: str) -> str:
            base, _, name = key.removeprefix(areas).partition("/")
            final = f"{self.artifact}/{name}"
            if base != _build_base_id(None):  # a first publication has no predecessor that could still be copying
                # Abort an older replacement's unfinished multipart copy, which would overwrite the copy made below.
                self.store.sweep(final)
            if name not in records or not find_object_defect(
                records[name], self.find_final(records[name]), certain=True
            ):
                return key  # the file is already copied, or is not in the receipt
            for _ in range(_TRIES):
                try:
                    self.store.copy(key, final)
                except (ConflictError, MissingArtifactError):
                    # If the staged object is missing, another process moved it, or the artifact was replaced.
                    if self.store.head(key) is None:
                        return ""
                else:
                    return key
            return ""

        return [key for key in map_all(move, staged, REQUESTS_AT_ONCE) if key]

    def _list_strays(self, receipt: Receipt) -> list[str]:
        """Return keys below the artifact that are neither staged nor its files."""
        listed_keys = {f"{self.artifact}/{record.path}" for record in receipt.files} | {f"{self.artifact}/{NAME}"}
        staging = f"{self.artifact}/{STAGING}/"
        keys = [info.key for info in self.store.list(f"{self.artifact}/")]
        stray_keys = [key for key in keys if key not in listed_keys and not key.startswith(staging)]
        # If another artifact is stored below this one, report no strays, because these objects may belong to that
        # artifact.
        return [] if any(key.endswith(f"/{NAME}") for key in stray_keys) else stray_keys

    def is_settled(self, receipt: Receipt) -> bool:
        """Return whether this receipt's data are completely copied and no objects remain to be removed."""
        staged = [info.key for info in self.store.list(f"{self.artifact}/{STAGING}/")]
        # Read the receipt only if objects are staged, because staged objects are rare and a read costs a request.
        present_receipt = self.read_present() if staged else None
        own_areas = self._build_areas_prefix(receipt)
        remaining_keys = [
            key
            for key in staged
            if key.startswith(own_areas) or present_receipt is None or not present_receipt.is_base_of(key)
        ]
        return not remaining_keys and not self._list_strays(receipt)

    def read_present(self) -> PresentReceipt | None:
        """Return the receipt with its version; None if the artifact does not exist."""
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
                # Keep the version, so that a conditional write replaces exactly the receipt that was read.
                return PresentReceipt(info.version, parse_receipt(data, f"{self.location}/{NAME}"))
            except IntegrityError:
                return PresentReceipt(info.version, None)
        raise self.build_lost_race_error()

    def find_final(self, record: FileRecord) -> ObjectInfo | None:
        """Return the object under a file's final key, regardless of its bytes; None if there is none."""
        return self.store.head(f"{self.artifact}/{record.path}")

    def is_kept(self, record: FileRecord, present: PresentReceipt | None) -> bool:
        """Return whether a file is already under its final key and no run is about to remove it."""
        if present is not None and (present.receipt is None or record not in present.receipt.files):
            return False
        return not find_object_defect(record, self.find_final(record), certain=True)

    def find_object(self, receipt: Receipt, record: FileRecord) -> ObjectInfo | None:
        """Return a file's object, staged by a replacement that is not settled yet, or under its final key."""
        final = self.find_final(record)
        if not find_object_defect(record, final, certain=True):
            return final
        areas = self._build_areas_prefix(receipt)
        for info in self.store.list(areas):
            if info.key.removeprefix(areas).partition("/")[2] == record.path:
                # Request the object itself, because listings may lack digests (S3's do).
                return self.store.head(info.key) or final
        return final

    def build_lost_race_error(self) -> IntegrityError:
        """Return the error of a run that was not the first to publish."""
        return IntegrityError(
            f"{self.location}: another run published different data at the same time. Wait until that run has "
            "finished, then rebuild this artifact"
        )
