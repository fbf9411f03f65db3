"""Write `docs/checks.md` from the checks of the sample datasets: `make docs-reference`.

The samples use every component, view and stage, so they have all checks except those of virtual mixtures and of
sensitive datasets, which are added. The remedies are written here, by name: a test fails for a check without one.
Entry points: `page` (the whole text), and `python -m dataprep_assets_tests.docs.checks`, which writes it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep_assets import components
from dataprep_assets.curation.duplicates.duplicates_checks import DUPLICATES_CHECKS
from dataprep_assets.curation.rewriters.recall import PERSONAL_DATA_REPLACED
from dataprep_assets.declarations import open_declarations
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import PERMISSIONS_PRIVATE
from dataprep_assets.engine.checks.check import Check
from dataprep_assets.engine.publishing.published import CHECKS as PUBLICATION_CHECKS
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import DUPLICATES_DROPPED
from dataprep_assets.pipelines.blend.duplicates.duplicates import SIGNATURES_CHECKS
from dataprep_assets.pipelines.blend.screening import contamination, rule_checks
from dataprep_assets.pipelines.blend.table.table_spec import DUPLICATE_GROUPS_KEPT, ROW_TABLE_CHECKS, RULE_CHECKS
from dataprep_assets.pipelines.corpus.curation.selection import NO_BENCHMARK_CONTAMINATION, RULE_SOURCES_EXIST
from dataprep_assets.pipelines.corpus.curation.tags import VALUES_KNOWN
from dataprep_assets.pipelines.corpus.token_bins import DOCUMENT_IDS_UNIQUE
from dataprep_assets.pipelines.notes.replay.replay import VIRTUAL_CHECKS
from dataprep_assets.project import read_project

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "checks.md"
_HEAD = """\
# Checks

This page is generated from the checks. Do not edit it: run `make docs-reference`.

A check fails if it finds a defect. If a *blocking* check fails, nothing downstream of its artifact is built. The other
checks only warn. The result of a failed check names the file, row or document, and ends with instructions.

