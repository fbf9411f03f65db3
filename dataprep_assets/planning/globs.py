"""Globs over the paths inside a source: what `include` and `splits` take."""

import re
from collections.abc import Callable, Collection, Sequence
from fnmatch import translate
from unicodedata import normalize

from dataprep_assets.errors import ConfigError

_MAGIC = re.compile(r"([*?[])")
# `.` and `..` are no names: what is wrong with a path that has them is told
_HIDDEN = re.compile(r"(?:^|/)(?:\.(?!\.?(?:/|$))|_[^/=]*(?:/|$))")


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A compiled path glob: `*` and `?` stay inside one path component, `**/` spans any number of them.

    A class stays inside one, too, unless it names `/` as one of its own.
    """
    out, i = [], 0
    while i < len(glob):
        if glob.startswith("**/", i):
            out.append("(?:[^/]+/)*")
            i += 3
        elif glob.startswith("**", i):
            out.append(".*")
            i += 2
        elif glob[i] == "*":
            out.append("[^/]*")
            i += 1
        elif glob[i] == "?":
            out.append("[^/]")
            i += 1
        elif glob[i] == "[" and (end := glob.find("]", i + (3 if glob.startswith("[!", i) else 2))) > 0:
            # a `]` that comes first, if only behind `!`, is one of the class and not its end
            kind = glob[i : end + 1]
            if "/" not in kind or kind[1] == "!":
                out.append("(?!/)")
            # what fnmatch puts around it ends in one of two ways, by the version of Python
            out.append(translate(kind).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z"))
            i = end + 1
        else:
            out.append(re.escape(glob[i]))
            i += 1
    return re.compile("".join(out), re.DOTALL)


def one_of(globs: Sequence[str]) -> Callable[[str], re.Match[str] | None]:
    """What matches the paths that any of these globs matches."""
    # one expression for all, since it is asked of each of a million files; `(?!)` matches nothing
    patterns = [glob_pattern(glob).pattern for glob in globs]
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or "(?!)", re.DOTALL).fullmatch


def is_hidden(path: str) -> bool:
    """Whether a part of a path begins with `.` or `_`: by convention such files are no data.

    Spark, Hadoop and Delta write their logs, checksums and unfinished files so; `_key=value` is a folder of data.
    """
    return _HIDDEN.search(path) is not None


def taken_by(include: Sequence[str], *, naming: Sequence[str] = ()) -> Callable[[str], bool]:
    """What takes the paths that a glob of `include` matches: hidden ones only if one with a hidden part matches them.

    Globs in `naming` may be the ones that have it.
    """
    matches, names = one_of(include), one_of([glob for glob in (*include, *naming) if is_hidden(glob)])

    def is_taken(path: str) -> bool:
        return matches(path) is not None and (not is_hidden(path) or names(path) is not None)

    return is_taken


def require_named(key: str, glob: str, paths: Collection[str]) -> None:
    """Raise ConfigError for a glob that is the name of one file, and does not match it."""
    if glob in paths:
        if glob_pattern(glob).fullmatch(glob) is None:
            escaped = _MAGIC.sub(r"[\1]", glob)
            raise ConfigError(f"{key}: {glob} does not match the file of that name. Write it as {escaped}")
    elif _MAGIC.search(glob) is None:
        form = normalize("NFC", glob)
        alike = any(normalize("NFC", path) == form for path in paths)
        why = "; it is there in another Unicode form, as macOS writes names. Rename it" if alike else ". Correct it"
        raise ConfigError(f"{key}: {glob}: the source has no such file{why}")
