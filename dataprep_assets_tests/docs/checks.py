"""Write `docs/checks.md` from the proofs of the sample datasets: `make docs-reference`.

The samples use every component, view and stage, so their checks are all that there are, but for those of virtual
mixtures and of sensitive datasets, which are added. What to do when one is red is written here,
by name: a test fails for a check of which nothing is said.
Entry points: `page` (the whole text), and `python -m dataprep_assets_tests.docs.checks`, which writes it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep_assets import components
from dataprep_assets.declarations import declarations_of
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import CLOSED_TO_OTHERS
from dataprep_assets.engine.checks.check import Check
from dataprep_assets.pipelines.corpus.curation.selection import NO_BENCHMARK
from dataprep_assets.pipelines.corpus.duplicates.duplicates_checks import DUPLICATES_CHECKS
from dataprep_assets.pipelines.corpus.duplicates.signatures import SIGNATURES_CHECKS
from dataprep_assets.pipelines.corpus.token_bins import DOCUMENT_IDS_UNIQUE
from dataprep_assets.pipelines.notes.replay.replay import VIRTUAL_CHECKS
from dataprep_assets.project import read_project

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "checks.md"
_HEAD = """\
# Checks

Generated from the proofs by `make docs-reference`; a test fails when it is behind. Do not edit it.

