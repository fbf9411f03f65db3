"""Near-duplicate rows of blends are dropped in every stage, and the kept rows depend only on the rows."""

import pickle
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.curation.duplicates.kept_set import compute_similarity, count_overlap
from dataprep_assets.curation.duplicates.removed_file import DUPLICATES, SIGNATURES
from dataprep_assets.engine.artifact.losses import find_losses
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import IntegrityError, NotFoundError
from dataprep_assets.pipelines.blend.duplicates import duplicates
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import DuplicateRows, load_duplicate_rows
from dataprep_assets.pipelines.blend.duplicates.duplicates import prepare_signed_rows
from dataprep_assets.pipelines.blend.duplicates.signed_rows import open_signed_rows
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.sft import spool
from dataprep_assets.pipelines.blend.sft.shard import SftShard
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.duplicated_blend import DuplicatedBlend, edit_words, make_rows, write_words
from dataprep_assets_tests.pipelines.blend.ruled_blend import BUILD, make_row
from dataprep_assets_tests.pipelines.blend.screened_blend import TOOLS, make_answer, make_user

pytest.importorskip("rensa", reason="the extra `duplicates`")

LIGHT = "rl"
"""The stage without a tokenizer, for properties that do not depend on the stage."""


def find_failing(made: DuplicatedBlend) -> dict[str, str]:
    """Return the failing checks of the signatures, the duplicates and the document table."""
    partitions = load_blend_plan(made.declaration, made.store).partitions
    return {
        f"{spec.name}.{name}": finding.summary
        for spec in made.dataset.specs
        if spec.name in (SIGNATURES, DUPLICATES, "documents")
        for name, finding in spec.examine(made.store, partitions if spec.partitions else None)
        if not finding.passed
    }


@pytest.mark.parametrize("stage", BUILD)
def test_one_row_of_each_group_is_kept_and_the_others_name_it(tmp_path: Path, stage: str) -> None:
    made = DuplicatedBlend(tmp_path, stage)
    made.run()
    rows = made.read_table()
    dropped_rows = [row for row in rows if row["reason"] == "duplicate"]
    kept_names = {f"{row['source']}/{row['file']}:{row['row']}" for row in rows if row["kept"]}
    assert len(rows) == len(make_rows(stage)) == len(kept_names) + len(dropped_rows)
    assert len(dropped_rows) == made.dropped()["duplicate"] == len(made.list_removed()) > 10
    assert {row["representative"] for row in dropped_rows} <= kept_names
    assert all(0.8 <= row["similarity"] <= 1 for row in dropped_rows)
    assert all(row["representative"] is row["similarity"] is None for row in rows if row["kept"])
    assert made.failing() == find_failing(made) == {}
    losses = [loss for loss in find_losses(made.dataset.specs, made.store) if loss.reason == "duplicate"]
    assert sum(loss.count for loss in losses) == len(dropped_rows)
    assert {(loss.action, loss.kind) for loss in losses} == {("dropped", "")}
    row = dropped_rows[0]
    with raises(NotFoundError, f"row {row['row']} of {row['file']}", "duplicate", row["representative"]):
        trace_documents(made.dataset.tracer(made.store), file=row["file"], row=row["row"])
    drops = made.dataset.documents(made.store).drops()
    assert drops is not None
    assert [(one.rule, one.documents) for one in drops.rules] == [("duplicate", len(dropped_rows))]
    assert made.run() == []
    # A run without deduplication keeps these rows.
    made.changes["duplicates"] = None
    made.run()
    assert made.dropped() == {}


def test_answers_make_conversations_different_and_shared_system_texts_do_not_make_them_equal(tmp_path: Path) -> None:
    random_numbers = random.Random(3)
    question = " ".join(write_words(random_numbers, 20))
    system = {"role": "system", "content": " ".join(write_words(random_numbers, 400))}
    answers = [make_answer(" ".join(write_words(random_numbers, 80))) for _ in range(6)]
    rows = [{"id": f"a{n}", "messages": [make_user(question), answer]} for n, answer in enumerate(answers)]
    rows += [
        {"id": f"s{n}", "messages": [system, make_user(" ".join(write_words(random_numbers, 9))), make_answer("Yes.")]}
        | {"tools": TOOLS}
        for n in range(6)
    ]
    made = DuplicatedBlend(tmp_path, "sft", {"text": "all"})
    made.changes["sft"] = {"pack_size": 4096, "chat_template": "chatml_reasoning"}
    made.lay_out(rows)
    made.build_duplicates()
    assert made.list_kept_ids() == {row["id"] for row in rows}
    made.changes["duplicates"] = {"text": "first_question"}
    made.build_duplicates()
    assert len(made.list_kept_ids()) == len(rows) - len(answers) + 1
    made.changes["duplicates"] = {"text": "answers"}
    made.build_duplicates()
    # The answers of the rows with a system message are equal.
    assert len(made.list_kept_ids()) == len(answers) + 1


