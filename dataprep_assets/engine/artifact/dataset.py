"""What one declaration makes: its artifacts, what a person is told of them, and what the commands ask of it.

Each wing has a subclass in its `dataset.py`, without Dagster; the component that Dagster loads derives from it
(`orchestration/component.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import ValidationError

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import DATA_CARD, CardFacts
from dataprep_assets.engine.card.contents import SplitCounts
from dataprep_assets.engine.staleness.estimate import Estimate
from dataprep_assets.engine.trace.asked_documents import AskedDocuments
from dataprep_assets.engine.trace.retraction import Retracted
from dataprep_assets.engine.trace.trace import Tracer
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.engine.yaml.declared_keys import nearest
from dataprep_assets.engine.yaml.mistakes import Document, Keys, mistakes, read_documents
from dataprep_assets.engine.yaml.remark import Remark, mistakes_error
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.storage import Storage
from dataprep_assets.planning.cost import Machine

D = TypeVar("D", bound=DatasetDeclaration)


def validate_declaration(model: type[D], attributes: Mapping[str, Any], yaml_path: Path) -> D:
    """The validated declaration; ConfigError names the file, the key, the value and what is allowed."""
    try:
        declaration = model.model_validate(attributes)
    except ValidationError as error:
        document = Document(path=yaml_path, type="", attributes=attributes, node=None, line=0)
        with suppress(ConfigError, OSError):
            # read for the line numbers: attributes come with their templates resolved, and tests have some without a
            # file
            document = next(
                (replace(d, attributes=attributes) for d in read_documents(yaml_path) if d.attributes), document
            )
        raise mistakes_error(mistakes(error, model, document)) from None  # the cause would be printed first
    try:
        return declaration.located(yaml_path.parent)
    except ConfigError as error:
        raise ConfigError(f"{yaml_path}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class DatasetCounts:
    """The counts of each split, and the receipt of the artifact that has them."""

    receipt: Receipt
    splits: Sequence[SplitCounts]


class Dataset(ABC):
    """One declared dataset. Subclasses name their declaration and make the list of its artifacts from it."""

    component: ClassVar[str]
    """Name of its component in `dataprep_assets.components`."""
    pipeline: ClassVar[str]
    """Name of its pipeline, with which the assets are tagged."""
    model: ClassVar[type[DatasetDeclaration]]
    folder: Path | None = None
    """The folder of its `defs.yaml`; None if it has no file."""

    def __init__(self, declaration: DatasetDeclaration) -> None:
        self.declaration = declaration

    @classmethod
    def own_templates(cls, attributes: Any) -> Collection[Keys]:
        """The keys whose text is a template of another program, which `{{ … }}` of a `defs.yaml` is not.

        Args:
            attributes: The attributes as they are written, which nothing has validated.
        """
        return ()

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any], yaml_path: Path) -> Self:
        """The dataset that a YAML declares.

        Args:
            attributes: Its attributes, with templates resolved.
            yaml_path: The file, in whose folder relative paths begin.

        Raises ConfigError, naming file and key, for what is not allowed.
        """
        dataset = cls(validate_declaration(cls.model, attributes, yaml_path))
        dataset.folder = yaml_path.parent
        dataset._require_acceptable(yaml_path)
        return dataset

    def _require_acceptable(self, yaml_path: Path) -> None:
        """Raise ConfigError if `accept` names a check that does more than warn."""
        if not self.declaration.accept:
            return
        proofs = [proof for spec in self.specs for proof in spec.checks]
        warning = sorted({proof.name for proof in proofs if not proof.blocking})
        for name in self.declaration.accept:
            if name not in warning:
                near = nearest(name, warning)
                wrong = "unknown check of this dataset"
                if any(proof.name == name for proof in proofs):
                    near, wrong = None, "is a blocking check, which cannot be accepted"
                hint = f"did you mean `{near}`?" if near else f"checks that only warn: {', '.join(warning)}"
                (document, *_) = read_documents(yaml_path)
                line = document.line_of(["accept", name])
                raise ConfigError(f"{yaml_path}:{line}: accept.{name}: {wrong}; {hint}")

    @property
    @abstractmethod
    def specs(self) -> Sequence[ArtifactSpec]:
        """The graph: every artifact of the dataset, inputs first. Every call returns the same objects."""

    @abstractmethod
    def product(self, store: ArtifactStore) -> Artifact:
        """The artifact that a trainer reads."""

    @abstractmethod
    def summary(self, store: ArtifactStore) -> list[str]:
        """Lines that say what was made, printed at the end of a run."""

    def trainer_lines(self, store: ArtifactStore) -> Sequence[str]:
        """A line of settings for each trainer that can read what was made: `nanoGPT: data_dir = '…'`."""
        return ()

    def last_counts(self, store: ArtifactStore) -> DatasetCounts | None:
        """The counts of its splits at the end of the last complete run; None if there are none.

        Those of the data card, the last artifact of a run. So a run that was killed leaves the card of the one before
        it, whatever else it has made.
        """
        for spec in self.specs:
            if spec.name == DATA_CARD and (receipt := store.receipt(spec.located(store))) is not None:
                return DatasetCounts(receipt=receipt, splits=CardFacts.of(receipt).splits)
        return None

    def standing(self, store: ArtifactStore) -> Sequence[str]:
        """Lines that matter whatever a run did: printed also if it failed or had nothing to do, and by `status`.

        `summary` includes them.
        """
        return ()

    def remarks(self) -> Iterable[Remark]:
        """Remarks on the declaration that can be made cheaply, before anything is built."""
        return ()

    def remarks_on(self, source: "Dataset") -> Iterable[Remark]:
        """Remarks on another declared dataset that it is made of."""
        return ()

    def pending(self, store: ArtifactStore) -> Iterable[Remark]:
        """Remarks on what is declared and no run takes up: only the artifacts that are there can tell."""
        return ()

    def tried(self) -> Iterable[Remark]:
        """Remarks that need the user's own code to run on a few rows: for `dataprep check` and first runs."""
        return ()

    def cost(self, store: ArtifactStore, machine: Machine) -> Estimate:
        """What building the whole dataset will cost; raises ConfigError for a kind without a plan of token shards."""
        raise ConfigError(
            f"plan: {self.declaration.dataset}: only the cost of corpora, releases and pretraining blends can be "
            "estimated, because they have a plan of token shards"
        )

    def tracer(self, store: ArtifactStore) -> Tracer:
        """Finds documents in its artifacts.

        Raises ConfigError for a kind whose artifacts do not say where documents lie.
        """
        raise ConfigError(
            f"trace: {self.declaration.dataset}: only corpora, releases, notes and blends for pretraining or chat can "
            "be traced. Other artifacts do not record the positions of rows"
        )

    def retract(self, store: ArtifactStore, ids: Path, *, strict: bool = False) -> Retracted:
        """Put the documents or patients that a list of ids names on the dataset's retraction list.

        Args:
            store: Where its artifacts are; they are only read.
            ids: The file of the list, with one id on each line.
            strict: Write nothing if something is not found.

        Raises ConfigError, naming the line, for a list that is empty or malformed; and for a kind of dataset that has
        no documents of its own.
        """
        raise ConfigError(
            f"{self.declaration.dataset} is a {self.component}, but only corpora, releases and notes can be retracted "
            "from. Retract from the dataset that it is built from"
        )

    def with_list(self, path: Path) -> Self:
        """The same dataset with another retraction list, for a request that is only rehearsed."""
        dataset = type(self)(self.declaration.model_copy(update={"retractions": path}))
        dataset.folder = self.folder
        return dataset

    @property
    def has_rules(self) -> bool:
        """Whether rules or duplicates decide which documents are kept."""
        return False

    def documents(self, store: ArtifactStore) -> AskedDocuments:
        """Answers questions about its table of documents.

        Raises ConfigError for a dataset that declares none, or a kind of dataset that cannot.
        """
        raise ConfigError(
            f"{self.declaration.dataset} is a {self.component}, but only corpora and releases have a document table"
        )

    def store(self, storage: Storage) -> ArtifactStore:
        """Where the dataset's artifacts are."""
        return self.declaration.store(storage)

    def spec(self, name: str, split: str | None = None) -> ArtifactSpec:
        """The artifact with this name; raises KeyError when the dataset has none."""
        for spec in self.specs:
            if (spec.name, spec.split) == (name, split):
                return spec
        raise KeyError(f"{self.declaration.dataset} has no artifact {name} {split or ''}")