A check is red when its proof found a defect. A *blocking* one stops what is downstream; the others warn. The result
says what was found, in which file, row or document, and ends with what to do; `dataprep status NAME` lists what is red,
and the page of [all datasets](operations.md#dagster) what is red anywhere. Which damage each check
notices is measured by [the drill](drill.md).

## When a check is red

| check | what to do |
|---|---|
"""
_AGAIN = "`dataprep run NAME` rebuilds what is damaged or stale, and that alone. "
REMEDIES = (
    (
        "files_intact run_intact records_intact size_matches index_matches_stream layout_valid same_stream "
        "equals_shards totals_match meta_matches alignment sampler_dry_run ids_in_vocabulary "
        "equals_packed_rows equals_cohort_shards equals_stream "
        "rows_valid jsonl_equals_rows counts_match format_valid "
        "card_matches_receipts provenance_complete "
        "names_the_latest_run",
        "The files are not what their receipt, or what they were made of, says. "
        + _AGAIN
        + "Red again at once: look at the disk and the memory, then report a bug.",
    ),
    (
        "ledger_balances tokens_accounted tokens_conserved",
        "Rows or tokens were lost or counted twice: damage, or a bug. "
        + _AGAIN
        + "Red again: do not train on it, report a bug.",
    ),
    (
        "count_matches_source entries_resolve digests_match notes_recounted round_trip plan_is_current rows_read_once "
        "blend_sources_unchanged",
        "The source is not what it was. Meant: `dataprep status NAME` says what follows, `dataprep run NAME` builds "
        "it. Not meant: restore the files that are named.",
    ),
    (
        "plan_covers_manifest plan_covers_sources sources_complete shards_complete",
        "Files, shards or months are missing, or there twice. Correct the globs or the source, then "
        "`dataprep run NAME`.",
    ),
    (
        "certificate_holds certificate_valid",
        "The engine is not the certified one. " + _AGAIN + "It certifies the engine that is installed.",
    ),
    (
        "fast_engine_accepted",
        "Costs speed alone: the classes named are encoded by the reference. Nothing has to be done.",
    ),
    (
        "losses_within_limit",
        "The tokenizer does not know much of a source's text, or leaves it out. Use one for its language, or raise "
        "`tokenizer.max_loss`.",
    ),
    (
        "separator_ends_documents separators_match_documents separators_match_notes documents_end_right "
        "specials_not_doubled",
        "A token at the wrong place. Correct `document.separator`, `document.bos` or the template; where the text "
        "itself holds special tokens, set `special_tokens: text`.",
    ),
    (
        "stop_tokens_trained answers_trained decoded_mask labels_within_notes",
        "What is trained is not what should be. Look at the rows shown, then correct the template or the packing "
        "([first trained token](formats/packed-sft.md#first-trained-token)).",
    ),
    (
        "no_retracted_document",
        "A retracted document is still there. `dataprep run NAME` rebuilds the shards that hold it, and removes those "
        "that are in no plan any more, of which it warns "
        "([remove documents](how-to/remove-documents.md)).",
    ),
    (
        "splits_disjoint patients_disjoint patients_in_their_split",
        "Training data is in validation or test. Correct the source, or give each split sources of its own; of "
        "a corpus, `duplicates.across_splits: drop` takes it out of the split that is declared first.",
    ),
    (
        "nothing_rounds_to_zero realised_as_requested shares_achieved",
        "The shares cannot be had from the data. Change the weights, add data, or raise the tolerance.",
    ),
    ("disk_headroom", "Free the bytes that are named, or choose a larger disk."),
    (
        "eye_test sample_ids_repeat rows_filled",
        "A guess: look at what is shown. It is right as it is: [accept it](how-to/resume.md#a-failing-check).",
    ),
    (
        "manifest_published remote_equals_local remote_readable",
        "What is published is not what was built. `dataprep run NAME` sends what differs.",
    ),
    (
        "documents_complete revisions_follow read_once",
        "The schedule is not what it was made as: damage, or a bug. Do not train on it; restore its artifact from a "
        "copy, for what was read before cannot be made again.",
    ),
    (
        "names_found same_samples",
        "Megatron's indices are not those of the schedule: damage, or a bug. " + _AGAIN + "Red again: report a bug.",
    ),
    (
        "sources_current",
        "The sources have changed since the last revision. To train on them: `dataprep schedule NAME --from-step N`.",
    ),
    (
        "rebuild_matches rows_complete sums_equal_ledger",
        "The artifact is not what its builder makes of its inputs: damage, or a bug. " + _AGAIN + "Red again at once: "
        "report a bug. A warning: a tagger of your own gives a different value each time. Give it a seed, or let it "
        "look at each document alone; then set a new `version`. A schedule: restore its artifact from a copy.",
    ),
    (
        "planted_found",
        "A tagger misses cases of which the truth is known, or takes for them what only looks like them. The table "
        "says which: install the version of its library that found them, or lower `floors` if that is good enough.",
    ),
    (
        "recall_as_promised",
        "Planted near-duplicates are found less often than is asked: raise `duplicates.permutations`, or lower "
        "`duplicates.recall`. Below what the bands promise: report a bug.",
    ),
    (
        "no_benchmark",
        "Documents contain items of a benchmark: drop them with `decontaminate.action: drop`, or look at the pairs in "
        "the columns `benchmark` and `benchmark_overlap`. A planted item that is not found: lower `containment`. Too "
        "few items are looked for: lower `min_words` or `coverage`, or declare other `fields`.",
    ),
    (
        "document_ids_unique",
        "Documents have the same `document.id_field`, and a removal by it takes out all of them. The table has their "
        "files and rows: give each its own id, or `accept` the check.",
    ),
    (
        "within_budget",
        "Rules drop more than `budget` allows, and nothing is tokenized. `dataprep documents NAME` shows what each "
        "drops of each source: correct the rule, or raise the budget.",
    ),
    (
        "sources_kept",
        "A rule drops nearly all of a source or language. `dataprep documents NAME` shows its rows: correct the rule, "
        "or declare `budget.per_rule` with the share that is right.",
    ),
    ("repeats", "A source is read often. Lower its weight, add data, or raise `most_epochs`."),
    ("no_orphans", "Shards of an older release lie beside it. Delete them when nobody reads them any more."),
    ("tfds_reads", "Not proven: install `dataprep-assets[tfds]`. Red: see the other checks of the directory."),
    (
        "files_match_receipt rows_match_schema no_conflict",
        "Correct the file in the old project, or move the file in conflict away, and migrate again ([by message of "
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
        lines += ["| artifact | check | blocks | what it proves |", "|---|---|---|---|"]
        lines += _table({name: rows for name, rows in artifacts.items() if (name, rows) in fresh})
    lines += [
        "",
        f"A `sensitive` dataset also has `{CLOSED_TO_OTHERS.name}`, which blocks: {CLOSED_TO_OTHERS.sentence} "
        "Red: run the `chmod` that it names.",
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
        "selection": (NO_BENCHMARK,),
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