def test_the_workers_of_all_steps_share_the_tokenizer_from_the_first_step_on(tmp_path: Path) -> None:
    made = DuplicatedBlend(tmp_path, "sft")
    made.lay_out(make_rows("sft"))
    with patch.object(duplicates, "build_in_tasks", wraps=duplicates.build_in_tasks) as build:
        made.build_duplicates()
    *_, prepare = build.call_args.args
    spool._load_tools.cache_clear()
    # A worker receives the function by pickle.
    pickle.loads(pickle.dumps(prepare))()
    partitions = load_blend_plan(made.declaration, made.store).partitions
    (rows, *_) = prepare_signed_rows(made.declaration, made.store, partitions)
    assert isinstance(rows.shard, SftShard)
    spool.load_tools(rows.shard.plan)
    assert spool._load_tools.cache_info()[:2] == (1, 1)


def build_changed(folder: Path, seed: int) -> set[str]:
    """Return the kept ids of the same rows in another layout, which depends on the seed."""
    random_numbers = random.Random(seed)
    made = DuplicatedBlend(folder, LIGHT, workers=1 + seed % 2, num_shards=random_numbers.randint(1, 3))
    rows = make_rows(LIGHT)
    random_numbers.shuffle(rows)
    layout = {"files": random_numbers.randint(3, 4), "first_share": random_numbers.uniform(0.2, 0.8)}
    if seed % 3 == 0:  # some rows are appended later
        made.lay_out(rows[: random_numbers.randint(8, len(rows) - 1)], **layout)
        made.build_duplicates()
    made.lay_out(rows, **layout)
    made.build_duplicates()
    return made.list_kept_ids()


def find_expected(folder: Path) -> set[str]:
    made = DuplicatedBlend(folder, LIGHT)
    made.build_duplicates()
    return made.list_kept_ids()


def test_order_shards_appends_and_workers_do_not_change_the_kept_rows(tmp_path: Path) -> None:
    expected = find_expected(tmp_path / "expected")
    assert 10 < len(expected) < len(make_rows(LIGHT))
    for seed in range(30):
        assert build_changed(tmp_path / f"changed{seed}", seed) == expected, seed


@pytest.mark.slow
def test_a_hundred_changes_do_not_change_the_kept_rows(tmp_path: Path) -> None:
    expected = find_expected(tmp_path / "expected")
    assert [seed for seed in range(30, 130) if build_changed(tmp_path / f"changed{seed}", seed) != expected] == []


def plant_pairs(pairs: int, seed: int) -> list[dict[str, Any]]:
    """Return pairs of rows whose questions differ in a share of their words, each with its own answer."""
    random_numbers, rows = random.Random(seed), list[dict[str, Any]]()
    for number in range(pairs):
        words = write_words(random_numbers)
        edited = edit_words(random_numbers, words, random_numbers.uniform(0.0, 0.06))
        for side, question in (("a", words), ("b", edited)):
            answer = make_answer(" ".join(write_words(random_numbers, 12)))
            rows.append({"id": f"{number}{side}", **make_row(LIGHT, " ".join(question), answer)})
    return rows


def measure_pairs(made: DuplicatedBlend, pairs: int) -> tuple[Any, Any]:
    """Return the similarity of the questions of each pair, and whether one of its rows was removed."""
    shingles: dict[str, Any] = {}
    plan = load_blend_plan(made.declaration, made.store)
    for rows in prepare_signed_rows(made.declaration, made.store, plan.partitions):
        opened = open_signed_rows(rows)
        labels = {source.ordinal: source.path for source in rows.sources}
        ids = {path: [line.split('"', 4)[3] for line in path.read_text().splitlines()] for path in labels.values()}
        for position, (ordinal, row) in enumerate(opened.origins.tolist()):
            shingles[ids[labels[ordinal]][row - 1]] = opened.signatures.get_shingles(position)
    overlaps = [count_overlap(shingles[f"{number}a"], shingles[f"{number}b"]) for number in range(pairs)]
    kept = made.list_kept_ids()
    removed = [not {f"{number}a", f"{number}b"} <= kept for number in range(pairs)]
    return np.array([compute_similarity(*overlap) for overlap in overlaps]), np.array(removed)


