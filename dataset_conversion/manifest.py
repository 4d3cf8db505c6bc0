"""Manifests: TOML files that say where the files of a source lie and what their values mean. Presets are such files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import IGNORE, LabelSet
from nnunet_labelset.dataset_conversion.values import HIGHEST_SOURCE_VALUE
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.files import check_name
from nnunet_labelset.raw_dataset import TEST, TRAINING

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LABELLED = "labelled"
SOURCE_KEYS = {
    "like", "description", "folder", "part", "case", "prefix", "image", "label", "mask", "exclude", "cases", "labels",
    "annotated", "varies", "absorbs", "overlap", "first_volume", "replace_nan",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One source of a manifest, checked; leaves are numbers. `labels` maps values, or structures, to label-sets."""

    name: str
    description: str
    folder: Path | None
    part: str
    case: str
    prefix: str
    images: Mapping[str, tuple[str, ...]]  # channel -> patterns
    label: tuple[str, ...]
    mask: tuple[str, ...]
    exclude: tuple[str, ...]
    cases: Path | None
    labels: Mapping[str, LabelSet]
    annotated: LabelSet | None
    varies: LabelSet
    absorbs: Mapping[int, LabelSet]
    overlap: bool
    first_volume: bool
    replace_nan: bool

    @property
    def per_structure(self) -> bool:
        """One label file for every structure."""
        return any("{structure}" in pattern for pattern in self.label)


@dataclass(frozen=True)
class Manifest:
    """Leaves, channels and sources; `sources` without a folder wait for `--source NAME=FOLDER`."""

    leaves: tuple[str, ...]
    channels: tuple[str, ...]
    sources: Mapping[str, Source]

    def source(self, name: str, folder: Path, part: str) -> Source:
        if name not in self.sources:
            raise LabelSetError(f"--source {name}={folder}: no such source{did_you_mean(name, self.sources)}")
        return replace(self.sources[name], folder=folder, part=part)


def presets() -> Manifest:
    """All presets; they share one label space."""
    return load_manifest(Path(str(files("nnunet_labelset.dataset_conversion.presets") / "fetal_brain.toml")), {})


def load_manifest(path: Path, inherited: Mapping[str, Any] | None = None) -> Manifest:
    """Read and check a manifest; its sources may be `like` a preset."""
    content = _read_toml(path)
    where = str(path)
    _check_keys(content, {"leaves", "channels", "sources"}, where)
    leaves = _texts(content, "leaves", where)
    channels = _texts(content, "channels", where) if "channels" in content else ("MRI",)
    if len(leaves) < 2 or leaves[0] != "background" or len(set(leaves)) != len(leaves) or IGNORE in leaves:
        raise LabelSetError(f"{where}: leaves: expected different names, 'background' first, without '{IGNORE}'")
    raw = content.get("sources")
    if not isinstance(raw, dict) or not raw or not all(isinstance(entry, dict) for entry in raw.values()):
        raise LabelSetError(f"{where}: expected at least one table [sources.NAME]")
    if inherited is None:
        preset_file = files("nnunet_labelset.dataset_conversion.presets") / "fetal_brain.toml"
        inherited = tomllib.loads(preset_file.read_text(encoding="utf-8"))["sources"]
    known = {**inherited, **raw}
    sources = {}
    for name in raw:
        check_name(name, f"{where}: source")
        entry = _with_inherited(name, known, where)
        sources[name] = _read_source(name, entry, leaves, channels, path)
    return Manifest(leaves, channels, sources)


