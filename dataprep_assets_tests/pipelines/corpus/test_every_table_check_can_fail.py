"""Every check of the document table (tags, selection, table) fails on a planted fault."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.curation.rewriters.personal_data import PersonalDataRewriter
from dataprep_assets.curation.tagging import load_tagger
from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.faults.edits import edit_receipt, flip_byte
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.project import sample_attributes

Fault = Callable[[Path], object]
ARTIFACTS = ("tags", "selection", "documents")


def make_specs() -> Sequence[ArtifactSpec]:
    """Return the artifacts of a corpus with a rewriter, taggers, rules and a budget."""
    attributes = sample_attributes(
        splits={"val": ["validation/**"]},
        shards={},
        rewrite=[{"personal": {"phones": "<PHONE>", "emails": "<EMAIL>"}}],
        tag=["gopher", "personal"],
        drop={"short": "words < 50", "longest": "words > 99999"},
        budget={"per_rule": {"short": 0.9}},
        views=["nanogpt"],
        workers=1,
    )
    return TokenizedCorpus(validate_declaration(CorpusDeclaration, attributes, Path("defs.yaml"))).specs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table") / "artifacts"
    build_all(make_specs(), LocalArtifacts(root))
    for artifact in ARTIFACTS:
        assert all(finding.passed for finding in check_artifact(root, artifact).values())
    return root


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "artifacts"))


def check_artifact(root: Path, artifact: str) -> dict[str, Finding]:
    """Return the finding of each check of an artifact."""
    (spec,) = [one for one in make_specs() if one.name == artifact]
    store = LocalArtifacts(root)
    return dict(spec.examine(store, [slot for slot in spec.slots(store) if slot is not None]))


def rewrite_table(name: str, change: Callable[[pa.Table], pa.Table]) -> Fault:
    """Return a fault that writes a Parquet file with other rows."""

    def fault(folder: Path) -> None:
        table = pq.read_table(folder / name)
        (folder / name).unlink()
        pq.write_table(change(table), folder / name)

    return fault


def increase_column(column: str) -> Callable[[pa.Table], pa.Table]:
    """Return a fault that adds one to a column of numbers."""

    def change(table: pa.Table) -> pa.Table:
        values = [None if one is None else one + 1 for one in table[column].to_pylist()]
        at = table.column_names.index(column)
        return table.set_column(at, table.schema.field(column), pa.array(values, table.schema.field(column).type))

    return change


def blind_tagger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tagger of personal data miss phone numbers and find an address in every text."""
    tagger = load_tagger("personal")

    def tag(texts: Sequence[str]) -> dict[str, list[int]]:
        seen = {name: list(values) for name, values in tagger.tag(texts).items()}
        return {**seen, "phones": [0] * len(texts), "emails": [text.count("@") for text in texts]}

    blind = {"personal": replace(tagger, tag=tag)}
    monkeypatch.setattr(CorpusDeclaration, "tested_taggers", property(lambda _: blind))


def drop_everything(rule: str) -> Fault:
    """Return a fault in the receipt of a selection, in which a rule drops all rows."""

    def change(receipt: dict[str, dict[str, dict[str, object]]]) -> None:
        facts = receipt["facts"]
        facts["by_rule"] = {source: {rule: counts} for source, counts in facts["sources"].items()}

    return lambda folder: edit_receipt(folder / "receipt.json", change)


FAULTS: dict[tuple[str, str], Fault] = {
    ("tags", "files_intact"): lambda folder: flip_byte(folder / "rows.parquet"),
    ("tags", "rows_complete"): rewrite_table(
        "rows.parquet", lambda table: table.take([1, 0, *range(2, table.num_rows)])
    ),
    ("tags", "rebuild_matches"): rewrite_table("gopher.parquet", increase_column("words")),
    ("selection", "files_intact"): lambda folder: flip_byte(folder / "dropped.parquet"),
    ("selection", "rebuild_matches"): rewrite_table("dropped.parquet", lambda table: table.slice(1)),
    ("selection", "within_budget"): drop_everything("short"),
    ("selection", "sources_kept"): drop_everything("longest"),
    ("documents", "files_intact"): lambda folder: flip_byte(folder / "documents.parquet"),
    ("documents", "sums_match_ledger"): rewrite_table("documents.parquet", increase_column("tokens")),
    ("documents", "rebuild_matches"): rewrite_table("documents.parquet", increase_column("words")),
}
SAID = {
    ("tags", "rows_complete"): "row 1 is not in the order of the source",
    ("tags", "rebuild_matches"): "gopher.parquet: row 1: column words differs from a rebuild",
    ("selection", "rebuild_matches"): "dropped.parquet: has",
    ("selection", "within_budget"): "no document of val is left",
    ("selection", "sources_kept"): "the rule longest drops",
    ("documents", "sums_match_ledger"): "the sum of `tokens` is",
    ("documents", "rebuild_matches"): "row 1: column words differs from a rebuild",
}


