"""MaxText's `train.main`, run as it is with some lines of settings, and what it read: for `pinned.run_apart`.

Every batch that its `DataLoader` gives to a train step is kept. A run that is to stop ends when it asks for the batch
of a step, as one that is killed there: what it has stored by then is what the next run finds.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.serving.sampler import maxtext as loader

COLUMNS = ("inputs", "targets", "targets_segmentation")


class StoppedError(Exception):
    """The run must end here."""


def main() -> None:
    """Run the process: `[{"line", "out", "stop"}, …]` in, for each run the number of batches that it read out.

    `line` has the settings, `out` the folder of the batches, `stop` the maximum number of batches, or null.
    """
    os.environ.update(JAX_PLATFORMS="cpu", DECOUPLE_GCLOUD="TRUE")
    runs = json.load(sys.stdin)
    # MaxText also prints to standard output, so the answer is a file.
    from maxtext.common import data_loader
    from maxtext.trainers.pre_train import train

    loader.install()
    given = data_loader.DataLoader.load_next_batch
    now: dict[str, Any] = {}

    def kept(self: Any, *arguments: Any, **options: Any) -> Any:
        if now["read"] == now["stop"]:
            raise StoppedError
        batch = given(self, *arguments, **options)
        np.savez(Path(now["out"]) / f"{now['read']:03d}.npz", **{name: np.asarray(batch[name]) for name in COLUMNS})
        now["read"] += 1
        return batch

    data_loader.DataLoader.load_next_batch = kept
    answer = []
    for run in runs:
        now |= {"out": run["out"], "stop": run["stop"], "read": 0}
        Path(run["out"]).mkdir(parents=True)
        try:
            train.main(["train", *run["line"]])
        except StoppedError:
            assert run["stop"] is not None
        answer.append(now["read"])
    Path(sys.argv[1]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
