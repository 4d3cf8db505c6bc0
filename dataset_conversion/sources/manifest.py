"""Manifests: TOML files that say where the files of a source lie and what their values mean.
Presets are such files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import IGNORE, Contract, LabelSet
from nnunet_labelset.contract.annotated_table import ALL
from nnunet_labelset.dataset_conversion.meaning import Mask
from nnunet_labelset.dataset_conversion.sources import dicom_rules
from nnunet_labelset.dataset_conversion.sources.patterns import LABEL, MASK, Kind, Role
from nnunet_labelset.dataset_conversion.sources.toml_values import (
    check_keys,
    get_choice,
    get_flag,
    get_patterns,
    get_regex,
    get_table,
    get_text,
    get_texts,
    read_toml,
)
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import check_name
from nnunet_labelset.io.volume import HIGHEST_VALUE
from nnunet_labelset.nnunet.raw import TEST, TRAINING

PRESETS = Path(str(files("nnunet_labelset.dataset_conversion.presets")))
SOURCE_KEYS = {
    "like", "description", "folder", "part", "case", "prefix", "image", "label", "mask", "exclude",
    "cases", "labels", "annotated", "varies", "absorbs", "overlap", "first_volume", "replace_nan",
    "kind",
    *dicom_rules.KEYS,
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One source of a manifest, checked; leaves are numbers. `labels` maps values, or structures,
    to label-sets.
    """

    name: str
    description: str
    folder: Path | None
    part: str
    case: str
    prefix: str
    patterns: Mapping[Role, tuple[str, ...]]  # where its files lie, unless `cases` lists them
    per_structure: bool  # one label file for every structure
    mask_kind: Mask
    exclude: tuple[str, ...]
    cases: Path | None
    labels: Mapping[str, LabelSet]
    annotated: LabelSet
    varies: LabelSet
    absorbs: Mapping[int, LabelSet]
    overlap: bool
    first_volume: bool
    replace_nan: bool
    dicom: dicom_rules.DicomRules | None = None


@dataclass(frozen=True)
class Manifest:
    """Leaves, channels and sources; `sources` without a folder wait for `--source NAME=FOLDER`."""

    labels: Contract  # leaves and regions
    channels: tuple[str, ...]
    sources: Mapping[str, Source]

    @property
    def leaves(self) -> tuple[str, ...]:
        return self.labels.leaf_names


def presets() -> dict[str, Manifest]:
    """The manifest of every preset, by the name of the preset; each file has a label space of its
    own.
    """
    manifests = [load_manifest(path) for path in sorted(PRESETS.glob("*.toml"))]
    return {name: manifest for manifest in manifests for name in manifest.sources}


def load_manifest(path: Path) -> Manifest:
    """Read and check a manifest; its sources may be `like` another one or a preset."""
    content = read_toml(path)
    where = str(path)
    check_keys(content, {"leaves", "channels", "sources", "regions", "regions_class_order"}, where)
    leaves = get_texts(content, "leaves", where)
    channels = get_texts(content, "channels", where) if "channels" in content else ("MRI",)
    if (
        len(leaves) < 2
        or leaves[0] != "background"
        or len(set(leaves)) != len(leaves)
        or IGNORE in leaves
    ):
        raise LabelSetError(
            f"{where}: leaves: expected different names, 'background' first, without '{IGNORE}'"
        )
    for leaf in leaves:
        check_label(leaf, f"{where}: leaves")
    own = content.get("sources")
    if (
        not isinstance(own, dict)
        or not own
        or not all(isinstance(entry, dict) for entry in own.values())
    ):
        raise LabelSetError(f"{where}: expected at least one table [sources.NAME]")
    shipped = {
        name: entry
        for file in PRESETS.glob("*.toml")
        for name, entry in read_toml(file)["sources"].items()
    }
    sources = {}
    for name in own:
        check_name(name, f"{where}: source")
        entry = _with_inherited(name, [own, shipped], where)
        sources[name] = _read_source(name, entry, leaves, channels, path)
    return Manifest(_read_label_space(content, leaves, where), channels, sources)


