"""The artifact `<dataset>/rl_jsonl`, one partition per shard: RL records, one JSON line each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dataprep_assets.errors import ConfigError
from dataprep_assets.execution.jobs import Outcome, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.pipelines.blend.blend_shards import BlendShards
from dataprep_assets.pipelines.blend.blend_snapshot import shard_parts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.blend.rl.options import RESOLVE
from dataprep_assets.pipelines.blend.rl.placeholders import fetch_sources
from dataprep_assets.pipelines.blend.rl.rl_jsonl_proofs import RL_JSONL_PROOFS, prove_rl_jsonl
from dataprep_assets.pipelines.blend.rl.shard import VERSION, RlShard, build_rl_shard
from dataprep_assets.pipelines.blend.rl.transforms import (
    Declared,
    DeclaredTransform,
    declared_sources,
    fingerprint,
    parse,
)
from dataprep_assets.stream.shard_job import whole_shard_jobs
from dataprep_assets.stream.token_stream import Fetch

_MADE = {
    "sft": {"input": "string", "output": "string"},
    "openai_chat": {"messages": "list<object>"},
    "sharegpt": {"conversations": "list<object>"},
    "nemotron_rl": {"messages": "list<object>", "tools": "list<object>"},
}
_AS_IN_THE_SOURCE = "any"


def columns_after(declared: Declared) -> Mapping[str, str]:
    """Name → type of each column of the records that these transforms give; empty if the source or a user's function
    decides. `any` is the type of a column that is copied from the source."""
    columns: dict[str, str] = {}
    try:
        for transform in parse(declared):
            columns = _after(transform, columns)
    except ConfigError:  # the plan refuses such transforms, and says why
        return {}
    return columns


def _after(transform: DeclaredTransform, before: Mapping[str, str]) -> dict[str, str]:
    if transform.name in ("passthrough", RESOLVE):
        return dict(before)
    options = transform.options
    if transform.name == "select" and isinstance(options, list):
        return {name: before.get(name, _AS_IN_THE_SOURCE) for name in options}
    if transform.name == "rename" and isinstance(options, Mapping):
        return {new: before.get(old, _AS_IN_THE_SOURCE) for new, old in options.items()}
    made = dict(_MADE.get(transform.name, {}))
    if transform.name == "sft" and isinstance(options, Mapping) and options.get("system"):
        made["system"] = "string"
    return made


RL_JSONL = "rl_jsonl"


def rl_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[RlShard]:
    """The shards with these partition keys, ready to build, with placeholder sources fetched.

    `blend` is the declaration, `store` holds the artifacts, `plan` is the committed plan. Raises MissingArtifactError
    without a snapshot.
    """
    options = blend.rl_options
    digests = blend.source_digests()
    # fetched before the fingerprint, which takes over what was listed: so the key is of the files that are read
    placeholders = fetch_sources(declared_sources(options.transforms), blend.sources, digests)
    made_of = digest_value(fingerprint(options.transforms, blend.sources, digests, placeholders))
    return [
        RlShard(
            artifact=blend.artifact(RL_JSONL, partition),
            store=store,
            files=shard_parts(blend, store, plan, partition),
            transforms=options.transforms,
            fingerprint=made_of,
            placeholders=placeholders,
            compression=options.compression,
            bad_records=blend.bad_records.policy,
            budget=blend.bad_records.budget,
            source_bytes=plan.find(partition)[1].total_bytes,
            salt=blend.force,
            rules=options.rules,
            level=blend.prove.level,
        )
        for partition in partitions
    ]


def build_rl_shards(
    shards: Sequence[RlShard],
    *,
    workers: int,
    engine: TaskEngine = ON_PROCESSES,
    verification: Verification = "full",
    fetches: Mapping[str, Fetch] | None = None,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Build the shards that are not current, one task each.

    Args:
        shards: The shards to build.
        workers: Number of workers.
        engine: Who does the work.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetches: Partition → a function that fetches its sources to a worker on another machine.
        progress: Counts and shows the work; None: nothing is shown.

    Yields each shard's outcome as soon as it is verified, built or failed. A failed shard does not stop the others. A
    shard whose workers keep dying does (WorkerDiedError); finished shards are kept.
    """
    jobs = whole_shard_jobs(shards, build_rl_shard, verification, fetches)
    return run_tasks(jobs, workers=workers, engine=engine, progress=progress)


RL_JSONL_SHARDS = BlendShards(
    name=RL_JSONL,
    description="Records of each shard, through the declared transforms.",
    kinds={"json"},
    shards=rl_shards,
    build=build_rl_shards,
    proofs=RL_JSONL_PROOFS,
    prove=lambda _: prove_rl_jsonl,
    version=VERSION,
    columns=lambda blend: columns_after(blend.rl_options.transforms),
)