def test_every_check_has_a_planted_fault() -> None:
    found = {(one.name, proof.name) for one in make_specs() if one.name in ARTIFACTS for proof in one.checks}
    assert found == {*FAULTS, ("tags", "taggers_accurate"), ("tags", "personal_data_replaced")}


def test_a_tagger_that_misses_planted_cases_or_finds_wrong_ones_is_reported(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = check_artifact(finished, "tags")["taggers_accurate"]
    assert found.passed
    assert (found.facts["recall_phones"], found.facts["precision_ibans"]) == (1.0, 1.0)
    (visa,) = [row for row in found.table if row["kind"] == "cards, Visa"]
    assert (visa["tagger"], visa["planted"], visa["recall_%"]) == ("personal", 6, 100.0)
    blind_tagger(monkeypatch)
    found = check_artifact(finished, "tags")["taggers_accurate"]
    assert not found.passed
    assert "personal flags" in found.summary
    assert (found.facts["recall_phones"], found.facts["defects"]) == (0.0, 2)


def test_a_rewriter_that_misses_planted_personal_data_or_changes_other_text_is_reported(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = check_artifact(finished, "tags")["personal_data_replaced"]
    assert found.passed
    assert (found.facts["recall_phones"], found.facts["precision_emails"]) == (1.0, 1.0)
    assert "recall_cards" not in found.facts
    (german,) = [row for row in found.table if row["kind"] == "phones, German"]
    assert (german["rewriter"], german["planted"], german["recall_%"]) == ("personal", 6, 100.0)
    rewrite = PersonalDataRewriter.rewrite
    # This rewriter leaves a part of phone numbers, and changes every text with an `@`.
    monkeypatch.setattr(
        PersonalDataRewriter,
        "rewrite",
        lambda self, text: rewrite(self, text).replace("<PHONE>", "020<PHONE>").replace("@", "<EMAIL>"),
    )
    found = check_artifact(finished, "tags")["personal_data_replaced"]
    assert not found.passed
    assert_names(found.summary, "personal changes", "10 of 12", "emails")
    assert (found.facts["recall_phones"], found.facts["defects"]) == (0.0, 2)
    assert found.facts["precision_emails"] < 0.9


@pytest.mark.parametrize(("artifact", "name"), list(FAULTS), ids=str)
def test_the_check_fails_on_its_fault_and_names_the_position(copied: Path, artifact: str, name: str) -> None:
    (folder,) = [path.parent for path in copied.rglob("receipt.json") if path.parents[1].name == artifact]
    FAULTS[artifact, name](folder)
    found = check_artifact(copied, artifact)[name]
    assert not found.passed
    assert SAID.get((artifact, name), "val-00000") in found.summary


def set_first(column: str, value: object) -> Callable[[pa.Table], pa.Table]:
    """Return a fault that changes a value of the first kept row, or of the first row that is not a bad record."""

    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        kept = table["kept"].to_pylist() if "kept" in table.column_names else [True]
        values[kept.index(True)] = value
        at = table.column_names.index(column)
        return table.set_column(at, table.schema.field(column), pa.array(values, table.schema.field(column).type))

    return change


@pytest.mark.parametrize(
    ("artifact", "name", "column", "value", "said"),
    [
        ("documents", "sums_match_ledger", "id", None, "the ids of its kept rows differ"),
        ("documents", "sums_match_ledger", "id", "no id", "the ids of its kept rows differ"),
        ("documents", "sums_match_ledger", "id", "0123456789abcdef0", "the ids of its kept rows differ"),
        ("documents", "sums_match_ledger", "tokens", None, "the sum of `tokens` is"),
        ("documents", "sums_match_ledger", "kept", None, "the sum of `documents` is"),
        ("documents", "sums_match_ledger", "file", None, "the sum of `rows_in` is"),
        ("tags", "rows_complete", "row", None, "is not in the order of the source"),
        ("tags", "rows_complete", "row", 0, "row 0 is not in the order of the source"),
        ("tags", "rows_complete", "file", None, "is not in the order of the source"),
        ("tags", "rows_complete", "file", "other.jsonl", "other.jsonl: row 1 is not in the order of the source"),
    ],
)
def test_an_impossible_value_is_a_finding(
    copied: Path, artifact: str, name: str, column: str, value: object, said: str
) -> None:
    (folder,) = [path.parent for path in copied.rglob("receipt.json") if path.parents[1].name == artifact]
    rewrite_table({"documents": "documents.parquet", "tags": "rows.parquet"}[artifact], set_first(column, value))(
        folder
    )
    found = check_artifact(copied, artifact)[name]
    assert not found.passed
    assert said in found.summary
