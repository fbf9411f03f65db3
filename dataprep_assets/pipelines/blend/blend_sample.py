"""Sample of a blend's documents, on which its tokenizer engine is certified."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dataprep_assets.fields import find_strings, value_at
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.discovery import open_place, open_source_part
from dataprep_assets.pipelines.blend.plan.fields import get_conversation_fields, list_read_fields, reads_json
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, PlannedUnit, load_blend_plan
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.stream.engine_certificate import CertificateSample, CertifiedEngine, read_first_texts
from dataprep_assets.tokenization.chat.messages import Conversation, Preference, read_conversation, read_preference


def build_blend_engine(blend: BlendDeclaration) -> CertifiedEngine:
    """Return the engine, to be certified on documents of each dataset. Raises ConfigError if there is no tokenizer."""
    options = blend.pretrain_options
    return CertifiedEngine(
        dataset=blend,
        tokenizer=blend.required_tokenizer,
        special_tokens=options.special_tokens,
        separator=options.separator if blend.stage == "pretrain" and options.add_eos else None,
        sample=partial(_draw_sample, blend),
    )


def _draw_sample(blend: BlendDeclaration, store: ArtifactStore) -> CertificateSample:
    plan = load_blend_plan(blend, store)
    hashes = {unit.name: unit.plan_hash for unit in plan.units}
    return CertificateSample(
        kind="blend_certificate",
        parts=[list(hashes.values())],
        sources=hashes,
        texts=lambda: read_blend_sample(blend, plan),
    )


def read_blend_sample(blend: BlendDeclaration, plan: BlendPlan) -> Iterator[str]:
    """Yield the first texts of each dataset's smallest file; long texts are truncated.

    Mirrored files are downloaded first. Bad records are skipped, because the build of the shards rejects them.
    """
    for unit in plan.units:
        # Use the smallest file, because it may need a download. Empty files and files of unknown size come last.
        entry = min(unit.entries, key=lambda e: (e.size_bytes or 1 << 62, e.ordinal))
        access = open_place(unit.dataset, blend.sources).access
        access.fetch([entry])
        yield from read_first_texts(_read_texts(blend, unit, entry, access.path(entry)))


def _read_texts(blend: BlendDeclaration, unit: PlannedUnit, entry: ManifestEntry, path: Path) -> Iterator[str]:
    part = open_source_part(blend, unit.dataset, entry, path)
    for block in part.read_rows(list_read_fields(blend, unit.dataset), as_json=reads_json(blend)):
        for row in block.rows:
            yield from find_row_texts(blend, unit, row)


def find_row_texts(blend: BlendDeclaration, unit: PlannedUnit, row: dict[str, Any]) -> Iterator[str]:
    """Yield the texts in a `row` of the dataset `unit` that a build tokenizes: a document, or texts of messages."""
    if blend.stage == "pretrain":
        yield from find_strings(value_at(row, unit.dataset.text_field))
        return
    fields, choices = get_conversation_fields(blend.chat_options, unit.dataset), blend.chat_options.choices
    if blend.stage == "pairs":
        preference = read_preference(row, fields, choices)
        if isinstance(preference, Preference):
            sides = [side.messages for side in preference.sides]
            yield from find_strings(
                [*sides[0], *(message for side in sides[1:] for message in side[preference.prompt :])]
            )
        else:
            yield from find_strings(row)
        return
    conversation = read_conversation(row, fields, choices)
    # Use all strings of a row that cannot be read as a conversation, so that the preview includes such rows in its
    # sample.
    yield from find_strings(conversation.messages if isinstance(conversation, Conversation) else row)