def test_planted_questions_are_found_as_the_bands_predict(tmp_path: Path) -> None:
    pairs = 1500
    made = DuplicatedBlend(tmp_path, LIGHT)
    made.lay_out(plant_pairs(pairs, seed=7))
    made.build_duplicates()
    similarities, removed = measure_pairs(made, pairs)
    is_above = similarities >= 0.8
    assert not removed[~is_above].any()
    assert made.declaration.duplicates is not None
    predicted = made.declaration.duplicates.banding.match_probability(similarities[is_above])
    deviation = np.sqrt((predicted * (1 - predicted)).sum())
    assert 300 < is_above.sum() < pairs - 300
    assert abs(removed[is_above].sum() - predicted.sum()) <= 4 * deviation


def test_a_column_decides_which_row_is_kept(tmp_path: Path) -> None:
    made = DuplicatedBlend(tmp_path, LIGHT, {"priority": {"column": "source", "order": ["second", "first"]}})
    rows = make_rows(LIGHT)
    made.lay_out([*rows[::2], *rows[1::2]])
    made.run()
    dropped_rows = [row for row in made.read_table() if row["reason"] == "duplicate"]
    assert {row["representative"].partition("/")[0] for row in dropped_rows if row["source"] == "second"} == {"second"}
    assert "second" in {row["representative"].partition("/")[0] for row in dropped_rows if row["source"] == "first"}
    assert find_failing(made) == {}


def test_rows_that_a_rule_drops_are_not_compared(tmp_path: Path) -> None:
    made = DuplicatedBlend(tmp_path, LIGHT, drop={"first": "source == 'first'"}, tolerance=1.0)
    made.lay_out(make_rows(LIGHT)[:3] * 2)
    made.build_duplicates()
    # The three questions are in both datasets, and only the rows of the second one are compared.
    assert {file[0] for file, _ in made.list_removed()} <= {"s"}


@pytest.mark.parametrize("stage", BUILD)
def test_a_removed_row_is_replaced_by_its_duplicate(tmp_path: Path, stage: str) -> None:
    made = DuplicatedBlend(tmp_path, stage)
    made.run()
    representative = next(row for row in made.read_table() if row["reason"] == "duplicate")["representative"]
    made.retract(representative)
    made.run()
    rows = {f"{row['source']}/{row['file']}:{row['row']}": row for row in made.read_table()}
    assert rows[representative]["reason"] == "retracted"
    assert representative not in {row["representative"] for row in rows.values()}
    assert made.failing() == find_failing(made) == {}
    assert made.run() == []


def test_only_shards_whose_removed_rows_change_are_rebuilt(tmp_path: Path) -> None:
    made = DuplicatedBlend(tmp_path, "sft")
    rows = make_rows("sft")
    # The answer of a row changes nothing for the questions of the other files.
    made.lay_out(rows)
    made.run()
    changed_row = {"id": "new", **make_row("sft", " ".join(write_words(random.Random(9))), make_answer("Yes."))}
    half = len(rows) // 2
    made.write("second", 1, [*rows[half:][1::2], changed_row])
    rebuilt = made.run()
    assert [name for name in rebuilt if name.startswith("packed_sft/first")] == []
    assert [name for name in rebuilt if name.startswith("packed_sft/second")] != []


def test_near_duplicates_in_different_splits_block_or_are_dropped_from_the_first_split(tmp_path: Path) -> None:
    made = DuplicatedBlend(tmp_path, LIGHT)
    sources = tmp_path / "sources"
    made.changes["blend"] = {
        split: [{"name": name, "path": str(sources / name)}]
        for split, name in (("train", "first"), ("valid", "second"))
    }
    rows = make_rows(LIGHT)
    made.lay_out([*rows[::2], *rows[1::2]])
    made.build_duplicates()
    assert "duplicates.splits_disjoint" in find_failing_duplicates(made)
    made.changes["duplicates"] = {"text": "questions", "across_splits": "drop"}
    made.build_duplicates()
    assert find_failing_duplicates(made) == {}
    # The other rows are removed from their own split.
    assert "f" in {file[0] for file, _ in made.list_removed()}


def find_failing_duplicates(made: DuplicatedBlend) -> dict[str, str]:
    (spec,) = [spec for spec in made.dataset.specs if spec.name == DUPLICATES]
    return {f"{spec.name}.{name}": one.summary for name, one in spec.examine(made.store, None) if not one.passed}


@pytest.mark.parametrize("stage", BUILD)
def test_a_kept_duplicate_fails_the_check(tmp_path: Path, stage: str) -> None:
    made = DuplicatedBlend(tmp_path, stage)

    def find_none(_: DuplicateRows, __: int, numbers: list[int]) -> list[None]:
        return [None] * len(numbers)

    with patch.object(DuplicateRows, "find_partners", find_none):
        made.build_shards_here()
    assert_names(made.failing()["duplicates_dropped"][0], "is a duplicate of", "similar")


