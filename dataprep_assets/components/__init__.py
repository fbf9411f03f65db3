"""The vocabulary of `defs/<dataset>/defs.yaml`: one component a pipeline."""

from dataprep_assets.components.tokenized_corpus import TokenizedCorpus

__all__ = ["TokenizedCorpus"]
