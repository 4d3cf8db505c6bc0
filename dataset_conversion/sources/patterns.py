"""Find the files of the cases in a folder by patterns with a `{case}` placeholder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from nnunet_labelset.errors import LabelSetError


class Kind(Enum):
    """What a file is in its case."""

    IMAGE = "image"
    LABEL = "label"
    MASK = "mask"
    RATER = "label of a rater"


class Role(NamedTuple):
    """What a file is in its case: the image of a channel, the label map or that of a structure, the
    mask.
    """

    kind: Kind
    name: str = ""  # of the channel or structure

    def __str__(self) -> str:
        return self.kind.value + (f" ({self.name})" if self.name else "")


LABEL, MASK = Role(Kind.LABEL), Role(Kind.MASK)
ALL_CHANNELS = Role(Kind.IMAGE)  # a picture with as many colours as there are channels
TOKENS = re.compile(r"(\{case\}|\{structure\}|\*\*/|\*)")


def pattern_regex(pattern: str, case: str = "[^/]+") -> re.Pattern[str]:
    """A pattern of relative paths as a regular expression with the groups `case` and `structure`.

    `*` stands for any part of a name, `**/` for any number of folders. A placeholder that is
    repeated must repeat.
    """
    groups = {"{case}": f"(?P<case>{case})", "{structure}": "(?P<structure>[^/]+)"}
    wildcards = {"*": "[^/]*", "**/": "(?:[^/]+/)*"}
    pieces, seen = [], set()
    for token in TOKENS.split(pattern):
        if token in groups:
            pieces.append(f"(?P={token[1:-1]})" if token in seen else groups[token])
            seen.add(token)
        else:
            pieces.append(wildcards.get(token) or re.escape(token))
    return re.compile("".join(pieces))


def list_files(folder: Path, depth: int | None = None) -> list[str]:
    """Return the relative paths of all files below `folder`, with `/` and sorted.

    Hidden files (`._x`) and folders are left out. Links to folders are followed, unless they lead
    back to a folder above. `depth` limits how many folders deep to look.
    """

    def stop(error: OSError) -> None:
        raise LabelSetError(f"{error.filename}: not readable: {error.strerror}")

    if not folder.is_dir():
        raise LabelSetError(f"{folder}: no such folder")
    paths: list[str] = []
    above = {str(folder): frozenset[str]()}  # the real folders above each folder
    for current, folders, files in os.walk(folder, onerror=stop, followlinks=True):
        real = os.path.realpath(current)
        relative = Path(current).relative_to(folder)
        if real in above[current] or (depth is not None and len(relative.parts) >= depth):
            folders.clear()
        if real in above[current]:
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        above |= {os.path.join(current, name): above[current] | {real} for name in folders}
        paths += [(relative / name).as_posix() for name in files if not name.startswith(".")]
    return sorted(paths)


def find_cases(
    folder: Path,
    roles: Mapping[Role, Sequence[str]],
    case: str = "[^/]+",
    exclude: Iterable[str] = (),
) -> dict[str, dict[Role, list[list[Path]]]]:
    """Files by case and role: one list of files for every pattern of the role that found some,
    preferred ones first.

    A pattern with `{structure}` finds one role for every structure.
    """
    patterns = [pattern for chosen in roles.values() for pattern in chosen]
    depth = (
        None
        if any("**" in pattern for pattern in patterns)
        else max(pattern.count("/") for pattern in patterns)
    )
    excluded = [pattern_regex(pattern) for pattern in exclude]
    files = [
        name
        for name in list_files(folder, depth)
        if not any(regex.fullmatch(name) for regex in excluded)
    ]
    cases: dict[str, dict[Role, list[list[Path]]]] = {}
    for role, chosen in roles.items():
        for pattern in chosen:
            regex = pattern_regex(pattern, case)
            found: dict[tuple[str, Role], list[Path]] = {}
            for match in filter(None, map(regex.fullmatch, files)):
                structure = match.groupdict().get("structure")
                key = match["case"], Role(role.kind, structure) if structure else role
                found.setdefault(key, []).append(folder / match.string)
            for (name, found_role), paths in found.items():
                cases.setdefault(name, {}).setdefault(found_role, []).append(paths)
    return dict(sorted(cases.items()))
