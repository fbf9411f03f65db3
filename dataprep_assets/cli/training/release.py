"""`dataprep release adopt`: write a manifest for npy shards that were published without one."""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import Profile
from dataprep_assets.errors import count_of
from dataprep_assets.stores.files import expand_path


def command(
    action: Annotated[
        Literal["adopt"],
        typer.Argument(help="The only action is `adopt`, which writes `release.json` for existing shards."),
    ],
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="Location of the shards: s3://bucket/prefix, gs://bucket/prefix or a folder."
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the manifest to this folder, e.g., if you cannot write to the bucket. [default: next to the "
            "shards]",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Set the name of the release. [default: the last part of URL]")
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="List only the first N shards of each prefix. Templar's manager reads 10 shards."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Set the name of the tokenizer in the manifest.")
    ] = None,
    profile: Profile = None,
) -> int:
    """Write a release manifest for existing npy shards."""
    from dataprep_assets.pipelines.release.adopted_manifest import Adoption, adopt_shards, write_adopted_manifest
    from dataprep_assets.serving.window.release import ReleaseLocation, locate_release

    location = locate_release(url) if profile is None else ReleaseLocation(project.open_store(url, profile)())
    # Name the file of known digests after the location, so that a second adoption finds it and does not reread
    # unchanged shards.
    identity = hashlib.sha256(str(location).encode()).hexdigest()[:16]
    adoption = Adoption(
        place=location,
        dataset=name or str(location).rpartition("/")[2],
        shards=shards,
        tokenizer=tokenizer,
        digest_file=project.find_work_folder() / "adopt" / f"{identity}.json",
    )
    release = adopt_shards(adoption, lambda key, size: print(f"reading {size:>18,} B  {key}", flush=True))
    manifest_path = write_adopted_manifest(
        release, location, None if to is None else expand_path(to, "--to").absolute()
    )
    for prefix, members in release.shards.items():
        tokens = sum(shard.tokens for shard in members)
        samples = (
            f"{count_of(tokens // release.sequence_length, 'sample')} of {count_of(release.sequence_length, 'token')}"
        )
        print(f"{prefix}: {count_of(len(members), 'shard')}, {samples} ({release.dtype})")
    print(f"manifest: {manifest_path} (release {release.digest[:12]} of {release.dataset})")
    print(
        f'for the trainer: ShardWindow("{location if to is None else manifest_path}", "shard_cache", '
        "steps_per_shard=455)"
    )
    return 0
