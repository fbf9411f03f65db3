"""The artifact `<dataset>/published`: the dataset in its repository on the Hugging Face Hub.

The artifact contains only the three files at the top of the repository, which exist nowhere else: the page, the lock
and the marker. The other published files are files of the other artifacts.

Entry point: `build_published_spec`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import Location, Markdown, ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.card.contents import PUBLISHED, CardSubject
from dataprep_assets.engine.checks.check import Check, Finding, build_verdict
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.engine.lock.lock import LOCK
from dataprep_assets.engine.publishing.marker import MARKER
from dataprep_assets.engine.publishing.page import PAGE
from dataprep_assets.engine.publishing.plan import Publication, build_publication
from dataprep_assets.engine.publishing.repository import RemoteState, Repository
from dataprep_assets.engine.yaml.declaration import HubPublication
from dataprep_assets.errors import ConfigError, IntegrityError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import NAME, Receipt
from dataprep_assets.stores.files import digest_value

VERSION = 1
_HUB, _RECEIPTS = "publish.hub", "receipts"
_REMEDY = "Rebuild published: only differing files are uploaded"


class PublishedFacts(Facts):
    """Facts of a publication: its address, its tag, and the number and size of its files."""

    address: str
    tag: str
    files: int
    bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class _Publisher:
    """The functions of the artifact's spec."""

    subject: CardSubject
    target: HubPublication
    card: ArtifactSpec

    @property
    def repository(self) -> Repository:
        return Repository(target=self.target)

    def plan(self, store: ArtifactStore) -> Publication:
        return build_publication(self.subject, self.target, self.card, store)

    def build(self, request: BuildRequest) -> list[Outcome]:
        publication, progress = self.plan(request.store), request.progress
        # Publish before committing the receipt. If the run is killed in between, the next run uploads nothing and
        # commits the receipt.
        changes = self.repository.publish(publication, lambda size: progress.expect(size, 1))
        progress.add({"source_bytes": sum(file.size for file in changes.uploads)})

        def write(staged: Path) -> WrittenFiles:
            for file in (publication.file(PAGE), publication.file(LOCK), publication.marker):
                (staged / file.path).write_bytes(file.read())
            return WrittenFiles(inputs={"lock": publication.lock}, facts=self._describe(publication))

        receipt, is_current = ensure_built(self._build_recipe(publication), request.store, write)
        outcome = Outcome.from_receipt(receipt, is_current and not changes)
        return [outcome]

    def _describe(self, publication: Publication) -> PublishedFacts:
        files = (*publication.files, publication.marker)
        return PublishedFacts(
            address=self.repository.address,
            tag=publication.tag,
            files=len(files),
            bytes=sum(file.size for file in files),
        )

    def _build_recipe(self, publication: Publication) -> Recipe:
        """Return the recipe. It has only a digest of the location, because recipes contain no locations."""
        receipt_digests = [[file.path, file.sha256] for file in publication.files if file.path.endswith(f"/{NAME}")]
        return Recipe.from_ingredients(
            self.subject.declaration.artifact(PUBLISHED),
            VERSION,
            settings={"publish": {"private": self.target.private, "project": publication.project}},
            sources={
                _HUB: digest_value([self.target.hub, self.target.endpoint]),
                _RECEIPTS: digest_value(receipt_digests),
                LOCK: publication.lock,
                PAGE: publication.file(PAGE).sha256,
            },
            upstream={
                "/".join(filter(None, (receipt.artifact, receipt.partition))): receipt.content
                for receipt in publication.receipts
            },
        )

    def recipes(self, store: ArtifactStore, _: Sequence[str | None]) -> Iterator[Recipe]:
        """Yield the current recipe.

        Raises IntegrityError if the repository does not have all files, and the errors of `Repository.find_changes`.
        """
        publication = self.plan(store)
        recipe = self._build_recipe(publication)
        receipt = store.intact_receipt(recipe.artifact)
        # Compare the repository only if the publication is otherwise up to date, because this sends requests.
        if receipt is not None and recipe.find_change(receipt) is None:
            repository = self.repository
            if (state := repository.read_state()) is not None:
                repository.find_changes(publication, state)
            if defects := list(repository.find_defects(publication, state)):
                raise IntegrityError(
                    f"{defects[0]} ({count_of(len(defects), 'file')}). Publish the dataset again: only these are "
                    "uploaded"
                )
        yield recipe

    def open(self, store: ArtifactStore, _: Sequence[str]) -> "OpenedPublication":
        artifact = self.subject.declaration.artifact(PUBLISHED)
        return OpenedPublication(
            repository=self.repository,
            plan=self.plan(store),
            marker=store.local(artifact, [MARKER]) / MARKER,
        )

    def show(self, _: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
        facts = PublishedFacts.from_receipt(receipt)
        return {
            "repository": Location(facts.address),
            "tag": facts.tag,
            "published_files": facts.files,
            "published_bytes": facts.bytes,
            "how_to_load": Markdown(f'```python\nload_dataset("{self.target.hub}", revision="{facts.tag}")\n```\n'),
        }


def build_published_spec(subject: CardSubject, target: HubPublication, *, card: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of a dataset's publication on the Hub.

    Args:
        subject: The dataset, with its products.
        target: Where it is published.
        card: The spec of its data card.
    """
    publisher = _Publisher(subject=subject, target=target, card=card)
    return ArtifactSpec(
        declaration=subject.declaration,
        name=PUBLISHED,
        version=VERSION,
        description="The dataset on the Hugging Face Hub: files for trainers, data card, lock and receipts, in one "
        "commit.",
        kinds={"huggingface", "file"},
        inputs=(*subject.products, card),
        pool="network",
        verification="full",
        names_places=frozenset({_HUB, _RECEIPTS}),
        recipes=publisher.recipes,
        build=publisher.build,
        metadata=publisher.show,
        published_to=lambda receipt: PublishedFacts.from_receipt(receipt).address,
        sensitive_input="publish: is built from {name}, which is sensitive and never published. Remove `publish`",
        check_groups=(WholeArtifactChecks(checks=CHECKS, open=publisher.open),),
    )


@dataclass(frozen=True, kw_only=True)
class OpenedPublication:
    """A publication that is opened for checks.

    Attributes:
        repository: The repository.
        plan: The publication according to the current receipts.
        marker: Path of the local copy of the published marker.
    """

    repository: Repository
    plan: Publication
    marker: Path

    @cached_property
    def state(self) -> RemoteState | None:
        """The repository's state."""
        return self.repository.read_state()


def check_published_files(publication: OpenedPublication) -> Finding:
    """Check that the repository has the declared visibility, and every file with its size and digest."""
    plan, repository = publication.plan, publication.repository
    if publication.state is not None:
        try:
            repository.find_changes(plan, publication.state)
        except (ConfigError, IntegrityError) as error:
            return Finding(passed=False, summary=f"{error}.", facts={"defects": 1}, table=({"defect": str(error)},))
    defects = list(repository.find_defects(plan, publication.state))
    if publication.marker.read_bytes() != plan.marker.read():
        defects.append(f"{publication.marker}: does not describe the current artifacts")
    size = sum(file.size for file in plan.files)
    return build_verdict(
        defects,
        f"{repository.address} has {count_of(len(plan.files), 'file')} ({count_of(size, 'byte')}) with the digests in "
        "the receipts.",
        _REMEDY,
        facts={"files": len(plan.files), "bytes": size},
    )


def check_tag(publication: OpenedPublication) -> Finding:
    """Check that a revision with the dataset's lock is tagged with the digest of this lock."""
    tag, repository = publication.plan.tag, publication.repository
    defect = repository.find_tag_defect(tag, publication.plan.file(LOCK))
    return build_verdict(
        [] if defect is None else [defect],
        f"{repository.address} has the tag {tag}, whose commit has the dataset's lock.",
        _REMEDY,
        facts={"tag": tag},
    )


CHECKS = (
    Check(
        "hub_matches_receipts",
        "The repository on the Hub has the declared visibility, and every file with the size and SHA-256 in the "
        "receipts.",
        check_published_files,
    ),
    Check(
        "revision_tagged",
        "The repository has a tag with the digest of the dataset's lock, and the tagged commit has this lock.",
        check_tag,
    ),
)