def _with_inherited(name: str, known: Mapping[str, Any], where: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    entry = dict(known[name])
    like = entry.pop("like", None)
    if like is None:
        return entry
    if like not in known or like in (*seen, name):
        raise LabelSetError(f"{where}: sources.{name}: like: no other source '{like}'{did_you_mean(str(like), known)}")
    return {**_with_inherited(like, known, where, (*seen, name)), **entry}


def _read_source(
    name: str, entry: Mapping[str, Any], leaves: tuple[str, ...], channels: tuple[str, ...], path: Path
) -> Source:
    where = f"{path}: sources.{name}"
    _check_keys(entry, SOURCE_KEYS, where)
    image = entry.get("image")
    by_channel = image if isinstance(image, dict) else {channels[0]: image}
    listed = "cases" in entry
    if not listed and set(by_channel) != set(channels):
        raise LabelSetError(f"{where}: image: expected one pattern for each channel: {', '.join(channels)}")
    if not isinstance(entry.get("labels"), dict) or not entry["labels"]:
        raise LabelSetError(f"{where}: expected a table [sources.{name}.labels] of value = leaf")
    label = () if listed else _patterns(entry, "label", where)
    per_structure = any("{structure}" in pattern for pattern in label)
    labels: dict[str, LabelSet] = {}
    for key, meaning in entry["labels"].items():
        labels_where = f"{where}.labels: {key}"
        for value in [key] if per_structure else _values(key, labels_where):
            if value in labels:
                raise LabelSetError(f"{labels_where}: value {value} is given twice")
            labels[value] = leaf_set(meaning, leaves, labels_where)
    annotated = leaf_set(entry["annotated"], leaves, f"{where}: annotated") if "annotated" in entry else None
    absorbs = entry.get("absorbs", {})
    masks = () if "mask" not in entry else (LABELLED,) if entry["mask"] == LABELLED else _patterns(entry, "mask", where)
    _check_case_regex(entry.get("case", "[^/]+"), where)
    if entry.get("part", TRAINING) not in (TRAINING, TEST):
        raise LabelSetError(f"{where}: part: expected '{TRAINING}' or '{TEST}', but got {entry['part']!r}")
    if entry.get("overlap", "error") not in ("error", "last"):
        raise LabelSetError(f"{where}: overlap: expected 'error' or 'last', but got {entry['overlap']!r}")
    return Source(
        name=name,
        description=_text(entry, "description", where, ""),
        folder=path.parent / Path(_text(entry, "folder", where)).expanduser() if "folder" in entry else None,
        part=entry.get("part", TRAINING),
        case=entry.get("case", "[^/]+"),
        prefix=_text(entry, "prefix", where, ""),
        images={} if listed else {channel: _patterns(by_channel, channel, where) for channel in channels},
        label=label,
        mask=masks,
        exclude=_texts(entry, "exclude", where) if "exclude" in entry else (),
        cases=path.parent / _text(entry, "cases", where) if listed else None,
        labels=labels,
        annotated=annotated,
        varies=leaf_set(entry.get("varies", []), leaves, f"{where}: varies"),
        absorbs={
            leaves.index(leaf): leaf_set(inner, leaves, f"{where}: absorbs.{leaf}")
            for leaf, inner in absorbs.items()
            if leaf_set(leaf, leaves, f"{where}: absorbs")
        },
        overlap=entry.get("overlap", "error") == "last",
        first_volume=_flag(entry, "first_volume", where),
        replace_nan=_flag(entry, "replace_nan", where),
    )


def leaf_set(names: Any, leaves: tuple[str, ...], where: str) -> LabelSet:
    """Leaf names, one or several, as a set of numbers; `ignore` stands for every leaf."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise LabelSetError(f"{where}: expected a leaf or a list of leaves, but got {names!r}")
    if list(names) == [IGNORE]:
        return frozenset(range(len(leaves)))
    for name in names:
        if name not in leaves:
            raise LabelSetError(f"{where}: unknown leaf '{name}'{did_you_mean(name, leaves)}")
    return frozenset(leaves.index(name) for name in names)


def _values(key: str, where: str) -> Iterator[str]:
    for part in key.replace(",", " ").split():
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match or int(match[2] or match[1]) > HIGHEST_SOURCE_VALUE:
            raise LabelSetError(f"{where}: expected values such as '3', '37 38' or '114-121', up to 65535")
        yield from map(str, range(int(match[1]), int(match[2] or match[1]) + 1))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LabelSetError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LabelSetError(f"{path}: not readable as TOML: {error}") from None


def _check_keys(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise LabelSetError(f"{where}: unknown key '{key}'{did_you_mean(key, sorted(known))}")


def _check_case_regex(regex: Any, where: str) -> None:
    try:
        re.compile(regex)
    except (re.error, TypeError) as error:
        raise LabelSetError(f"{where}: case: not a regular expression: {error}") from None


def _text(table: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise LabelSetError(f"{where}: {key}: expected a text, but got {value!r}")
    return value


def _flag(table: Mapping[str, Any], key: str, where: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise LabelSetError(f"{where}: {key}: expected true or false, but got {value!r}")
    return value


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table.get(key)
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise LabelSetError(f"{where}: {key}: expected a text or a list of texts, but got {value!r}")
    return tuple(value)


def _patterns(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    patterns = _texts(table, key, where)
    for pattern in patterns:
        if "{case}" not in pattern:
            raise LabelSetError(f"{where}: {key}: pattern '{pattern}' has no {{case}}")
    return patterns
