"""Base class of datasets: the artifacts of one declaration, its summaries, and the operations of the commands.

Each layer has a subclass in its `dataset.py`, without Dagster. The component that Dagster loads derives from it
(`orchestration/component.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import ValidationError

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import DATA_CARD, CardFacts
from dataprep_assets.engine.card.contents import CardSubject, SplitCounts
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.engine.yaml.declared_keys import find_nearest
from dataprep_assets.engine.yaml.mistakes import Document, Keys, describe_mistakes, read_documents
from dataprep_assets.engine.yaml.remark import Remark, build_mistakes_error
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.storage import Storage

# Import these modules only for types, because commands that only list or compare artifacts use none of them.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dataprep_assets.engine.artifact.view import View
    from dataprep_assets.engine.staleness.estimate import Estimate
    from dataprep_assets.engine.trace.document_table import DocumentTable
    from dataprep_assets.engine.trace.retraction import RetractionResult
    from dataprep_assets.engine.trace.sample import RowSample
    from dataprep_assets.engine.trace.trace import Tracer
    from dataprep_assets.planning.cost import Machine

D = TypeVar("D", bound=DatasetDeclaration)


def validate_declaration(model: type[D], attributes: Mapping[str, Any], yaml_path: Path) -> D:
    """Return the validated declaration; ConfigError names the file, the key, the value and the allowed values."""
    try:
        declaration = model.model_validate(attributes)
    except ValidationError as error:
        document = Document(path=yaml_path, type="", attributes=attributes, node=None, line=0)
        with suppress(ConfigError, OSError):
            # Read the file only for its line numbers, because its values may contain templates, which are already
            # resolved in `attributes`. Ignore errors, because some tests have no file.
            document = next(
                (replace(d, attributes=attributes) for d in read_documents(yaml_path) if d.attributes), document
            )
        raise build_mistakes_error(
            describe_mistakes(error, model, document)
        ) from None  # suppress the cause, because it would be printed before the mistakes
    try:
        return declaration.resolve_paths(yaml_path.parent)
    except ConfigError as error:
        raise ConfigError(f"{yaml_path}: {error}") from None


def _build_key_error(yaml_path: Path, keys: Sequence[str], sentence: str) -> ConfigError:
    (document, *_) = read_documents(yaml_path)
    return ConfigError(f"{yaml_path}:{document.find_line(keys)}: {'.'.join(keys)}: {sentence}")


@dataclass(frozen=True, kw_only=True)
class DatasetCounts:
    """Counts per split, and the receipt of the artifact that records them."""

    receipt: Receipt
    splits: Sequence[SplitCounts]


@dataclass(frozen=True, kw_only=True)
class MixtureShare:
    """Share of a source in a mixture.

    Attributes:
        split: Split that the shares add up to 1 in; empty if the mixture has no splits.
        name: Name of the source.
        requested: Declared share.
        available: Share that the source's data allows within the declared limits; None if nothing limits it.
        realized: Share in the built files, or in the steps of a schedule.
        epochs: Number of passes over the source; None if the files do not record it.
        tokens: Tokens of the source, or the tokens that a schedule reads from it; 0 if its rows are not tokenized.
    """

    split: str
    name: str
    requested: float
    available: float | None = None
    realized: float
    epochs: float | None = None
    tokens: int = 0


class Dataset(ABC):
    """A declared dataset. Subclasses set the class of their declaration and build the list of artifacts from it."""

    component: ClassVar[str]
    """Name of its component in `dataprep_assets.components`."""
    pipeline: ClassVar[str]
    """Name of its pipeline, used as a tag of the assets."""
    document_noun: ClassVar[str] = "document"
    """Singular noun for its documents."""
    model: ClassVar[type[DatasetDeclaration]]
    folder: Path | None = None
    """The folder of its `defs.yaml`; None if it has no file."""

    def __init__(self, declaration: DatasetDeclaration) -> None:
        self.declaration = declaration

    @classmethod
    def list_own_templates(cls, attributes: Any) -> Collection[Keys]:
        """Return the keys whose text is another program's template, so `{{ … }}` in them is not resolved.

        Args:
            attributes: The unvalidated attributes, as written in the YAML.
        """
        return ()

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any], yaml_path: Path) -> Self:
        """Return the dataset that a YAML file declares.

        Args:
            attributes: Its attributes, with templates resolved.
            yaml_path: The file. Relative paths are resolved against its folder.

        Raises ConfigError with the file and the key if a value is not allowed.
        """
        dataset = cls(validate_declaration(cls.model, attributes, yaml_path))
        dataset.folder = yaml_path.parent
        dataset._require_usable_views(yaml_path)
        dataset._require_acceptable(yaml_path)
        return dataset

    def _require_usable_views(self, yaml_path: Path) -> None:
        """Raise ConfigError if a declared view cannot be loaded."""
        try:
            self.load_views()
        except ConfigError as error:
            raise _build_key_error(yaml_path, ["views"], str(error)) from None

    def _require_acceptable(self, yaml_path: Path) -> None:
        """Raise ConfigError if `accept` names an unknown check or one that blocks."""
        if not self.declaration.accept:
            return
        checks = [check for spec in self.specs for check in spec.checks]
        warning = sorted({check.name for check in checks if not check.blocking})
        for name in self.declaration.accept:
            if name not in warning:
                nearest_name = find_nearest(name, warning)
                problem = "unknown check of this dataset"
                if any(check.name == name for check in checks):
                    nearest_name, problem = None, "is a blocking check, whose failure cannot be accepted"
                hint = (
                    f"did you mean `{nearest_name}`?"
                    if nearest_name
                    else f"checks that only warn: {', '.join(warning)}"
                )
                raise _build_key_error(yaml_path, ["accept", name], f"{problem}; {hint}")

    @property
    def row_noun(self) -> str:
        """Noun for a row of its splits."""
        return "row"

    @property
    @abstractmethod
    def specs(self) -> Sequence[ArtifactSpec]:
        """Every artifact of the dataset, inputs first. Every call returns the same objects."""

    def load_views(self) -> "Sequence[View]":
        """Return the declared views. Raises ConfigError if one cannot be loaded."""
        return ()

    @property
    def card_subject(self) -> CardSubject | None:
        """Facts for its data card; None for a dataset without a card."""
        return None

    @abstractmethod
    def product(self, store: ArtifactStore) -> Artifact:
        """Return the artifact that a trainer reads."""

    @abstractmethod
    def summary(self, store: ArtifactStore) -> list[str]:
        """Return lines that describe the built dataset, printed at the end of a run."""

    def describe_totals(self, store: ArtifactStore) -> Sequence[str]:
        """Return the lines of `summary` with the totals, which every run prints at its end."""
        return ()

    def describe_trainers(self, store: ArtifactStore) -> Sequence[str]:
        """Return a line of settings for each trainer that can read the dataset, such as `nanoGPT: data_dir = '…'`."""
        return ()

    def read_mixture(self, store: ArtifactStore) -> Sequence[MixtureShare]:
        """Return the shares of its sources; nothing if it is not a mixture, or not built."""
        return ()

    def read_lengths(self, store: ArtifactStore, max_bytes: int) -> "NDArray[np.int64] | None":
        """Return the number of tokens of each document or conversation, int64, shape `(documents,)`.

        Returns None if the artifacts do not record it, or in files that are larger than `max_bytes` together. Raises
        DataprepError if an artifact is missing.
        """
        return None

    def read_last_counts(self, store: ArtifactStore) -> DatasetCounts | None:
        """Return the counts of its splits after the last complete run; None if there was no complete run.

        The counts come from the data card, which is the last artifact of a run. A killed run does not change them.
        """
        for spec in self.specs:
            if spec.name == DATA_CARD and (receipt := store.receipt(spec.locate_artifact(store))) is not None:
                return DatasetCounts(receipt=receipt, splits=CardFacts.from_receipt(receipt).splits)
        return None

    def describe_state(self, store: ArtifactStore) -> Sequence[str]:
        """Return lines that are printed after every run, even a failed or empty one, and by `status`.

        `summary` includes them.
        """
        return ()

    def remarks(self) -> Iterable[Remark]:
        """Return remarks on the declaration that are cheap to compute and need no built artifacts."""
        return ()

    def describe_boundaries(self) -> str:
        """Return a line with the tokens that separate documents.

        The line is empty if the dataset has no documents or its tokenizer is not on this machine. Raises TokenizerError
        if the tokenizer has no such tokens.
        """
        return ""

    def find_source_remarks(self, source: "Dataset") -> Iterable[Remark]:
        """Return remarks on another declared dataset that this one is built from."""
        return ()

    def pending(self, store: ArtifactStore) -> Iterable[Remark]:
        """Return remarks on declared changes that no run applies. They are derived from the existing artifacts."""
        return ()

    def find_trial_remarks(self) -> Iterable[Remark]:
        """Return remarks that require running the user's code on a few rows, for `dataprep check` and first runs."""
        return ()

    def cost(self, store: ArtifactStore, machine: "Machine") -> "Estimate":
        """Return the cost of building the whole dataset. Raises ConfigError for a kind without a token shard plan."""
        raise ConfigError(
            f"plan: {self.declaration.dataset} is a {self.component}, but costs can be estimated only for corpora, "
            "releases and pretraining blends. Name one of these datasets"
        )

    def tracer(self, store: ArtifactStore) -> "Tracer":
        """Return a tracer that finds documents in the dataset's artifacts.

        Raises ConfigError for a kind of dataset whose artifacts do not record the positions of documents.
        """
        raise ConfigError(
            f"trace: {self.declaration.dataset} is a {self.component}, but only corpora, releases, notes and blends "
            "for pretraining or chat can be traced, because only they record the positions of rows. Name one of "
            "these datasets"
        )

    def list_sampled_artifacts(self, store: ArtifactStore) -> Sequence[Artifact]:
        """Return the artifacts that `sample` reads; empty for a kind of dataset without rows of its own."""
        return ()

    def sample(self, store: ArtifactStore, count: int, seed: str) -> "RowSample":
        """Return about `count` random rows of the files that a trainer reads; none of sensitive data.

        The same artifacts and the same seed give the same rows.
        """
        from dataprep_assets.engine.trace.sample import RowSample

        return RowSample()

    def retract(self, store: ArtifactStore, ids: Path, *, strict: bool = False) -> "RetractionResult":
        """Add the documents or patients of a list of ids to the dataset's retraction list.

        Args:
            store: Where its artifacts are stored; they are only read.
            ids: The file with the list, one id per line.
            strict: Write nothing if an id is not found.

        Raises ConfigError with the line if the list is empty or malformed, and for a kind of dataset that has no
        documents of its own.
        """
        raise ConfigError(
            f"{self.declaration.dataset} is a {self.component}, but documents can be retracted only from corpora, "
            f"releases, notes and blends. Retract them from the inputs of {self.declaration.dataset}"
        )

    def with_list(self, path: Path) -> Self:
        """Return this dataset with a different retraction list, to predict the effect of a deletion request."""
        dataset = type(self)(self.declaration.model_copy(update={"retractions": path}))
        dataset.folder = self.folder
        return dataset

    @property
    def has_rules(self) -> bool:
        """Whether rules or duplicates decide which documents are kept."""
        return False

    def documents(self, store: ArtifactStore) -> "DocumentTable":
        """Return an object that answers queries about the dataset's document table.

        Raises ConfigError if the dataset declares no such table or its kind does not support one.
        """
        raise ConfigError(
            f"{self.declaration.dataset} is a {self.component}, but only corpora, releases and blends have a document "
            "table. Name one of these datasets"
        )

    def store(self, storage: Storage) -> ArtifactStore:
        """Return the store of the dataset's artifacts."""
        return self.declaration.store(storage)

    def spec(self, name: str, split: str | None = None) -> ArtifactSpec:
        """Return the artifact with this name; raise KeyError if the dataset has none."""
        for spec in self.specs:
            if (spec.name, spec.split) == (name, split):
                return spec
        raise KeyError(f"{self.declaration.dataset} has no artifact {name} {split or ''}")
