"""Examples at the end of each command's `--help`, for a project that was created by `dataprep init` and built.

Datasets other than `sample_corpus` are placeholders for your own: `my_schedule` is a `TrainingSchedule`, and `my_notes`
has months.
"""

EXAMPLES = {
    "init": ("dataprep init my-data", "dataprep init my-data --deploy compose"),
    "list": ("dataprep list", "dataprep list sample_corpus --json"),
    "show": ("dataprep show sample_corpus", "dataprep show sample_corpus --json"),
    "check": ("dataprep check", "dataprep check sample_corpus"),
    "run": (
        "dataprep run sample_corpus --dry-run",
        "dataprep run sample_corpus",
        "dataprep run my_filtered --until documents --split train",
        "dataprep run my_notes --months 1998-01...2009-12",
    ),
    "ui": ("dataprep ui", "dataprep ui --port 3001"),
    "site": ("dataprep site", "dataprep site sample_corpus --open"),
    "plan": ("dataprep plan sample_corpus", "dataprep plan sample_corpus --cores 64"),
    "status": ("dataprep status sample_corpus", "dataprep status sample_corpus --json"),
    "documents": (
        "dataprep documents my_filtered",
        "dataprep documents my_filtered --where 'words < 50' --csv",
        "dataprep documents my_filtered --reason short --sample 5 --text",
        "dataprep documents my_filtered --plot words",
    ),
    "trace": (
        "dataprep trace sample_corpus --split train --token 1000",
        "dataprep trace sample_corpus --file train/chunk1/example_train_0.jsonl.zst --row 3",
        "dataprep trace sample_corpus --view mds --split val --sample 0 --no-text",
    ),
    "retract": (
        "dataprep retract sample_corpus --ids ids.txt",
        "dataprep retract my_filtered --where \"source == 'forum'\"",
    ),
    "prune": ("dataprep prune sample_corpus", "dataprep prune sample_corpus --yes"),
    "verify": (
        "dataprep verify sample_corpus --size-only",
        "dataprep verify",
        "dataprep verify s3://bucket/copy --lock dataset.lock",
    ),
    "lock": ("dataprep lock sample_corpus", "dataprep lock sample_corpus --output sample.lock"),
    "diff": (
        "dataprep diff before.lock after.lock",
        "dataprep diff sample.lock .dataprep/artifacts --dataset sample_corpus",
    ),
    "schedule": (
        "dataprep schedule my_schedule --until 1000",
        "dataprep schedule my_schedule --from-step 500 --dry-run",
    ),
    "seen": (
        "dataprep seen my_schedule --step 100",
        "dataprep seen my_schedule --document train/a.jsonl:3",
        "dataprep seen my_schedule --until 500 --by source",
    ),
    "preflight": ("dataprep preflight scratch-folder", "dataprep preflight s3://bucket/prefix --read-only"),
    "sync": (
        "dataprep sync .dataprep/artifacts copy --prefix sample_corpus/ --dry-run",
        "dataprep sync .dataprep/artifacts s3://bucket/prefix --select 'sample_corpus/nanogpt_bins/*'",
    ),
    "release": (
        "dataprep release adopt shards",
        "dataprep release adopt s3://bucket/shards --to manifests --tokenizer gpt2",
    ),
}
"""Command → its example lines, most useful first."""
