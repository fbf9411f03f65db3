"""A plan follows its source: shards keep their files, new files make new shards, and names do not shift."""

import random

import pytest

from dataprep_assets.planning.manifest import ManifestEntry, ShardSizing, SourceFile, build_manifest, plan_shards

SPLITS = {"train": ["train/**"], "val": ["val/**"]}


def listed(files: dict[str, int]) -> list[ManifestEntry]:
    found = [SourceFile(relpath=path, size_bytes=size) for path, size in files.items()]
    return build_manifest(found, include=["**"], splits=SPLITS)


class Corpus:
    """Files with their plan, which is updated after every change."""

    def __init__(self, sizing: ShardSizing, **files: int) -> None:
        self.sizing = sizing
        self.files = {f"{name.replace('_', '/')}.jsonl": size for name, size in files.items()}
        self.shards: dict[str, list[str]] = {}
        self.plan(append=False)

    def plan(self, *, append: bool = True) -> dict[str, list[str]]:
        """Return partition key → paths of its files, in order."""
        entries, plan = plan_shards(listed(self.files), self.sizing, self.shards if append else None)
        assert [e.ordinal for e in entries] == list(range(len(self.files)))
        assert [o for ordinals in plan.values() for o in ordinals] == list(range(len(self.files)))
        for split in SPLITS:
            assert [e.file_index for e in entries if e.split == split] == list(
                range(sum(e.split == split for e in entries))
            )
        self.shards = {key: [entries[o].relpath for o in ordinals] for key, ordinals in plan.items()}
        return self.shards


@pytest.fixture
def corpus() -> Corpus:
    return Corpus(ShardSizing(count=2), train_1=10, train_2=10, train_3=10, train_4=10, val_1=10)


def test_a_new_file_makes_a_new_shard_and_changes_no_other(corpus: Corpus) -> None:
    before = dict(corpus.shards)
    corpus.files["train/0.jsonl"] = 10  # the new file is first in natural order
    assert corpus.plan() == {
        "train-00000": ["train/1.jsonl", "train/2.jsonl"],
        "train-00001": ["train/3.jsonl", "train/4.jsonl"],
        "train-00002": ["train/0.jsonl"],
        "val-00000": ["val/1.jsonl"],
    }
    assert before.items() < corpus.shards.items()


def test_a_removed_file_leaves_its_shard_and_an_empty_shard_leaves_the_plan(corpus: Corpus) -> None:
    del corpus.files["train/1.jsonl"]
    assert corpus.plan()["train-00000"] == ["train/2.jsonl"]
    del corpus.files["train/2.jsonl"]
    assert list(corpus.plan()) == ["train-00001", "val-00000"]
    corpus.files["train/9.jsonl"] = 10
    assert list(corpus.plan()) == ["train-00001", "train-00002", "val-00000"]


def test_new_shards_have_the_size_of_old_ones_or_the_declared_size(corpus: Corpus) -> None:
    corpus.files |= {f"train/{n}.jsonl": 10 for n in range(10, 16)}
    assert [len(paths) for key, paths in corpus.plan().items() if key.startswith("train")] == [2, 2, 2, 2, 2]
    declared = Corpus(ShardSizing(target_bytes=30), train_1=10, train_2=10, train_3=10, val_1=10)
    declared.files |= {f"train/{n}.jsonl": 10 for n in range(10, 16)}
    assert [len(paths) for paths in declared.plan().values()] == [3, 3, 3, 1]


def test_a_file_moved_to_another_split_counts_as_new(corpus: Corpus) -> None:
    del corpus.files["train/3.jsonl"]
    corpus.files["val/3.jsonl"] = 10
    assert corpus.plan() == {
        "train-00000": ["train/1.jsonl", "train/2.jsonl"],
        "train-00001": ["train/4.jsonl"],
        "val-00000": ["val/1.jsonl"],
        "val-00001": ["val/3.jsonl"],
    }


def test_without_an_earlier_plan_all_shards_are_planned_again(corpus: Corpus) -> None:
    corpus.files["train/0.jsonl"] = 10
    assert list(corpus.plan(append=False)) == ["train-00000", "train-00001", "val-00000"]


@pytest.mark.parametrize("seed", range(30))
def test_no_change_of_files_moves_a_file_to_another_shard(seed: int) -> None:
    rng = random.Random(seed)
    sizing = rng.choice([ShardSizing(count=3), ShardSizing(target_bytes=40), ShardSizing()])
    corpus = Corpus(sizing, train_0=10, val_0=10)
    number = 1
    for _ in range(40):
        for _ in range(rng.randrange(4)):
            corpus.files[f"{rng.choice(['train', 'val'])}/{number}.jsonl"] = rng.randrange(30)
            number += 1
        for path in rng.sample(sorted(corpus.files), min(len(corpus.files), rng.randrange(3))):
            split = path.partition("/")[0]
            if sum(other.startswith(split) for other in corpus.files) > 1:
                del corpus.files[path]
        before = {path: key for key, paths in corpus.shards.items() for path in paths}
        after = {path: key for key, paths in corpus.plan().items() for path in paths}
        assert after.keys() == corpus.files.keys()
        assert {path: after[path] for path in before if path in after} == {
            p: k for p, k in before.items() if p in after
        }
        new = {after[path] for path in after if path not in before}
        assert not new & set(before.values())
        assert corpus.plan() == corpus.plan()
