"""`dataprep_assets.components.TokenizedCorpus`: a corpus from source to validated bins, declared in YAML alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from dagster.components.scaffold.scaffold import scaffold_with
from pydantic import BaseModel, ValidationError

from dataprep_assets.assets.combined_bins import combined_bins_asset
from dataprep_assets.assets.dataset import DatasetAssets
from dataprep_assets.assets.engine_certificate import engine_certificate_asset
from dataprep_assets.assets.manifest import manifest_asset
from dataprep_assets.assets.snapshot import snapshot_asset
from dataprep_assets.assets.token_bins import token_bins_asset
from dataprep_assets.assets.views import view_asset
from dataprep_assets.builds.corpus import CorpusDeclaration
from dataprep_assets.checks.corpus import corpus_checks
from dataprep_assets.components.scaffold import TokenizedCorpusScaffolder
from dataprep_assets.errors import ConfigError


def declared(attributes: Mapping[str, Any], yaml_path: Path) -> CorpusDeclaration:
    """The validated declaration; ConfigError names the file, the key, the value and what is allowed."""
    try:
        return CorpusDeclaration.model_validate(attributes).located(yaml_path.parent)
    except ValidationError as error:
        lines = []
        for fault in error.errors():
            key = ".".join(str(part) for part in fault["loc"])
            lines.append(f"{yaml_path}: {key}: {fault['msg']} (got {fault['input']!r:.120})")
        raise ConfigError("\n".join(lines)) from error


@scaffold_with(TokenizedCorpusScaffolder)
class TokenizedCorpus(dg.Component):
    """A text corpus, from its source to token bins that a trainer reads, every artifact proven."""

    def __init__(self, corpus: CorpusDeclaration) -> None:
        self.corpus = corpus

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        return CorpusDeclaration

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> "TokenizedCorpus":
        if attributes is None:
            raise ConfigError(
                f"{context.path / 'defs.yaml'}: attributes: missing; `dg scaffold defs` writes a commented example"
            )
        resolved = context.resolution_context.resolve_value(attributes.model_dump(mode="json", exclude_unset=True))
        return cls(declared(resolved, Path(context.path) / "defs.yaml"))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        dataset = DatasetAssets(self.corpus)
        per_split = [
            make(dataset, split)
            for split in self.corpus.splits
            for make in (snapshot_asset, token_bins_asset, combined_bins_asset)
        ]
        views = [view_asset(dataset, view) for view in self.corpus.views]
        return dg.Definitions(
            assets=[manifest_asset(dataset), engine_certificate_asset(dataset), *per_split, *views],
            asset_checks=corpus_checks(dataset),
        )
