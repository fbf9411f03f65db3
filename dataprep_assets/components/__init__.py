"""The vocabulary of `defs/<dataset>/defs.yaml`: one component a pipeline."""

from dataprep_assets.components.task_migration import TaskMigration
from dataprep_assets.components.tokenized_corpus import TokenizedCorpus

__all__ = ["TaskMigration", "TokenizedCorpus"]
