"""Faults of settings: artifacts built with a wrong separator, dtype, tokenizer, pad, template or seed.

The pipelines themselves build the wrong artifacts with another declaration. These then replace the right ones, with
receipts that have the right recipe.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets_tests.tools.drill.box import Box, Target, edit_receipt, reseal, write
from dataprep_assets_tests.tools.drill.bytes_of_files import files_of
from dataprep_assets_tests.tools.drill.datasets import Change, bench
from dataprep_assets_tests.tools.drill.faults import Apply, Fault, InapplicableError


def _set(**values: Any) -> Change:
    """Set keys of the attributes, nested ones as `outer__inner`, of the datasets that have the first key."""

    def change(attributes: dict[str, Any]) -> dict[str, Any] | None:
        attributes = json.loads(json.dumps(attributes))
        for name, value in values.items():
            *way, last = name.split("__")
            inner = attributes
            for step in way:
                if step not in inner:
                    return None
                inner = inner[step]
            inner[last] = value
        return attributes

    return change


def _only(stage: str, change: Change) -> Change:
    return lambda attributes: change(attributes) if attributes.get("stage") == stage else None


def _other_tokenizer(attributes: dict[str, Any]) -> dict[str, Any] | None:
    if "tokenizer" not in attributes or "chat" in attributes["tokenizer"]["path"]:
        return None
    path = Path(attributes["tokenizer"]["path"])
    return _set(tokenizer__path=str(path.with_name("other_tokenizer")))(attributes)


def _other_pad(attributes: dict[str, Any]) -> dict[str, Any] | None:
    return {**attributes, "pad": {"id": 3, "may_occur": True}} if "pad" in attributes else None


def _other_template(attributes: dict[str, Any]) -> dict[str, Any] | None:
    folder = Path(attributes["tokenizer"]["path"]).parent
    return _set(sft__chat_template=str(folder / "other_template.jinja"))(attributes)


def _weights(attributes: dict[str, Any]) -> dict[str, Any]:
    attributes = json.loads(json.dumps(attributes))
    for source, weight in zip(attributes["blend"]["datasets"], (1.0, 2.0), strict=True):
        source["weight"] = weight
    return attributes


EDITIONS = ("older", "other")
"""The same declarations over other documents: an older run, another dataset."""
VARIANTS: Mapping[str, Mapping[str, Change]] = {
    "corpus": {
        "wrong separator": _set(document__separator="<|pad|>"),
        "wrong dtype": _set(dtype="uint32"),
        "wrong tokenizer": _other_tokenizer,
        "wrong length": _set(olmo_sequence_length=32, mds_sequence_length=32),
    },
    "release": {
        "wrong seed": _set(release__shuffle_seed=8),
        "wrong separator": _set(document__separator="<|pad|>"),
        "wrong tokenizer": _other_tokenizer,
        "wrong length": _set(release__sequence_length=16),
        "wrong dtype": _set(dtype="uint32"),
    },
    "notes": {
        "wrong separator": _set(document__separator="<|pad|>", pad__token="<|endoftext|>"),
        "wrong pad": _other_pad,
        "wrong template": _set(template__header="{kind} by {author}\n"),
        "wrong tokenizer": _other_tokenizer,
        "wrong key of patients": _set(patient_key__public="another key for fictional data, known to everyone"),
    },
    "tasks": {},
    "curated": {},
    "blend": {
        "wrong separator": _only("pretrain", _set(pretrain__separator="<|pad|>")),
        "wrong tokenizer": _only("pretrain", _other_tokenizer),
        "wrong weights": _only("pretrain", _weights),
        "wrong template": _only("sft", _other_template),
        "wrong length": _only("sft", _set(sft__pack_size=128)),
    },
}


@dataclass(frozen=True)
class Aside:
    """Artifacts that were built differently: the roots of the editions and of the variants."""

    editions: Mapping[str, Path]
    variants: Mapping[str, Path]


def build_aside(pipeline: str, folder: Path, kept: Path, variants: Sequence[str] | None = None) -> Aside:
    """Build every edition and variant of a pipeline at the path of its right artifacts, and keep the results.

    Args:
        pipeline: The name of the pipeline.
        folder: The folder of the right artifacts, because receipts contain paths.
        kept: The folder for the results.
        variants: The names of the requested ones; None means all.
    """

    def built(name: str, change: Change = dict, edition: str = "") -> Path:
        made = bench(pipeline, folder, edition=edition, change=change)
        target = kept / name.replace(" ", "_")
        target.parent.mkdir(parents=True, exist_ok=True)
        made.root.rename(target)
        shutil.rmtree(folder)
        return target

    names = [name for name in VARIANTS[pipeline] if variants is None or name in variants]
    return Aside(
        editions={name: built(name, edition=f"{name} ") for name in EDITIONS},
        variants={name: built(name, VARIANTS[pipeline][name]) for name in names},
    )


def _replaced(variant: Path, *, lies: bool) -> Apply:
    """Replace all files by those of the variant.

    The receipt is the variant's with the right recipe, or the right one with the digests of the variant's files
    (`lies`).
    """

    def apply(box: Box, target: Target, random: Random) -> None:
        folder = box.folder(target)
        other = _other_folder(box, target, variant)
        right = json.loads((folder / NAME).read_bytes())
        wrong = json.loads((other / NAME).read_bytes())
        if right["content"] == wrong["content"]:
            raise InapplicableError
        for path in files_of(folder):
            path.unlink()
        for path in files_of(other):
            write(folder / path.relative_to(other), path.read_bytes())
        if lies:
            reseal(folder)
            return
        write(folder / NAME, (other / NAME).read_bytes())

        def change(value: dict[str, Any]) -> None:
            value.update({name: right[name] for name in ("key", "recipe", "inputs", "partition")})

        edit_receipt(folder, change)

    return apply


def _other_folder(box: Box, target: Target, variant: Path) -> Path:
    folder = variant / box.folder(target).relative_to(box.root)
    if not (folder / NAME).is_file() and target.spec.name == "blend":
        # The name of a run's folder is a digest of the run's settings, so it differs in the variant.
        folder = next(iter(sorted(folder.parent.glob("[!.]*"))), folder)
    if not (folder / NAME).is_file():
        raise InapplicableError
    return folder


def setting_faults(box: Box, variants: Mapping[str, Path]) -> Iterator[Fault]:
    """Yield every variant of every artifact, with both kinds of receipt."""
    for target in box.targets():
        for kind, variant in variants.items():
            for name, lies in (("tells what it was made with", False), ("lies", True)):
                yield Fault(kind=kind, name=name, target=target, apply=_replaced(variant, lies=lies))