`dataprep status NAME` lists the failed checks of a dataset. In Dagster's UI, the page of
[all datasets](operations.md#dagster) shows the failed checks of all datasets. [The drill](drill.md) measures which
damage each check finds.

## When a check fails

| check | what to do |
|---|---|
"""
_AGAIN = "Run `dataprep run NAME`, which rebuilds only damaged or out-of-date artifacts. "
REMEDIES = (
    (
        "files_intact blend_run_intact records_intact size_matches index_matches_stream layout_valid "
        "matches_combined_bins matches_shards totals_match meta_matches labels_aligned random_batches_load "
        "ids_in_vocabulary matches_packed_rows matches_conversations matches_cohort_shards matches_stream rows_valid "
        "matches_records jsonl_matches_rows duplicates_dropped counts_match format_valid card_matches_receipts "
        "provenance_complete points_to_latest_run",
        "The files do not match their receipt or their inputs. "
        + _AGAIN
        + "If the check still fails, test the disk and the memory, then report a bug.",
    ),
    (
        "ledger_balances tokens_accounted tokens_conserved",
        "Rows or tokens were lost or counted twice, because of damage or a bug. "
        + _AGAIN
        + "If the check still fails, do not train on the data, and report a bug.",
    ),
    (
        "count_matches_source entries_resolve digests_match note_counts_match round_trip plan_is_current "
        "rows_read_once blend_sources_unchanged",
        "The source has changed. If the change was intended, run `dataprep run NAME`, which rebuilds the "
        "artifacts that "
        "`dataprep status NAME` lists. If not, restore the files that the check lists.",
    ),
    (
        "plan_covers_manifest plan_covers_sources sources_complete shards_complete",
        "Files, shards or months are missing or duplicated. Correct the globs or the source, then run `dataprep run "
        "NAME`.",
    ),
    (
        "engine_unchanged engine_certified",
        "The installed tokenizer engine differs from the certified engine. "
        + _AGAIN
        + "The run also certifies the installed engine.",
    ),
    (
        "fast_engine_accepted",
        "No action is needed. The slower reference engine encodes the classes of text that the check lists, and the "
        "ids are correct.",
    ),
    (
        "losses_within_limit",
        "Too much of the text becomes unknown tokens or is dropped by the tokenizer. Use a tokenizer for the language "
        "of the source, or raise `tokenizer.max_loss`.",
    ),
    (
        "separator_ends_documents separators_match_documents separators_match_notes document_boundaries_valid "
        "no_repeated_special_tokens",
        "A separator or another special token is in the wrong place. Correct `document.separator`, `document.bos` or "
        "the template. If the text itself contains special tokens, set `special_tokens: text`.",
    ),
    (
        "stop_tokens_in_loss answers_in_loss sampled_sequences_trained labels_within_notes",
        "The loss mask is wrong. Look at the rows that the check shows, then correct the template or the packing "
        "([first trained token](formats/packed-sft.md#first-trained-token)).",
    ),
    (
        "no_retracted_document",
        "A removed document is still present. Run `dataprep run NAME`, which rebuilds the shards that contain it. The "
        "run also deletes obsolete shards that contain it, with a warning "
        "([remove documents](how-to/remove-documents.md)).",
    ),
    (
        "splits_disjoint patients_disjoint patients_in_their_split",
        "The same document or patient is in several splits. Correct the source, or give each split its own sources. "
        "In a corpus, `duplicates.across_splits: drop` removes such documents from the split that is declared first, "
        "which is usually `train`.",
    ),
    (
        "every_dataset_sampled mixture_matches_weights",
        "The data does not match the declared weights. Change the weights, add data, or raise `tolerance`.",
    ),
    ("disk_headroom", "Free as many bytes as the check lists, or move the storage to a larger disk."),
    (
        "matches_pairs prompts_shared rendering_matches sides_differ",
        "A pair does not match its messages or its source row, or its two answers are the same. "
        + _AGAIN
        + "If the check still fails, do not train on the pairs, and report a bug.",
    ),
    (
        "lengths_balanced",
        "The chosen answer (or the rejected one) is the longer answer in too many pairs. See the lengths in the "
        "check's "
        "table. Add pairs, or raise `pairs.max_chosen_longer`.",
    ),
    (
        "looks_like_text samples_unique packing_efficient",
        "These checks are heuristics. Read the samples that the check shows. If they are fine, "
        "[accept the check](how-to/resume.md#a-failing-check).",
    ),
    (
        "manifest_published remote_matches_local remote_readable",
        "The published files differ from the local files. Run `dataprep run NAME`, which uploads these files again.",
    ),
    (
        "hub_matches_receipts revision_tagged",
        "The repository differs from the receipts. If a file was edited on the Hub, delete it there. Then run "
        "`dataprep run NAME`, which uploads the differing files and sets the tag.",
    ),
    (
        "documents_complete revisions_consistent samples_read_once",
        "The schedule is damaged, or a bug has built it incorrectly. Do not train on it. Restore its artifact from a "
        "backup: a rebuild cannot recover the record of data that was already read.",
    ),
    (
        "index_file_names_valid matches_schedule",
        "The index files for Megatron do not match the schedule. " + _AGAIN + "If the check still fails, report a bug.",
    ),
    (
        "sources_current",
        "The sources have changed since the last revision. To train on the new data from step N, run `dataprep "
        "schedule NAME --from-step N`.",
    ),
    (
        "rebuild_matches rows_complete sums_match_ledger",
        "A rebuild from the inputs gives a different artifact. " + _AGAIN + "If the check still fails, report a bug. "
        "If the check only warns, your own tagger is not deterministic. Give it a seed, or make each result depend on "
        "only one document. Then set a new `version`. If the artifact is a schedule, restore it from a backup.",
    ),
    (
        "taggers_accurate",
        "A tagger misses planted cases, or reports text that only looks like a case. Install a version of the tagger's "
        "library that recognizes the cases in the check's table. If the accuracy is good enough, lower `floors`.",
    ),
    (
        "values_known",
        "The document table has null values. Run `dataprep documents NAME --where 'COLUMN is null'` to see the "
        "documents. Add the missing licenses, URLs or texts of `robots.txt`, or write `or COLUMN is null` in a rule "
        "that should match these documents.",
    ),
    (
        "rule_sources_exist",
        "A rule in `keep` or `drop` has an expression for a source that no document has. Correct the name of the "
        "source.",
    ),
    (
        "personal_data_replaced",
        "The rewritten text still contains planted personal data, or other text was changed. If another rewriter is "
        "the cause, change their order. For a corpus, if the accuracy is good enough, lower `floors.personal`.",
    ),
    (
        "duplicate_groups_kept",
        "A group's chosen row was dropped later, e.g., as too long. Raise the length limit, or set "
        "`duplicates.priority` to prefer rows that fit.",
    ),
    (
        "recall_sufficient",
        "Too few planted near-duplicates are found. Raise `duplicates.permutations`, or lower `duplicates.recall`. "
        "If fewer are found than the MinHash bands predict, report a bug.",
    ),
    (
        "no_benchmark_contamination",
        "Documents or rows contain benchmark items. Drop them with `decontaminate.action: drop`, or look at the "
        "matches: the result shows them for a blend, and the columns `benchmark` and `benchmark_overlap` for a corpus. "
        "If a planted item is not found, lower `containment`. If too "
        "few items are searched for, lower `min_words` or `coverage`, or declare other `fields`.",
    ),
    (
        "rules_applied",
        "A rule gives a different result for a row than when the shard was built. If the check only warns, your own "
        "tagger is not deterministic, so correct it as for `rebuild_matches`. Otherwise: " + _AGAIN + "If the check "
        "still fails, report a bug.",
    ),
    (
        "document_ids_unique",
        "Several documents have the same id, so removing this id removes all of them. Give the rows in the "
        "check's table "
        "unique ids, or [accept the check](how-to/resume.md#a-failing-check).",
    ),
    (
        "within_budget",
        "Rules drop more than `budget` allows, so the build stops: a corpus is not tokenized, and a blend has no new "
        "run. Run `dataprep documents NAME` to see the "
        "dropped "
        "documents per rule and source. Correct the rule, or raise the budget.",
    ),
    (
        "sources_kept",
        "A rule drops nearly all documents of a source, language or split. Run `dataprep documents NAME` to see them. "
        "Correct the rule, or set `budget.per_rule` to the share that it may drop.",
    ),
    (
        "epochs_within_limit",
        "A source is read more than `most_epochs` times. Lower its weight, add data, or raise `most_epochs`.",
    ),
    (
        "answers_complete",
        "The summary of training content lacks required answers. Add the listed keys to `training_summary` "
        "([guide](how-to/training-summary.md)).",
    ),
    (
        "domains_known",
        "Crawled sources have tokens without a known domain. Set `document.url_field` in their datasets, or accept the "
        "warning if their rows have no URLs.",
    ),
    (
        "tokens_match_schedule",
        "The counts of the summary differ from the schedule. Do not publish the summary, and report a bug.",
    ),
    (
        "no_orphans",
        "The published folder has shards of an older release. Delete them when no trainer reads them anymore.",
    ),
    (
        "readable_by_tfds",
        "If the check did not run, install `dataprep-assets[tfds]`. If it failed, fix the causes of the directory's "
        "other failed "
        "checks first.",
    ),
    (
        "files_match_receipt rows_match_schema no_conflict",
        "A file does not fit the task's contract, or the new project has a conflicting file. Correct the file in "
        "the old "
        "project, or move the conflicting file away. Then run `dataprep run NAME` "
        "([list of errors](how-to/tasks.md#when-a-check-fails)).",
    ),
)
"""Names of checks, joined by blanks → what to do if one of them fails."""
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
            lines += [f"The checks of {known} are in a table above. The other artifacts have these checks:", ""]
        lines += ["| artifact | check | blocks | true if it passes |", "|---|---|---|---|"]
        lines += _table({name: rows for name, rows in artifacts.items() if (name, rows) in fresh})
    lines += [
        "",
        "## Sensitive datasets",
        "",
        "Each artifact of a dataset with `sensitive: true` has one more check. If it fails, run the `chmod` "
        "command that "
        "it shows.",
        "",
        "| artifact | check | blocks | true if it passes |",
        "|---|---|---|---|",
        *_table({"each artifact": (PERMISSIONS_PRIVATE,)}),
    ]
    return "\n".join(lines) + "\n"


def names() -> set[str]:
    """The names of all checks in the tables."""
    return {proof.name for artifacts in _checks().values() for rows in artifacts.values() for proof in rows}


def _checks() -> dict[str, dict[str, _Rows]]:
    """Component → artifact, as the page names it → its proofs."""
    # Put base components first, because the page shows a shared check only once, at the first component that has it.
    ordered = sorted(
        components.__all__, key=lambda name: (len(components.find_dataset_class(name).model.__mro__), name)
    )
    found: dict[str, dict[str, _Rows]] = {name: {} for name in ordered}
    for component in samples():
        for spec in component.specs:
            if spec.checks and spec.checks:
                found[component.component].setdefault(f"`{spec.name}`", spec.checks)
    found["CombinedCohorts"]["`tfds_directory` of `mode: virtual`"] = VIRTUAL_CHECKS
    found["TokenizedCorpus"]["`published`, with `publish` in any component"] = PUBLICATION_CHECKS
    found["TokenizedCorpus"]["`token_bins` with `document.id_field`"] = (DOCUMENT_IDS_UNIQUE,)
    found["TokenizedCorpus"]["`tags` with `document.license_field`, `url_lists` or `robots`"] = (VALUES_KNOWN,)
    found["TokenizedCorpus"]["`selection` with rules by source"] = (RULE_SOURCES_EXIST,)
    found["TokenizedCorpus"]["`tags` with `personal` in `rewrite`"] = (PERSONAL_DATA_REPLACED,)
    found["TokenizedCorpus"]["`selection` with `decontaminate`, unless `action` is `tag`"] = (
        NO_BENCHMARK_CONTAMINATION,
    )
    found["TrainingBlend"]["`packed_sft`, `pairs` and `rl_jsonl` with `decontaminate`"] = (
        contamination.NO_BENCHMARK_CONTAMINATION,
    )
    found["TrainingBlend"]["`packed_sft`, `pairs` and `rl_jsonl` with `keep` or `drop`"] = (rule_checks.RULES_APPLIED,)
    found["TrainingBlend"]["`packed_sft`, `pairs` and `rl_jsonl` with `duplicates`"] = (DUPLICATES_DROPPED,)
    found["TrainingBlend"]["`signatures` with `duplicates`"] = SIGNATURES_CHECKS
    found["TrainingBlend"]["`duplicates`"] = DUPLICATES_CHECKS
    found["TrainingBlend"]["`documents` with `tag`, `keep`, `drop` or `duplicates`"] = ROW_TABLE_CHECKS
    found["TrainingBlend"]["`documents` with `keep`, `drop` or `duplicates`"] = RULE_CHECKS
    found["TrainingBlend"]["`documents` with `duplicates`"] = (DUPLICATE_GROUPS_KEPT,)
    found["TrainingBlend"]["`documents` with `personal` in `rewrite`"] = (PERSONAL_DATA_REPLACED,)
    return found


def samples() -> Iterator[Dataset]:
    """The sample datasets, which use every component."""
    project = read_project(ROOT)
    assert project is not None
    declarations = open_declarations(project)
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
