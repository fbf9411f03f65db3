"""Each sample blend in Dagster, killed repeatedly with -9, gives the bytes of an undisturbed run, which trainers can
read.
"""

import json
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import dataprep_assets
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets_tests import forked
from dataprep_assets_tests.faults.armed import make_armed_environment, read_log
from dataprep_assets_tests.pipelines.blend.blend_project import STAGES, load_sample_blend
from dataprep_assets_tests.pipelines.blend.dagster_blend import open_blend
from dataprep_assets_tests.pipelines.blend.pipeline import list_prefixes
from dataprep_assets_tests.pipelines.blend.sft.conversations import decode_trained, find_answers, read_consumed
from dataprep_assets_tests.pipelines.corpus.pipeline import debris, products, receipts
from dataprep_assets_tests.project import failure_of
from dataprep_assets_tests.readers.megatron import drawn_from_blend, indexed_documents
from dataprep_assets_tests.tools.sample.make_sample_blends import sample_rows

pytestmark = pytest.mark.slow

SAMPLES = Path(dataprep_assets.__file__).parent / "defs" / "samples"
MOMENTS = (0.2, 0.5)
"""The write at which each run is killed, as a share of those of an undisturbed run. Each run resumes the last one, so
the kills fall into the first half and the end of the work."""


@dataclass(frozen=True)
class Run:
    """A run in its own process: its exit, and the number of writes that its own process made below the root."""

    code: int
    points: int
    errors: str


def run(home: Path, stage: str, root: Path, at: int = 0) -> Run:
    """Materialize a sample blend; kill it at the write `at` (0: never)."""
    command = ["-m", "dataprep_assets_tests.pipelines.blend.blend_project", stage, root]
    done = forked.run(command, env=make_armed_environment(home, root, at=at), timeout=600)
    return Run(done.returncode, len(read_log(home, "parent")), done.stderr[-3000:])


def read_artifacts(root: Path) -> dict[str, bytes]:
    """Return every file of every artifact, except files such as `blend.json` that contain the path of the run.

    Also without the card, which contains the digests of these files.
    """
    return {n: d.replace(str(root).encode(), b"ROOT") for n, d in products(root).items() if "/data_card/" not in n}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Run]]:
    """Return the root and the run of every stage."""
    homes = [tmp_path_factory.mktemp(stage) for stage in STAGES]
    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(lambda stage, home: run(home / "run", stage, home / "root"), STAGES, homes))
    assert {made.code for made in runs} == {0}, [made.errors for made in runs]
    return {stage: (home / "root", made) for stage, home, made in zip(STAGES, homes, runs, strict=True)}


def run_directory(stage: str, root: Path) -> Path:
    store, declaration = LocalArtifacts(root), load_sample_blend(stage)
    plan = load_blend_plan(declaration, store)
    return store.directory(declaration.artifact("runs", plan.run_hash))


# The kills of `test_determinism` and `sft/test_kills` are in the other two stages.
@pytest.mark.parametrize("stage", ["pretrain", "pairs"])
def test_a_blend_killed_twice_gives_the_bytes_of_an_undisturbed_run(
    undisturbed: dict[str, tuple[Path, Run]], tmp_path: Path, stage: str
) -> None:
    wanted, whole = undisturbed[stage]
    root = tmp_path / "root"
    for number, share in enumerate(MOMENTS):
        killed = run(tmp_path / f"killed {number}", stage, root, int(whole.points * share))
        assert killed.code == -signal.SIGKILL, f"run {number} was not killed: {killed.errors}"
        # Test this only after the first kill, because a later kill may happen when the run is finished and views are
        # written.
        assert number or not has_run_directory(stage, root)
    finished = read_receipt_times(root)
    with open_blend(load_sample_blend(stage), root) as again:
        outcomes = again.run_all()
        assert outcomes[-1].success, failure_of(outcomes[-1])
    assert finished
    # The last run must not rebuild artifacts that the killed runs finished.
    assert finished.items() <= read_receipt_times(root).items()
    assert read_artifacts(root) == read_artifacts(wanted)
    assert remove_paths(receipts(root), root) == remove_paths(receipts(wanted), wanted)
    assert debris(root, after_a_kill=True) == []


