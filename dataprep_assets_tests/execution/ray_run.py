"""Run the assets of a corpus: `python -m dataprep_assets_tests.execution.ray_run CORPUS FOLDER SHARDS [ENGINE]`.

ENGINE is the dataset's `run_on`; without it the environment decides. The first line of output says whether Ray was
used. Then follow the partition of each shard and whether it was built, or the errors that ended the run. It is its own
process, because a Ray cluster is tied to its driver.
"""

import sys
from pathlib import Path

import dagster as dg

from dataprep_assets_tests.deploy.tiny_corpus import make_attributes
from dataprep_assets_tests.project import project


def main(arguments: list[str]) -> int:
    """Run the assets; return 1 if the run failed."""
    corpus, folder, shards, *engine = arguments
    declared = make_attributes(Path(corpus), int(shards), views=[], **({"run_on": engine[0]} if engine else {}))
    with project(declared, Path(folder)) as made:
        key = made.key
        if not made.run([key("manifest"), key("engine_certificate")]).success:
            return 1
        outcome = made.tokenize("train")
    print(f"ray: {'ray' in sys.modules}")
    for event in outcome.get_step_failure_events():
        data = event.step_failure_data
        print((data.error.cause or data.error).message if data.error else data.user_failure_data)
    for event in outcome.asset_materializations_for_node("tiny__token_bins_train") if outcome.success else ():
        reused = event.metadata["reused"]
        assert isinstance(reused, dg.BoolMetadataValue)
        print("reused" if reused.value else "built", event.partition)
    return int(not outcome.success)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
