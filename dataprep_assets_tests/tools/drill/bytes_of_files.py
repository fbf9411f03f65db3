"""Faults of files: bytes flipped, truncated, zeroed, doubled, swapped, from an older run, from another dataset.

Each occurs twice: as damage, which the receipt's digests show, and with a receipt that matches the damaged files, which
only checks of the content can detect.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets_tests.tools.drill.box import Box, Target, reseal, write
from dataprep_assets_tests.tools.drill.faults import Apply, Fault, InapplicableError


def files_of(folder: Path) -> list[Path]:
    """Return the non-empty data files of an artifact, except its receipt."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != NAME]
    return [path for path in found if path.stat().st_size and ".staging" not in path.parts]


def _file(box: Box, target: Target, random: Random) -> Path:
    found = files_of(box.folder(target))
    if not found:
        raise InapplicableError
    return random.choice(found)


def flipped(data: bytes, random: Random) -> bytes:
    """Flip one bit."""
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def cut(data: bytes, random: Random) -> bytes:
    """Remove the end."""
    return data[: random.randrange(len(data))]


def cut_in_front(data: bytes, random: Random) -> bytes:
    """Remove the beginning."""
    return data[random.randrange(1, len(data) + 1) :]


def zeroed(data: bytes, random: Random) -> bytes:
    """Fill a page, or the available part of it, with zeros."""
    start = random.randrange(len(data))
    stop = min(len(data), start + random.choice((1, 16, 512, 4096)))
    return data[:start] + bytes(stop - start) + data[stop:]


def doubled(data: bytes, random: Random) -> bytes:
    """Repeat a range."""
    start = random.randrange(len(data))
    stop = random.randrange(start, len(data)) + 1
    return data[:stop] + data[start:stop] + data[stop:]


def exchanged(data: bytes, random: Random) -> bytes:
    """Swap the two halves of the file."""
    at = random.randrange(1, len(data)) if len(data) > 1 else 0
    return data[at:] + data[:at]


def grown(data: bytes, random: Random) -> bytes:
    """Append bytes to the end."""
    return data + random.randbytes(random.choice((1, 8, 100)))


CHANGES = {
    "bytes flipped": flipped,
    "bytes cut": cut,
    "bytes cut in front": cut_in_front,
    "bytes zeroed": zeroed,
    "bytes doubled": doubled,
    "bytes exchanged": exchanged,
    "bytes added": grown,
}


def _changed(kind: str, *, sealed: bool) -> Apply:
    def apply(box: Box, target: Target, random: Random) -> str:
        path = _file(box, target, random)
        before = path.read_bytes()
        for _ in range(20):
            after = CHANGES[kind](before, random)
            if after != before:
                break
        else:
            raise InapplicableError
        write(path, after)
        if sealed:
            reseal(box.folder(target))
        return path.name

    return apply


def lost(box: Box, target: Target, random: Random) -> str:
    """Delete a file."""
    path = _file(box, target, random)
    path.unlink()
    return path.name


def added(box: Box, target: Target, random: Random) -> None:
    """Add a file that no build wrote: a copy of another under a different name."""
    path = _file(box, target, random)
    write(path.with_name(f"copy-{path.name}"), path.read_bytes())


def sealed_lost(box: Box, target: Target, random: Random) -> str:
    """Delete a file and its entry in the receipt."""
    name = lost(box, target, random)
    reseal(box.folder(target))
    return name


def _siblings(box: Box, target: Target) -> list[Target]:
    same = [
        one for one in box.targets() if one.spec.name == target.spec.name and one.spec.path[0] == target.spec.path[0]
    ]
    return [one for one in same if str(one) != str(target)]