def read_receipt_times(root: Path) -> dict[Path, int]:
    """Return the time at which the receipt of each finished artifact was written."""
    return {path: path.stat().st_mtime_ns for path in root.rglob("receipt.json") if STAGING not in path.parts}


def has_run_directory(stage: str, root: Path) -> bool:
    """Return whether a finished run exists, which a killed run must not leave."""
    return any((root / f"sample_blend_{stage}" / "runs").glob("*/receipt.json"))


def remove_paths(found: dict[str, dict[str, Any]], root: Path) -> Any:
    """Return receipts without the digests of files that contain the path of the run."""
    names_places = ("/runs/", "/data_card", "/rl_manifest")
    placed = {name: value for name, value in found.items() if not any(place in name for place in names_places)}
    return json.loads(json.dumps(placed).replace(str(root), "ROOT"))


def test_megatron_trains_on_the_blend_json_of_the_run(undisturbed: dict[str, tuple[Path, Run]], tmp_path: Path) -> None:
    directory = run_directory("pretrain", undisturbed["pretrain"][0])
    bundle = TokenizerBundle.load(SAMPLES / "sample_corpus" / "tokenizer")
    eos = bundle.find_token("<|endoftext|>", key="separator").id
    stored = Counter()
    for prefix in list_prefixes(directory):
        for document in indexed_documents(Path(prefix))[0]:
            ids = document.tolist()
            assert ids[-1] == eos
            stored[bundle.decode(ids[:-1])] += 1
    texts = Counter(
        row.get("text", row.get("body"))
        for name, rows in sample_rows()
        if "sample_blend_pretrain" in name
        for row in rows
    )
    assert stored == texts
    found = drawn_from_blend(directory, 400, tmp_path / "cache")
    assert found["type"] == "BlendedDataset"
    assert found["counts"]["tales"] / 400 == pytest.approx(0.75, abs=0.01)
    assert all(found["lengths"])


def test_the_bridges_rule_trains_exactly_the_texts_of_the_assistant(undisturbed: dict[str, tuple[Path, Run]]) -> None:
    directory = run_directory("sft", undisturbed["sft"][0])
    bundle = TokenizerBundle.load(SAMPLES / "sample_blend_sft" / "tokenizer")
    said = Counter(
        text for name, rows in sample_rows() if "sample_blend_sft" in name for row in rows for text in find_answers(row)
    )
    shards = sorted((undisturbed["sft"][0] / "sample_blend_sft" / "packed_sft").glob("*/*.parquet"))
    every = [row for path in shards for row in pq.read_table(path).to_pylist()]
    assert Counter(decode_trained(every, bundle)) == said
    for split in ("train", "valid"):
        rows = [
            row for path in sorted((directory / "splits" / split).iterdir()) for row in pq.read_table(path).to_pylist()
        ]
        assert rows
        assert not Counter(decode_trained(rows, bundle)) - said
        assert all(len(row["input_ids"]) - len(row["seq_start_id"]) <= 512 for row in rows)
        assert all(any(mask) for _, _, mask in read_consumed(rows))


def test_the_manifest_of_an_rl_run_lists_every_task_once(undisturbed: dict[str, tuple[Path, Run]]) -> None:
    directory = run_directory("rl", undisturbed["rl"][0])
    manifest = json.loads((directory / "shards.json").read_bytes())
    wanted = {"train": Counter[str](), "val": Counter[str]()}
    for name, rows in sample_rows():
        if "sample_blend_rl" in name:
            split = "val" if "validation" in name else "train"
            wanted[split].update(json.dumps(row["responses_create_params"]["input"], sort_keys=True) for row in rows)
    for split, counted in wanted.items():
        found: Counter[str] = Counter()
        for listed in manifest[split]:
            path = Path(listed)
            compression = "zstd" if path.suffix == ".zst" else None
            for block in read_rows(path, format="jsonl", compression=compression, label=path.name):
                found.update(json.dumps(row["responses_create_params"]["input"], sort_keys=True) for row in block.rows)
        assert found == counted
    assert manifest["test"] == []
