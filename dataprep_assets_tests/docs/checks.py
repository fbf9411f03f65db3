"""Write `docs/checks.md` from the checks of the sample datasets: `make docs-reference`.

The samples use every component, view and stage, so they have all checks except those of virtual mixtures and of
sensitive datasets, which are added. The remedies are written here, by name: a test fails for a check without one.
Entry points: `page` (the whole text), and `python -m dataprep_assets_tests.docs.checks`, which writes it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep_assets import components
from dataprep_assets.declarations import declarations_of
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import PERMISSIONS_PRIVATE
from dataprep_assets.engine.checks.check import Check
from dataprep_assets.pipelines.corpus.curation.selection import NO_BENCHMARK_CONTAMINATION
from dataprep_assets.pipelines.corpus.duplicates.duplicates_checks import DUPLICATES_CHECKS
from dataprep_assets.pipelines.corpus.duplicates.signatures import SIGNATURES_CHECKS
from dataprep_assets.pipelines.corpus.token_bins import DOCUMENT_IDS_UNIQUE
from dataprep_assets.pipelines.notes.replay.replay import VIRTUAL_CHECKS
from dataprep_assets.project import read_project

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "checks.md"
_HEAD = """\
# Checks

Generated from the checks by `make docs-reference`; a test fails when it is out of date. Do not edit it.