def _swapped(*, sealed: bool) -> Apply:
    def apply(box: Box, target: Target, random: Random) -> str:
        """Swap a file with the same file of another shard."""
        others = _siblings(box, target)
        if not others:
            raise InapplicableError
        other = random.choice(others)
        ours = files_of(box.folder(target))
        theirs = files_of(box.folder(other))
        pairs = [(a, b) for a in ours for b in theirs if a.suffix == b.suffix and a.read_bytes() != b.read_bytes()]
        named = [(a, b) for a, b in pairs if a.name == b.name]
        if not pairs:
            raise InapplicableError
        a, b = random.choice(named or pairs)
        first, second = a.read_bytes(), b.read_bytes()
        write(a, second)
        write(b, first)
        if sealed:
            reseal(box.folder(target))
            reseal(box.folder(other))
        return f"{a.name} and {b.name}"

    return apply


def _of_another(which: str, *, sealed: bool) -> Apply:
    def apply(box: Box, target: Target, random: Random) -> str:
        """Replace a file by that of an older run, or of another dataset."""
        folder, other = box.folder(target), box.others.get(which)
        if other is None:
            raise InapplicableError
        twins = []
        for path in files_of(folder):
            twin = other / path.relative_to(box.root)
            if twin.is_file() and twin.read_bytes() != path.read_bytes():
                twins.append((path, twin))
        if not twins:
            raise InapplicableError
        path, twin = random.choice(twins)
        write(path, twin.read_bytes())
        if sealed:
            reseal(folder)
        return path.name

    return apply


def whole_of_another(box: Box, target: Target, random: Random) -> None:
    """Replace the whole artifact, including its receipt, by that of an older run."""
    folder = box.folder(target)
    if "older" not in box.others:
        raise InapplicableError
    other = box.others["older"] / folder.relative_to(box.root)
    if not (other / NAME).is_file() or (other / NAME).read_bytes() == (folder / NAME).read_bytes():
        raise InapplicableError
    for path in [path for path in folder.rglob("*") if path.is_file() and ".staging" not in path.parts]:
        path.unlink()
    for path in [path for path in other.rglob("*") if path.is_file() and ".staging" not in path.parts]:
        write(folder / path.relative_to(other), path.read_bytes())


def receipt_flipped(box: Box, target: Target, random: Random) -> None:
    """Flip a bit of the receipt."""
    path = box.folder(target) / NAME
    write(path, flipped(path.read_bytes(), random))


def receipt_cut(box: Box, target: Target, random: Random) -> None:
    """Remove the end of the receipt."""
    path = box.folder(target) / NAME
    write(path, cut(path.read_bytes()[:-2], random))


def receipt_of_a_sibling(box: Box, target: Target, random: Random) -> None:
    """Replace the receipt by that of another shard."""
    others = _siblings(box, target)
    if not others:
        raise InapplicableError
    write(box.folder(target) / NAME, (box.folder(random.choice(others)) / NAME).read_bytes())


def file_faults(box: Box, places: int) -> Iterator[Fault]:
    """Yield every fault of files for every artifact, at `places` places each."""
    table: list[tuple[str, str, Apply]] = [(kind, "damage", _changed(kind, sealed=False)) for kind in CHANGES]
    table += [(kind, "sealed", _changed(kind, sealed=True)) for kind in CHANGES]
    table += [
        ("file lost", "damage", lost),
        ("file lost", "sealed", sealed_lost),
        ("file added", "damage", added),
        ("files swapped between shards", "damage", _swapped(sealed=False)),
        ("files swapped between shards", "sealed", _swapped(sealed=True)),
        ("file of an older run", "damage", _of_another("older", sealed=False)),
        ("file of an older run", "sealed", _of_another("older", sealed=True)),
        ("artifact of an older run", "whole", whole_of_another),
        ("file of another dataset", "damage", _of_another("other", sealed=False)),
        ("file of another dataset", "sealed", _of_another("other", sealed=True)),
        ("receipt damaged", "flipped", receipt_flipped),
        ("receipt damaged", "cut", receipt_cut),
        ("receipt of another shard", "whole", receipt_of_a_sibling),
    ]
    for target in box.targets():
        for kind, name, apply in table:
            for place in range(places):
                full = kind if name != "sealed" else f"{kind}, receipt made of it"
                yield Fault(kind=full, name=name, target=target, apply=apply, place=place)
