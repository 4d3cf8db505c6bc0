"""Patterns with a `{case}` placeholder: read from a manifest, and the files that they find."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from nnunet_labelset.dataset_conversion.sources.toml_values import get_patterns
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.flat import is_picture


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
    """Return files by case and role: one list of files for every pattern of the role that matches
    some, preferred ones first.

    A pattern with `{structure}` finds one role for every structure.
    """
    files = _candidates(folder, [pattern for chosen in roles.values() for pattern in chosen])
    for regex in map(pattern_regex, exclude):
        files = [name for name in files if not regex.fullmatch(name)]
    cases: dict[str, dict[Role, list[list[Path]]]] = {}
    for role, patterns in roles.items():
        for pattern in patterns:
            groups = _matching_files(folder, files, pattern_regex(pattern, case), role)
            for (name, matched_role), paths in groups.items():
                cases.setdefault(name, {}).setdefault(matched_role, []).append(paths)
    return dict(sorted(cases.items()))


def _candidates(folder: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files of a folder that lie deep enough for some pattern, and no deeper."""
    is_deep = any("**" in pattern for pattern in patterns)
    return list_files(folder, None if is_deep else max(text.count("/") for text in patterns))


def _matching_files(
    folder: Path, files: Iterable[str], regex: re.Pattern[str], role: Role
) -> dict[tuple[str, Role], list[Path]]:
    """Return the files that match a pattern, by case and role."""
    groups: dict[tuple[str, Role], list[Path]] = {}
    for match in filter(None, map(regex.fullmatch, files)):
        structure = match.groupdict().get("structure")
        key = match["case"], Role(role.kind, structure) if structure else role
        groups.setdefault(key, []).append(folder / match.string)
    return groups


def read_patterns(
    entry: Mapping[str, Any], channels: tuple[str, ...], where: str
) -> dict[Role, tuple[str, ...]]:
    """Return where the files of a source lie; a case list names images and labels instead."""
    patterns: dict[Role, tuple[str, ...]] = {}
    if "cases" not in entry:
        patterns |= _read_image_patterns(entry, channels, where)
        if "raters" in entry:
            patterns |= _read_raters(entry, where)
        else:
            patterns[LABEL] = get_patterns(entry, "label", where)
    elif "raters" in entry:
        raise LabelSetError(f"{where}: raters: not with a case list: use patterns")
    if "mask" in entry and entry["mask"] != "labelled":
        patterns[MASK] = get_patterns(entry, "mask", where)
    return patterns


def _read_image_patterns(
    entry: Mapping[str, Any], channels: tuple[str, ...], where: str
) -> dict[Role, tuple[str, ...]]:
    """Return the patterns of each channel; one for several is of pictures with colours."""
    image = entry.get("image")
    if not isinstance(image, dict):
        role = ALL_CHANNELS if len(channels) > 1 else Role(Kind.IMAGE, channels[0])
        patterns = get_patterns(entry, "image", where)
        if role is ALL_CHANNELS and not all(map(is_picture, patterns)):
            raise LabelSetError(
                f"{where}: image: expected one pattern for each channel: {', '.join(channels)}"
            )
        return {role: patterns}
    if set(image) != set(channels):
        raise LabelSetError(
            f"{where}: image: expected one pattern for each channel: {', '.join(channels)}"
        )
    return {Role(Kind.IMAGE, channel): get_patterns(image, channel, where) for channel in channels}


def _read_raters(entry: Mapping[str, Any], where: str) -> dict[Role, tuple[str, ...]]:
    if "label" in entry:
        raise LabelSetError(f"{where}: raters: not together with 'label': remove one of them")
    patterns = get_patterns(entry, "raters", where)
    if len(set(patterns)) < 2 or any("{structure}" in pattern for pattern in patterns):
        raise LabelSetError(
            f"{where}: raters: expected different patterns of label maps, one for each rater"
        )
    return {
        Role(Kind.RATER, str(number)): (pattern,)
        for number, pattern in enumerate(dict.fromkeys(patterns), start=1)
    }