def _with_inherited(
    name: str, tables: Sequence[Mapping[str, Any]], where: str, seen: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The keys of a source over those of the source that it is like: one of the first table, else a
    preset.
    """
    entry = dict(tables[0][name])
    like = entry.pop("like", None)
    if like is None:
        return entry
    if not isinstance(like, str):
        raise LabelSetError(
            f"{where}: sources.{name}: like: expected the name of a source, but got {like!r}"
        )
    if like in tables[0] and like not in (*seen, name):
        return {**_with_inherited(like, tables, where, (*seen, name)), **entry}
    if len(tables) == 1 or like not in tables[1]:
        others = [other for table in tables for other in table if other not in (*seen, name)]
        raise LabelSetError(
            f"{where}: sources.{name}: like: no other source '{like}'{did_you_mean(like, others)}"
        )
    return {**_with_inherited(like, tables[1:], where), **entry}


def _read_source(
    name: str,
    entry: Mapping[str, Any],
    leaves: tuple[str, ...],
    channels: tuple[str, ...],
    path: Path,
) -> Source:
    where = f"{path}: sources.{name}"
    check_keys(entry, SOURCE_KEYS, where)
    listed = "cases" in entry
    dicom = _read_dicom_rules(entry, channels, where)
    case = "[^/]+" if dicom else get_regex(entry, "case", where, "[^/]+")
    patterns: dict[Role, tuple[str, ...]] = {}
    if not listed and dicom is None:
        image = entry.get("image")
        by_channel = image if isinstance(image, dict) else {channels[0]: image}
        if set(by_channel) != set(channels):
            raise LabelSetError(
                f"{where}: image: expected one pattern for each channel: {', '.join(channels)}"
            )
        patterns = {
            Role(Kind.IMAGE, channel): get_patterns(by_channel, channel, where)
            for channel in channels
        }
        patterns[LABEL] = get_patterns(entry, "label", where)
    mask_kind = (
        Mask.LABELLED
        if entry.get("mask") == "labelled"
        else Mask.FILE
        if "mask" in entry and dicom is None
        else Mask.NONE
    )
    if mask_kind is Mask.FILE:
        patterns[MASK] = get_patterns(entry, "mask", where)
    per_structure = dicom is not None or any(
        "{structure}" in pattern for pattern in patterns.get(LABEL, ())
    )
    labels = _read_labels(get_table(entry, "labels", where), leaves, per_structure, where)
    varies = leaf_set(entry.get("varies", []), leaves, f"{where}: varies")
    if dicom is not None:  # what was not drawn in a case was not annotated there
        varies = frozenset().union(*labels.values()) - {0}
    # By default annotators looked for all that they have a label for, but for what varies from case
    # to case.
    annotated = (
        frozenset().union(*(sets for sets in labels.values() if len(sets) < len(leaves))) - varies
    )
    if "annotated" in entry:
        annotated = leaf_set(entry["annotated"], leaves, f"{where}: annotated")
    absorbs = get_table(entry, "absorbs", where) if "absorbs" in entry else {}
    return Source(
        name=name,
        description=get_text(entry, "description", where, ""),
        folder=path.parent / Path(get_text(entry, "folder", where)).expanduser()
        if "folder" in entry
        else None,
        part=get_choice(entry, "part", where, (TRAINING, TEST)),
        case=case,
        prefix=get_text(entry, "prefix", where, ""),
        patterns=patterns,
        per_structure=per_structure,
        mask_kind=mask_kind,
        exclude=get_texts(entry, "exclude", where) if "exclude" in entry else (),
        cases=path.parent / get_text(entry, "cases", where) if listed else None,
        labels=labels,
        annotated=annotated,
        varies=varies,
        absorbs={
            leaves.index(leaf): leaf_set(inner, leaves, f"{where}: absorbs.{leaf}")
            for leaf, inner in absorbs.items()
            if leaf_set(leaf, leaves, f"{where}: absorbs")
        },
        overlap=get_choice(entry, "overlap", where, ("error", "last")) == "last",
        first_volume=get_flag(entry, "first_volume", where),
        replace_nan=get_flag(entry, "replace_nan", where),
        dicom=dicom,
    )


def _read_dicom_rules(
    entry: Mapping[str, Any], channels: tuple[str, ...], where: str
) -> dicom_rules.DicomRules | None:
    """Return the rules of a source of kind "dicom", after checks of keys that it cannot have."""
    if get_choice(entry, "kind", where, ("files", "dicom")) == "files":
        stray = sorted(dicom_rules.KEYS & set(entry))
        if stray:
            raise LabelSetError(f'{where}: {stray[0]}: only for kind = "dicom"')
        return None
    for key in ("image", "label", "cases", "annotated", "varies", "first_volume"):
        if key in entry:
            raise LabelSetError(f'{where}: {key}: not for kind = "dicom": remove it')
    if len(channels) > 1:
        raise LabelSetError(f'{where}: kind = "dicom" has one channel, but got {len(channels)}')
    for name in get_table(entry, "labels", where):
        dicom_rules.compile_regex(name, f"{where}.labels: {name}")
    return dicom_rules.read_dicom_rules(entry, where)


def _read_labels(
    table: Mapping[str, Any], leaves: tuple[str, ...], per_structure: bool, where: str
) -> dict[str, LabelSet]:
    """What every value, or every structure, may be."""
    labels: dict[str, LabelSet] = {}
    for key, meaning in table.items():
        labels_where = f"{where}.labels: {key}"
        for value in [key] if per_structure else _values(key, labels_where):
            if value in labels:
                raise LabelSetError(f"{labels_where}: value {value} is given twice")
            every_leaf = meaning in (IGNORE, [IGNORE])
            labels[value] = (
                frozenset(range(len(leaves)))
                if every_leaf
                else leaf_set(meaning, leaves, labels_where)
            )
            if not labels[value]:
                raise LabelSetError(
                    f"{labels_where}: empty label-set: name the labels that such a voxel may be"
                )
    return labels


def check_label(name: str, where: str) -> None:
    """Fail if a label cannot be written in tables or files."""
    if name != name.strip() or name in ("", ALL, IGNORE) or ";" in name or not name.isprintable():
        raise LabelSetError(
            f"{where}: label {name!r}: expected a name without ';' and blanks around it, "
            f"other than '{ALL}' and '{IGNORE}': rename it"
        )


def leaf_set(names: Any, leaves: tuple[str, ...], where: str) -> LabelSet:
    """Leaf names, one or several, as a set of numbers."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise LabelSetError(f"{where}: expected a label or a list of labels, but got {names!r}")
    for name in names:
        if name not in leaves:
            raise LabelSetError(f"{where}: unknown label '{name}'{did_you_mean(name, leaves)}")
    return frozenset(leaves.index(name) for name in names)


def _read_label_space(content: Mapping[str, Any], leaves: tuple[str, ...], where: str) -> Contract:
    """The leaves with `[regions]` and `regions_class_order`, both in names of leaves."""
    if "regions" not in content and "regions_class_order" not in content:
        return Contract.of_leaves(leaves, where, None)
    table = get_table(content, "regions", where)
    members = {
        name: leaf_set(names, leaves, f"{where}: regions.{name}") for name, names in table.items()
    }
    if "regions_class_order" not in content:
        raise LabelSetError(
            f"{where}: regions_class_order: expected {len(members)} labels, one for each of "
            f"{', '.join(members)}"
        )
    order = get_texts(content, "regions_class_order", where)
    leaf_set(order, leaves, f"{where}: regions_class_order")
    return Contract.of_leaves(leaves, where, members, tuple(map(leaves.index, order)))


def _values(key: str, where: str) -> Iterator[str]:
    for text in key.replace(",", " ").split():
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last <= HIGHEST_VALUE:
            raise LabelSetError(
                f"{where}: expected values such as '3', '37 38' or '114-121', up to 65535"
            )
        yield from map(str, range(first, last + 1))