def test_changed_files_of_the_duplicates_and_signatures_fail_the_rebuild(tmp_path: Path) -> None:
    made = DuplicatedBlend(tmp_path, LIGHT)
    made.run()
    partition = load_blend_plan(made.declaration, made.store).partitions[0]
    file = made.store.directory(made.declaration.artifact(DUPLICATES)) / f"{partition}.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)
    digests = made.store.directory(made.declaration.artifact(SIGNATURES, partition)) / "digests.bin"
    digests.write_bytes(bytes(len(digests.read_bytes())))
    failing = find_failing(made)
    assert {"duplicates.rebuild_matches", "signatures.rebuild_matches"} <= failing.keys()


def test_duplicates_that_were_built_without_a_shard_are_an_error(tmp_path: Path) -> None:
    made = DuplicatedBlend(tmp_path, LIGHT)
    made.build_duplicates()
    with raises(IntegrityError, "built without first__train-00009", "Rebuild `duplicates`"):
        load_duplicate_rows(made.declaration, made.store, "first__train-00009")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"duplicates": {"priority": {"column": "quality"}}}, ["duplicates.priority.column", "quality"]),
        ({"duplicates": {"priority": {"column": "source"}}}, ["duplicates.priority.order", "a list of values"]),
        (
            {"sensitive": True, "blend": {"datasets": [{"name": "first", "path": "hf://chats/first"}]}},
            ["sensitive", "duplicates", "source_key"],
        ),
        ({"duplicates": {"against": ["books"]}}, ["against"]),
        ({"drop": {"duplicate": "turns > 1"}}, ["duplicate", "reserved"]),
        ({"budget": {"per_rule": {"duplicates": 0.1}}}, ["budget.per_rule", "duplicates", "duplicate"]),
    ],
)
def test_a_declaration_without_effect_is_refused(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    made = DuplicatedBlend(tmp_path, LIGHT)
    made.changes |= changes
    with raises(ValidationError, *words):
        _ = made.declaration


def test_a_budget_for_duplicates_fails_the_check(tmp_path: Path) -> None:
    made = DuplicatedBlend(tmp_path, LIGHT, budget={"per_rule": {"duplicate": 0.1}})
    made.run()
    assert "duplicate" in find_failing(made)["documents.within_budget"]


def test_every_column_of_an_artifact_has_a_description(tmp_path: Path) -> None:
    blend = DuplicatedBlend(tmp_path, "sft", rewrite=["ftfy"], keep_fields={"lang": "string"})
    undescribed = {spec.name: {*spec.columns} - {*spec.column_descriptions} for spec in blend.dataset.specs}
    assert undescribed == {name: set() for name in undescribed}
    assert {"duplicates", "documents"} <= undescribed.keys()


def test_groups_whose_chosen_row_is_too_long_are_a_warning_with_the_row(tmp_path: Path) -> None:
    random_numbers = random.Random(5)
    rows = [{"id": "single", **make_row("sft", " ".join(write_words(random_numbers)), make_answer("Yes."))}]
    for group in range(8):
        question = " ".join(write_words(random_numbers, 20))
        for words in (10, 600):
            answer = make_answer(" ".join(write_words(random_numbers, words)))
            rows.append({"id": f"{group} {words}", **make_row("sft", question, answer)})
    made = DuplicatedBlend(tmp_path, "sft", bad_records={"policy": "drop", "budget": 1.0})
    made.changes["sft"] = {"pack_size": 512, "chat_template": "chatml_reasoning", "too_long": "drop"}
    made.lay_out(rows)
    made.run()
    too_long = {f"{row['source']}/{row['file']}:{row['row']}" for row in made.read_table() if row["tokens"] is None}
    too_long -= {f"{row['source']}/{row['file']}:{row['row']}" for row in made.read_table() if row["representative"]}
    finding = find_table_finding(made, "duplicate_groups_kept")
    assert not finding.passed
    assert finding.warning
    assert {(row["representative"], row["dropped_as"], row["duplicates"]) for row in finding.table} == {
        (name, "longer_than_pack_size", 1) for name in too_long
    }
    assert 0 < len(too_long) < 8
    assert {**finding.facts, "groups": 8, "lost_groups": len(too_long)} == finding.facts
    # With a priority for short rows, a row of each group is kept.
    made.changes["duplicates"]["priority"] = {"column": "bytes", "order": "lowest"}
    made.run()
    assert sum(row["kept"] for row in made.read_table()) == 9
    assert find_table_finding(made, "duplicate_groups_kept").passed


def find_table_finding(made: DuplicatedBlend, name: str) -> Finding:
    """Return the finding of a check of the document tables."""
    partitions = load_blend_plan(made.declaration, made.store).partitions
    return dict(made.dataset.spec("documents").examine(made.store, partitions))[name]
