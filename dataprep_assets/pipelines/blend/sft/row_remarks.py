"""Remarks on the rows of datasets of conversations or pairs: the form of the rows, and their unread keys.

Entry points: `find_rows_remark` for the first rows, and `describe_rows` for all rows of finished shards.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.losses import parse_dataset_name
from dataprep_assets.pipelines.blend.plan.fields import get_conversation_fields
from dataprep_assets.pipelines.blend.sft.shard import ChatFacts
from dataprep_assets.sources.readers.first_rows import ROWS, read_first_rows, sample_files
from dataprep_assets.tokenization.chat.messages import (
    ADVICE,
    OTHER_FORM,
    Preference,
    Refusal,
    read_conversation,
    read_preference,
)
from dataprep_assets.tokenization.chat.row_forms import Form, count_keys, find_unread_keys, remove_template_keys

_MAX_NAMES = 8
"""Maximum number of keys or datasets in a sentence."""


def find_rows_remark(
    blend: BlendDeclaration, dataset: BlendDataset, paths: Sequence[Path], keys: tuple[str | int, ...], template: str
) -> Remark | None:
    """Return a remark on the form and the unread keys of a dataset's first rows; None if neither is unusual.

    Args:
        blend: The declaration.
        dataset: One of the blend's datasets.
        paths: The dataset's files, in order.
        keys: Path of the YAML key for the remark.
        template: Text of the chat template, which may read keys of messages; empty if the text is unknown.
    """
    options, is_pairs = blend.chat_options, blend.stage == "pairs"
    fields = get_conversation_fields(options, dataset)
    forms: dict[Form, None] = {}
    unread, count = Counter[str](), 0
    with suppress(DataprepError, OSError):  # a different remark reports damaged files
        for path in sample_files(paths):
            first_form: Form | None = None
            rows = read_first_rows([path], dataset.reading, as_json=options.choices.reads_json)
            for number, row in enumerate(itertools.islice(rows, ROWS - count), 1):
                count += 1
                read = read_preference if is_pairs else read_conversation
                conversation = read(row, fields, options.choices)
                if isinstance(conversation, Refusal):
                    continue
                sides = conversation.sides if isinstance(conversation, Preference) else [conversation]
                first_form = first_form or conversation.form
                if conversation.form != first_form:
                    location = "a file" if blend.sensitive else f"{path.name}, row {number}"
                    sentence = f"{dataset.name}: {location}: {OTHER_FORM}, {conversation.form} after {first_form}"
                    is_drop = blend.bad_records.policy == "drop"
                    sentence += f" ({ADVICE[OTHER_FORM]})"
                    return Remark(keys=keys, sentence=sentence, of_source=not is_drop, hint=is_drop)
                forms[conversation.form] = None
                messages = [message for side in sides for message in side.messages]
                count_keys(unread, find_unread_keys(row, messages, conversation.form, fields) - {blend.id_field})
    known_keys = remove_template_keys(unread, template)
    if not known_keys and set(forms) <= {"pairs" if is_pairs else "messages"}:
        return None
    # Hide counts and keys, because both may be sensitive: a key may be any text.
    if blend.sensitive:
        return Remark(
            keys=keys,
            sentence=f"rows of {dataset.name}: {_describe_forms(forms, {'': 0} if known_keys else {})}",
            hint=True,
        )
    row_range = "row" if count == 1 else count_of(count, "row")
    sentence = f"first {row_range} of {dataset.name}: {_describe_forms(forms, known_keys)}"
    return Remark(keys=keys, sentence=sentence, hint=True)


def describe_rows(receipts: Iterable[Receipt]) -> Iterator[str]:
    """Yield lines with the form and the unread keys of each dataset's rows, from the receipts of its shards."""
    forms: dict[str, dict[Form, None]] = {}
    unread: dict[str, Counter[str]] = {}
    for receipt in receipts:
        facts, name = ChatFacts.from_receipt(receipt), parse_dataset_name(receipt.partition)
        forms.setdefault(name, {}).update(dict.fromkeys(source.form for source in facts.sources if source.form))
        unread.setdefault(name, Counter()).update(facts.unread_keys)
    names: dict[str, list[str]] = {}
    for name, forms_of_dataset in forms.items():
        if forms_of_dataset:
            names.setdefault(_describe_forms(sorted(forms_of_dataset), unread[name]), []).append(name)
    for description, datasets in names.items():
        suffix = f" and {len(datasets) - _MAX_NAMES} more" if len(datasets) > _MAX_NAMES else ""
        yield f"rows of {', '.join(datasets[:_MAX_NAMES])}{suffix}: {description}"


def _describe_forms(forms: Collection[Form], unread: Mapping[str, int]) -> str:
    """Return a text with the forms of rows and the number of rows per unread key. An empty key hides the names."""
    sentence = f"form{'s' if len(forms) > 1 else ''} {', '.join(forms)}"
    if not unread:
        return sentence
    if "" in unread:
        return f"{sentence}; other keys are not read"
    ranked = sorted(unread.items(), key=lambda pair: (-pair[1], pair[0]))
    counts = ", ".join(f"{key} ({count_of(count, 'row')})" for key, count in ranked[:_MAX_NAMES])
    suffix = f" and {count_of(len(ranked) - _MAX_NAMES, 'more key')}" if len(ranked) > _MAX_NAMES else ""
    return f"{sentence}; keys that are not read: {counts}{suffix}"