A check is red when it found a defect. If a *blocking* check is red, nothing downstream of its artifact is built; the
others only warn. The result names the file, row or document and ends with the remedy. `dataprep status NAME` lists the
red checks of a dataset, the page of [all datasets](operations.md#dagster) those of every dataset.
[The drill](drill.md) measures which damage each check notices.

## When a check is red

| check | what to do |
|---|---|
"""
_AGAIN = "Run `dataprep run NAME`: it rebuilds only damaged or stale artifacts. "
REMEDIES = (
    (
        "files_intact blend_run_intact records_intact size_matches index_matches_stream layout_valid "
        "matches_combined_bins matches_shards totals_match meta_matches labels_aligned random_batches_load "
        "ids_in_vocabulary matches_packed_rows matches_cohort_shards matches_stream rows_valid jsonl_matches_rows "
        "counts_match format_valid card_matches_receipts provenance_complete points_to_latest_run",
        "The files do not match their receipt or their inputs. "
        + _AGAIN
        + "If the check stays red, test the disk and the memory, then report a bug.",
    ),
    (
        "ledger_balances tokens_accounted tokens_conserved",
        "Rows or tokens were lost or counted twice, by damage or by a bug. "
        + _AGAIN
        + "If the check stays red, do not train on the data, and report a bug.",
    ),
    (
        "count_matches_source entries_resolve digests_match note_counts_match round_trip plan_is_current "
        "rows_read_once blend_sources_unchanged",
        "The source has changed. If this was intended, `dataprep status NAME` shows the consequences and `dataprep "
        "run NAME` builds them. If not, restore the listed files.",
    ),
    (
        "plan_covers_manifest plan_covers_sources sources_complete shards_complete",
        "Files, shards or months are missing or duplicated. Correct the globs or the source, then run `dataprep run "
        "NAME`.",
    ),
    (
        "engine_unchanged engine_certified",
        "The installed engine is not the certified one. " + _AGAIN + "This also certifies the installed engine.",
    ),
    (
        "fast_engine_accepted",
        "Only speed is affected: the listed classes are encoded by the reference engine. Nothing needs to be done.",
    ),
    (
        "losses_within_limit",
        "The tokenizer does not know, or omits, much of a source's text. Use a tokenizer for its language, or raise "
        "`tokenizer.max_loss`.",
    ),
    (
        "separator_ends_documents separators_match_documents separators_match_notes document_boundaries_valid "
        "no_repeated_special_tokens",
        "A token is at the wrong place. Correct `document.separator`, `document.bos` or the template. If the text "
        "itself contains special tokens, set `special_tokens: text`.",
    ),
    (
        "stop_tokens_in_loss answers_in_loss sampled_sequences_trained labels_within_notes",
        "The loss mask is wrong. Look at the rows shown, then correct the template or the packing "
        "([first trained token](formats/packed-sft.md#first-trained-token)).",
    ),
    (
        "no_retracted_document",
        "A removed document is still present. `dataprep run NAME` rebuilds the shards that contain it. It also "
        "removes obsolete shards and warns of it ([removing documents](how-to/add-files.md)).",
    ),
    (
        "splits_disjoint patients_disjoint patients_in_their_split",
        "Training data is in validation or test. Correct the source, or give each split its own sources. In a "
        "corpus, `duplicates.across_splits: drop` removes it from the split that is declared first.",
    ),
    (
        "every_dataset_sampled mixture_matches_weights",
        "The data cannot satisfy the requested weights. Change the weights, add data, or raise the tolerance.",
    ),
    ("disk_headroom", "Free the listed number of bytes, or choose a larger disk."),
    (
        "looks_like_text samples_unique packing_efficient",
        "This check is a heuristic: look at the samples shown. If they are fine, "
        "[accept it](how-to/resume.md#a-failing-check).",
    ),
    (
        "manifest_published remote_matches_local remote_readable",
        "The published files differ from the local ones. `dataprep run NAME` uploads the differing files again.",
    ),
    (
        "documents_complete revisions_consistent samples_read_once",
        "The schedule was damaged, or has a bug. Do not train on it. Restore its artifact from a copy, because the "
        "record of the data already read cannot be rebuilt.",
    ),
    (
        "index_file_names_valid matches_schedule",
        "Megatron's indices do not match the schedule. " + _AGAIN + "If the check stays red, report a bug.",
    ),
    (
        "sources_current",
        "The sources have changed since the last revision. To train on them, run `dataprep schedule NAME "
        "--from-step N`.",
    ),
    (
        "rebuild_matches rows_complete sums_match_ledger",
        "The artifact differs from what its inputs give. " + _AGAIN + "If the check stays red, report a bug. A "
        "warning means that your own tagger is not deterministic: give it a seed, or make it look at one document "
        "at a time, then set a new `version`. A schedule: restore its artifact from a copy.",
    ),
    (
        "taggers_accurate",
        "A tagger misses planted cases, or flags look-alikes. For the cases in the table, install the version of its "
        "library that found them, or lower `floors` if the accuracy is good enough.",
    ),
    (
        "recall_sufficient",
        "Too few planted near-duplicates are found. Raise `duplicates.permutations`, or lower `duplicates.recall`. "
        "If the rate is below what the bands predict, report a bug.",
    ),
    (
        "no_benchmark_contamination",
        "Documents contain benchmark items: drop them with `decontaminate.action: drop`, or look at the pairs in the "
        "columns `benchmark` and `benchmark_overlap`. If a planted item is not found, lower `containment`. If too "
        "few items are searched for, lower `min_words` or `coverage`, or declare other `fields`.",
    ),
    (
        "document_ids_unique",
        "Several documents have the same `document.id_field`, so removing that id removes all of them. Give the "
        "files and rows in the table unique ids, or `accept` the check.",
    ),
    (
        "within_budget",
        "Rules drop more than `budget` allows, so nothing is tokenized. `dataprep documents NAME` shows the drops "
        "per rule and source: correct the rule, or raise the budget.",
    ),
    (
        "sources_kept",
        "A rule drops nearly all of a source or language. `dataprep documents NAME` shows its rows: correct the "
        "rule, or set `budget.per_rule` to the right share.",
    ),
    ("epochs_within_limit", "A source is read too often. Lower its weight, add data, or raise `most_epochs`."),
    ("no_orphans", "Shards of an older release are in the folder. Delete them when nothing reads them any more."),
    (
        "readable_by_tfds",
        "Not run: install `dataprep-assets[tfds]`. Red: see the other checks of the directory.",
    ),
    (
        "files_match_receipt rows_match_schema no_conflict",
        "Correct the file in the old project, or move the conflicting file away, and migrate again ([by message of "
        "the trainer](how-to/tasks.md#when-a-check-fails)).",
    ),
)
"""Names of checks, joined by blanks → what to do when one of them is red."""
_Rows = tuple[Check[Any], ...]


def page() -> str:
    """The text of the page."""
    lines = [_HEAD.rstrip("\n")]
    lines += [f"| {', '.join(f'`{name}`' for name in joined.split())} | {todo} |" for joined, todo in REMEDIES]
    shown: set[tuple[str, _Rows]] = set()
    for component, artifacts in _checks().items():
        fresh = {(name, rows) for name, rows in artifacts.items() if (name, rows) not in shown}
        shown |= fresh
        lines += ["", f"## {component}", ""]
        if len(fresh) < len(artifacts):
            known = ", ".join(name for name, rows in artifacts.items() if (name, rows) not in fresh)
            lines += [f"{known}: as above, and:", ""]
        lines += ["| artifact | check | blocks | true if it passes |", "|---|---|---|---|"]
        lines += _table({name: rows for name, rows in artifacts.items() if (name, rows) in fresh})
    lines += [
        "",
        f"A `sensitive` dataset also has `{PERMISSIONS_PRIVATE.name}`, which blocks: {PERMISSIONS_PRIVATE.sentence} "
        "Red: run the `chmod` that it shows.",
    ]
    return "\n".join(lines) + "\n"


def names() -> set[str]:
    """The names of all checks in the tables."""
    return {proof.name for artifacts in _checks().values() for rows in artifacts.values() for proof in rows}


def _checks() -> dict[str, dict[str, _Rows]]:
    """Component → artifact, as the page names it → its proofs."""
    # what others build on comes first, for the page shows what is alike once
    ordered = sorted(components.__all__, key=lambda name: (len(components.dataset_type(name).model.__mro__), name))
    found: dict[str, dict[str, _Rows]] = {name: {} for name in ordered}
    for component in samples():
        for spec in component.specs:
            if spec.checks and spec.checks:
                found[component.component].setdefault(f"`{spec.name}`", spec.checks)
    found["CombinedCohorts"]["`tfds_directory` of `mode: virtual`"] = VIRTUAL_CHECKS
    found["TokenizedCorpus"]["`token_bins` where `document.id_field` is declared"] = (DOCUMENT_IDS_UNIQUE,)
    alike: dict[str, _Rows] = {
        "signatures": SIGNATURES_CHECKS,
        "duplicates": DUPLICATES_CHECKS,
        "selection": (NO_BENCHMARK_CONTAMINATION,),
    }
    found["TokenizedCorpus"] |= {f"`{name}` where duplicates are looked for": rows for name, rows in alike.items()}
    return found


def samples() -> Iterator[Dataset]:
    """The sample datasets, which use every component."""
    project = read_project(ROOT)
    assert project is not None
    declarations = declarations_of(project)
    for _, path in sorted(declarations.files.items()):
        if "samples" in path.parts:
            yield declarations.load(path)


def _table(artifacts: dict[str, _Rows]) -> Iterator[str]:
    """A line for each check; artifacts with the same checks share their lines."""
    by_rows: dict[tuple[tuple[str, str, bool], ...], list[str]] = {}
    for name, rows in artifacts.items():
        by_rows.setdefault(tuple((p.name, p.sentence, p.blocking) for p in rows), []).append(name)
    for rows_of, sharing in by_rows.items():
        who = ", ".join(sharing)
        for name, description, blocking in rows_of:
            yield f"| {who} | `{name}` | {'yes' if blocking else 'warns'} | {description.replace('|', chr(92) + '|')} |"
            who = ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: written")
