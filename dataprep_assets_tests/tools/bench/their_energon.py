"""Megatron-Energon's own loader for `resumption --energon PYTHON`: runs in an environment in which it is installed.

Reads from standard input the folder of the sources and the phases of a run, as JSON, and writes the samples that every
phase read, in the order of steps, and the bytes of the state; or what was raised where a state was refused. It imports
nothing of this project, which need not be installed there.
"""

import contextlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

SHARD = 200
"""The number of samples in a tar file."""


def write(folder: Path, first: int, count: int) -> None:
    """Write a source of tar files, each sample a text with its number, and Energon's index of it."""
    folder.mkdir(parents=True)
    for shard in range(0, count, SHARD):
        with tarfile.open(folder / f"{shard // SHARD:04}.tar", "w") as tar:
            for number in range(first + shard, first + min(shard + SHARD, count)):
                data = str(number).encode()
                member = tarfile.TarInfo(f"{number:06}.txt")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    line = [str(Path(sys.executable).parent / "energon"), "prepare", "--non-interactive", "--split-parts", "train:.*"]
    line += ["--sample-type", "TextSample", "--field-map", '{"text": "txt"}', str(folder)]
    subprocess.run(line, check=True, capture_output=True)


def loader(folder: Path, phase: dict[str, Any], rank: int) -> Any:
    """Return the loader of a rank over both sources with the weights of a phase."""
    from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

    sources = []
    for name, weight, count in zip("ab", phase["weights"], phase["sizes"], strict=True):
        sources.append(f"      - {{weight: {weight}, path: {folder / f'energon-{name}-{count}'}}}\n")
    blend = folder / "blend.yaml"
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
    blend.write_text(head + "".join(sources))
    worker = WorkerConfig(rank=rank, world_size=phase["ranks"], num_workers=0)
    dataset = get_train_dataset(
        blend,
        worker_config=worker,
        batch_size=phase["batch"] // phase["ranks"],
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
    )
    return get_savable_loader(dataset)


def read(folder: Path, phases: list[dict[str, Any]]) -> tuple[list[int], int]:
    """Return the samples of all phases, and the bytes of the first rank's state."""
    import pickle

    found: list[int] = []
    states: list[Any] = []
    for phase in phases:
        ranks = [loader(folder, phase, rank) for rank in range(phase["ranks"])]
        for one in ranks if states else ():
            one.restore_state_global(states)  # each rank takes its own state from the list, as in a training run
        batches = [iter(one) for one in ranks]
        for _ in range(phase["samples"] // phase["batch"]):
            for one in batches:
                found += [int(text) for text in next(one).text]
        states = [one.save_state_rank() for one in ranks]
    return found, len(pickle.dumps(states[0]))


def main() -> None:
    """Read a request from standard input, and write the answer."""
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"])
    with contextlib.redirect_stdout(sys.stderr):
        for name, first, count in asked["sources"]:
            if not (place := folder / f"energon-{name}-{count}").exists():
                write(place, first, count)
        try:
            answer: dict[str, Any] = dict(zip(("read", "state"), read(folder, asked["phases"]), strict=True))
        except Exception as error:  # any error counts as a refusal of the state
            answer = {"refused": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
