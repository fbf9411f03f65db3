"""A user's Dagster project over a corpus: declarations, runs on a real instance, and results."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
from dagster.components.scaffold.scaffold import get_scaffolder

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.artifact.spec import ArtifactSpec, build_asset_path
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.checks import build_check_evaluation, examine_artifact
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.resources import StorageResource, create_resources
from dataprep_assets.resources.environment import resolve_variables
from dataprep_assets_tests.samples import SAMPLE, SMALL


def sample_attributes(**changes: Any) -> dict[str, Any]:
    """Return the attributes of a corpus over the project's own sample data; `changes` replace top-level keys."""
    return {
        "dataset": "corpus",
        "source": {"kind": "local", "path": str(SMALL)},
        "splits": {"train": ["train/**"], "val": ["validation/**"], "test": ["test/**"]},
        "tokenizer": {"path": str(SAMPLE / "tokenizer"), "name": "sample"},
        "document": {"separator": "<|endoftext|>"},
        "shards": {"count": 3},
        "views": ["nanogpt", "megatron", "datatrove", "olmo"],
        "olmo_sequence_length": 64,
        "sample_rate": 0.01,
        "workers": 2,
        **changes,
    }


def scaffold(component: type[dg.Component], folder: Path) -> Path:
    """Write the commented declaration of a component as `dg scaffold defs` does, and return its file."""
    request = dg.ScaffoldRequest[Any](
        type_name="", target_path=folder, scaffold_format="yaml", project_root=folder.parent, params=None
    )
    scaffolder = get_scaffolder(component)
    assert isinstance(scaffolder, dg.Scaffolder)
    scaffolder.scaffold(request)
    return folder / "defs.yaml"


def cloned_project(target: Path) -> Path:
    """Return a copy of this project whose `defs/` a test may write to."""
    # Exclude hidden files and caches, because other tests may be writing them, and build and download folders, because
    # they may be large.
    ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build")
    return Path(shutil.copytree(PROJECT_ROOT, target, ignore=ignored))


class Bound:
    """The definitions of some datasets, bound to a storage, created once per declaration as a code location does.

    Creating them and their job takes a quarter of a run with tiny data.
    """

    def __init__(self) -> None:
        self._of: list[object] = []
        self._made = dg.Definitions()

    def definitions(self, components: Sequence[DatasetComponent], storage: StorageResource) -> dg.Definitions:
        """Return the definitions: the same object while declarations and storage are the same objects."""
        of = [*(component.declaration for component in components), storage]
        if len(of) != len(self._of) or any(one is not other for one, other in zip(of, self._of, strict=True)):
            built = [component.build_defs(None) for component in components]  # type: ignore[arg-type]
            self._made = dg.Definitions.merge(*built, dg.Definitions(resources=create_resources(storage)))
            self._of = of
        return self._made


