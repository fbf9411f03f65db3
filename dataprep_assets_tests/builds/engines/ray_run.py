"""`python -m dataprep_assets_tests.builds.engines.ray_run CORPUS ROOT SHARDS CPUS`: token bins on a local Ray cluster.

Prints the partition of each shard as it is finished, or the error that ended the run. A process of its own, because a
Ray cluster lives in its driver.
"""

import sys
from pathlib import Path

from dataprep_assets.builds.corpus import CorpusDeclaration
from dataprep_assets.builds.engine_certificate import build_engine_certificate, load_certificate, stream_plan
from dataprep_assets.builds.engines.whole_shards import build_on_engine
from dataprep_assets.builds.manifest import build_manifest_artifact, load_manifest
from dataprep_assets.builds.shard_work import shard_works
from dataprep_assets.builds.snapshot import build_snapshot
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets_tests.deploy.tiny_corpus import attributes


def main(arguments: list[str]) -> int:
    """The command; 1 when a shard failed or a worker died for good."""
    folder, root, shards, cpus = arguments
    corpus = CorpusDeclaration.model_validate(attributes(Path(folder), int(shards)))
    store = LocalArtifacts(Path(root))
    build_manifest_artifact(corpus, store)
    manifest = load_manifest(corpus, store)
    for partition in manifest.plan:
        build_snapshot(corpus, store, manifest, partition)
    build_engine_certificate(corpus, store, manifest)
    works = shard_works(corpus, store, manifest, stream_plan(corpus, load_certificate(corpus, store)), manifest.plan)
    try:
        for result in build_on_engine(corpus, manifest, works, workers=int(cpus), declared="ray"):
            if result.error is not None:
                print(f"failed {result.partition}: {result.error}", flush=True)
                return 1
            print("reused" if result.reused else "built", result.partition, flush=True)
    except DataprepError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
