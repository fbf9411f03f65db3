"""Training blends on a Dagster instance that tests materialize, check and read."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import dagster as dg

from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.partitions import job_name
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, load_blend_plan
from dataprep_assets.resources import StorageResource
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.project import Bound, evaluated
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tools.sample.make_sample_blends import plain_chat, task

REFERENCE = {"engine_certificate.fast_engine_accepted"}
"""The check that fails, as a report, with the reference engine, which avoids a certification in these tests."""
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass
class Blend:
    """A declared blend with its storage and its Dagster instance."""

    declaration: BlendDeclaration
    root: Path
    instance: dg.DagsterInstance
    _bound: Bound = field(default_factory=Bound, init=False, repr=False, compare=False)

    @cached_property
    def storage(self) -> StorageResource:
        """The store of its artifacts, as a resource."""
        return StorageResource(root=str(self.root))

    @property
    def component(self) -> TrainingBlend:
        """Its component, newly created."""
        return TrainingBlend(self.declaration)

    @property
    def store(self) -> LocalArtifacts:
        """The store of its artifacts."""
        return LocalArtifacts(self.root)

    @property
    def plan(self) -> BlendPlan:
        """The committed plan."""
        return load_blend_plan(self.declaration, self.store)

    @property
    def definitions(self) -> dg.Definitions:
        """The component's definitions, bound to the storage."""
        return self._bound.definitions([self.component], self.storage)

    def key(self, name: str) -> dg.AssetKey:
        """Return the key of one of its assets."""
        return dg.AssetKey([self.declaration.dataset, name])

    def stale(self) -> list[str]:
        """Return the names of its stale artifacts."""
        return [one.name for one in find_stale(self.component.specs, self.store)]

    def directory(self, name: str, partition: str | None = None) -> Path:
        """Return the directory of an artifact."""
        return self.store.directory(self.declaration.artifact(name, partition))

    @property
    def run_directory(self) -> Path:
        """The directory of the finished blend."""
        return self.directory("runs", self.plan.run_hash)

    def run_all(self) -> list[dg.ExecuteInProcessResult]:
        """Execute the job of the blend as `dataprep run` does."""
        job = self.definitions.resolve_job_def(job_name(self.declaration.dataset))
        return [job.execute_in_process(instance=self.instance, raise_on_error=False, run_config=QUIET)]

    def check(self) -> dict[str, dg.AssetCheckEvaluation]:
        """Run all checks on the current artifacts: `<asset>.<check>` → its evaluation."""
        return group_by_name(evaluated(self.component.specs, self.storage))

    def metadata(self, asset: str, partition: str | None = None) -> Mapping[str, Any]:
        """Return the metadata of the last materialization."""
        (record,) = self.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=self.key(asset), asset_partitions=[partition] if partition else None),
            limit=1,
        ).records
        assert record.asset_materialization is not None
        return {name: shown.value for name, shown in record.asset_materialization.metadata.items()}


def read_evaluations(outcomes: list[dg.ExecuteInProcessResult]) -> dict[str, dg.AssetCheckEvaluation]:
    """Return `<asset>.<check>` → its evaluation in some runs."""
    return group_by_name(e for outcome in outcomes for e in outcome.get_asset_check_evaluations())


def group_by_name(found: Iterable[dg.AssetCheckEvaluation]) -> dict[str, dg.AssetCheckEvaluation]:
    """Return `<asset>.<check>` → its evaluation."""
    return {f"{e.asset_key.path[-1]}.{e.check_name}": e for e in found}


def find_failed(found: Mapping[str, dg.AssetCheckEvaluation]) -> set[str]:
    """Return the checks that did not pass."""
    return {name for name, evaluation in found.items() if not evaluation.passed}


def read_rows(value: Any) -> list[dict[str, Any]]:
    """Return the rows of a metadata table."""
    return [dict(record.data) for record in value.records]


@contextmanager
def open_blend(declaration: BlendDeclaration, root: Path) -> Iterator[Blend]:
    """Yield a blend with its own instance in memory."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Blend(declaration, root, instance)


def declare_chats(folder: Path, **changes: Any) -> BlendDeclaration:
    """Return an SFT blend of two sources of plain conversations."""
    if not folder.exists():
        for name, count in (("first", 24), ("second", 24)):
            write_rows(folder / f"{name}.jsonl", [plain_chat(Random(f"{name} {n}"), n) for n in range(count)])
        write_chat_tokenizer(folder / "tokenizer")
    return BlendDeclaration.model_validate(
        {
            "dataset": "small_sft",
            "stage": "sft",
            "blend": {"datasets": [{"name": n, "path": str(folder / f"{n}.jsonl")} for n in ("first", "second")]},
            "tokenizer": {"path": folder / "tokenizer", "engine": "tokenizers"},
            "sft": {"pack_size": 256, "chat_template": "chatml_reasoning"},
            "num_shards": 3,
            "tolerance": 0.2,
            **changes,
        }
    )


def declare_tasks(folder: Path, **changes: Any) -> BlendDeclaration:
    """Return an RL blend of one source with a validation split."""
    if not folder.exists():
        for split, count in (("train", 20), ("validation", 6)):
            write_rows(folder / f"{split}.jsonl", [task(Random(f"{split} {n}"), n) for n in range(count)])
    return BlendDeclaration.model_validate(
        {
            "dataset": "small_rl",
            "stage": "rl",
            "blend": {"datasets": [{"name": "knots", "path": str(folder)}]},
            "rl": {"transforms": ["nemotron_rl"]},
            "num_shards": 2,
            **changes,
        }
    )