@dataclass
class Project:
    """The definitions of one dataset with its instance and its storage; `root` is the folder of a local storage."""

    corpus: CorpusDeclaration
    instance: dg.DagsterInstance
    root: Path
    storage: StorageResource
    _bound: Bound = field(default_factory=Bound, init=False, repr=False, compare=False)

    @property
    def store(self) -> ArtifactStore:
        """The store of its artifacts."""
        return resolve_variables(self.storage).artifacts(self.corpus.storage)

    def key(self, name: str, split: str | None = None) -> dg.AssetKey:
        """Return the key of one of its assets."""
        return dg.AssetKey(build_asset_path(self.corpus.dataset, name, split))

    @property
    def definitions(self) -> dg.Definitions:
        """The component's definitions bound to the storage."""
        return self._bound.definitions([self.component], self.storage)

    @property
    def component(self) -> DatasetComponent:
        """The component, newly created."""
        return TokenizedCorpus(self.corpus)

    @property
    def specs(self) -> Sequence[ArtifactSpec]:
        """The artifacts of the dataset."""
        return self.component.specs

    def run(self, names: Sequence[dg.AssetKey], shards: tuple[str, str] | None = None) -> dg.ExecuteInProcessResult:
        """Materialize assets with their checks, for a range of shards if they are partitioned."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            asset_selection=list(names),
            tags=range_tags(shards or ()),
            instance=self.instance,
            raise_on_error=False,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )

    def shards(self, split: str) -> list[str]:
        """Return the partition keys of a split."""
        return load_manifest(self.corpus, self.store).partitions(split)

    def tokenize(self, split: str) -> dg.ExecuteInProcessResult:
        """Build snapshot and token bins of a whole split in one run."""
        shards = self.shards(split)
        return self.run([self.key("snapshot", split), self.key("token_bins", split)], (shards[0], shards[-1]))

    def run_all(self) -> None:
        """Build everything; each run must succeed."""
        key = self.key
        assert self.run([key("manifest"), key("engine_certificate")]).success
        for split in self.corpus.splits:
            assert self.tokenize(split).success
        assert self.run([key("combined_bins", s) for s in self.corpus.splits]).success
        assert self.run([*(key(f"{view}_bins") for view in self.corpus.views), key("data_card")]).success

    def directory(self, artifact: str, partition: str | None = None) -> Path:
        """Return the directory of an artifact."""
        return self.corpus.artifact(artifact, partition).directory(self.root)

    def checks(self, outcome: dg.ExecuteInProcessResult) -> Mapping[str, dg.AssetCheckEvaluation]:
        """Return the evaluations of a run by check name."""
        return {e.check_name: e for e in outcome.get_asset_check_evaluations()}


def range_tags(partitions: Sequence[str]) -> dict[str, str]:
    """Return the run tags that select these consecutive partitions; empty for an unpartitioned run."""
    if not partitions:
        return {}
    return {"dagster/asset_partition_range_start": partitions[0], "dagster/asset_partition_range_end": partitions[-1]}


def failure_of(outcome: dg.ExecuteInProcessResult) -> str:
    """Return the messages of the failed steps of a run."""
    texts = []
    for event in outcome.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            texts.append(str(data.error) + str(data.user_failure_data))
    return " ".join(texts)


def evaluated(specs: Iterable[ArtifactSpec], storage: StorageResource) -> Iterator[dg.AssetCheckEvaluation]:
    """Return all checks of the current artifacts, as a run of only the checks evaluates them, without that run."""
    for spec in specs:
        if spec.checks:
            store = spec.declaration.store(storage)
            for name, finding in examine_artifact(spec, store, spec.slots(store), is_rebuild=True).items():
                yield build_check_evaluation(spec, store, name, finding)


def differing_versions(specs: Iterable[ArtifactSpec], store: ArtifactStore) -> dict[str, set[int]]:
    """Return the artifacts whose receipts have other versions than their specs, with the versions of the receipts."""
    found = {}
    for spec in specs:
        receipts = store.receipts(spec.artifacts(store))
        versions = {receipt.recipe["version"] for receipt in receipts if receipt is not None}
        if versions - {spec.version}:
            found["/".join(spec.path)] = versions
    return found


@contextmanager
def new_instance(home: Path | None = None) -> Iterator[dg.DagsterInstance]:
    """Yield an instance in memory, or on disk in `home` for tests that read its files."""
    if home is None:
        with dg.DagsterInstance.ephemeral() as instance:
            yield instance
        return
    home.mkdir(parents=True, exist_ok=True)
    (home / "dagster.yaml").write_text(json.dumps({"telemetry": {"enabled": False}}))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


@contextmanager
def project(
    attributes: Mapping[str, Any], folder: Path, storage: StorageResource | None = None, home: Path | None = None
) -> Iterator[Project]:
    """Yield a project in a folder, on a `new_instance`, with its artifacts in the folder or in `storage`."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = validate_declaration(CorpusDeclaration, attributes, folder / "defs.yaml")
    with new_instance(home) as instance:
        root = folder / "artifacts"
        yield Project(corpus, instance, root, storage or StorageResource(root=str(root)))
