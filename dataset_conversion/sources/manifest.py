"""Manifests: TOML files that say where the files of a source lie and what their values mean.
Presets are such files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from nnunet_labelset.contract import IGNORE, Contract, LabelSet
from nnunet_labelset.contract.annotated_table import ALL
from nnunet_labelset.dataset_conversion.meaning import Mask
from nnunet_labelset.dataset_conversion.regrid import (
    GridRules,
    Interpolation,
    Outside,
    Resample,
)
from nnunet_labelset.dataset_conversion.sources import dicom_rules
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import check_name
from nnunet_labelset.io.flat import is_picture
from nnunet_labelset.io.toml import (
    check_keys,
    get_choice,
    get_flag,
    get_regex,
    get_rule,
    get_table,
    get_text,
    get_texts,
    read_toml,
)
from nnunet_labelset.io.volume import HIGHEST_VALUE
from nnunet_labelset.nnunet.raw import TEST, TRAINING

PLACEHOLDERS = ("case", "structure")
PRESETS = Path(str(files("nnunet_labelset.dataset_conversion.presets")))
SOURCE_KEYS = {
    "like", "description", "folder", "part", "case", "prefix", "image", "label", "mask", "exclude",
    "cases", "labels", "annotated", "varies", "absorbs", "overlap", "first_volume", "replace_nan",
    "kind", "raters", "resample", "interpolation", "outside",
    *dicom_rules.KEYS,
}  # fmt: skip


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


class SourceKind(Enum):
    """What the files of a source are."""

    FILES = "files"
    DICOM = "dicom"
    SLICER = "slicer"


# Keys that a kind of source cannot have.
FOREIGN_KEYS = {
    SourceKind.FILES: dicom_rules.KEYS,
    SourceKind.DICOM: {
        *("image", "label", "cases", "annotated", "varies", "first_volume"),
        *("raters", "resample", "interpolation", "outside"),
    },
    SourceKind.SLICER: {"annotated", "varies", "raters", *dicom_rules.KEYS}
    - {dicom_rules.SEVERAL_ROIS},
}


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
    grid: GridRules
    dicom: dicom_rules.DicomRules | None = None
    several_segments: dicom_rules.SeveralRois | None = None  # of files of 3D Slicer

    @property
    def finds_names(self) -> bool:
        """Whether the structures of a case are found by names in its files."""
        return self.dicom is not None or self.several_segments is not None


@dataclass(frozen=True)
class Manifest:
    """Leaves, channels and sources; `sources` without a folder wait for `--source NAME=FOLDER`."""

    labels: Contract  # leaves and regions
    channels: tuple[str, ...]
    sources: Mapping[str, Source] = field(default_factory=dict)

    @property
    def leaves(self) -> tuple[str, ...]:
        return self.labels.leaf_names


def preset_files() -> dict[str, Path]:
    """Return the file of every preset, by the name of the preset."""
    paths = sorted(PRESETS.glob("*.toml"))
    return {name: path for path in paths for name in read_toml(path)["sources"]}


def presets() -> dict[str, Manifest]:
    """Return the manifest of every preset; each file has a label space of its own."""
    return {name: load_manifest(path) for name, path in preset_files().items()}


def load_manifest(path: Path) -> Manifest:
    """Read and check a manifest; its sources may be `like` another one or a preset."""
    content = read_toml(path)
    where = str(path)
    check_keys(content, {"leaves", "channels", "sources", "regions", "regions_class_order"}, where)
    leaves = _read_leaves(content, where)
    channels = get_texts(content, "channels", where) if "channels" in content else ("MRI",)
    own = content.get("sources")
    if not isinstance(own, dict) or not own or not all(map(_is_table, own.values())):
        raise LabelSetError(f"{where}: expected at least one table [sources.NAME]")
    shipped: dict[str, Any] = {}
    for file in PRESETS.glob("*.toml"):
        shipped |= read_toml(file)["sources"]
    sources = {}
    for name in own:
        check_name(name, f"{where}: source")
        entry = _with_inherited(name, [own, shipped], where)
        sources[name] = _read_source(name, entry, leaves, channels, path)
    return Manifest(_read_label_space(content, leaves, where), channels, sources)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _read_leaves(content: Mapping[str, Any], where: str) -> tuple[str, ...]:
    leaves = get_texts(content, "leaves", where)
    are_different = len(leaves) >= 2 and len(set(leaves)) == len(leaves)
    if not are_different or leaves[0] != "background" or IGNORE in leaves:
        raise LabelSetError(
            f"{where}: leaves: expected different names, 'background' first, without '{IGNORE}'"
        )
    for leaf in leaves:
        check_label(leaf, f"{where}: leaves")
    return leaves


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
    kind = get_rule(entry, "kind", where, SourceKind)
    dicom = _read_dicom_rules(kind, entry, channels, where)
    patterns = {} if dicom is not None else read_patterns(entry, channels, where)
    by_name = kind is not SourceKind.FILES
    per_structure = by_name or any("{structure}" in text for text in patterns.get(LABEL, ()))
    labels = _read_labels(get_table(entry, "labels", where), leaves, per_structure, where)
    varies = leaf_set(entry.get("varies", []), leaves, f"{where}: varies")
    if by_name:  # what was not drawn in a case was not annotated there
        _check_expressions(labels, where)
        varies = frozenset().union(*labels.values()) - {0}
    return Source(
        name=name,
        description=get_text(entry, "description", where, ""),
        folder=_path(entry, "folder", where, path),
        part=get_choice(entry, "part", where, (TRAINING, TEST)),
        case="[^/]+" if dicom else get_regex(entry, "case", where, "[^/]+"),
        prefix=get_text(entry, "prefix", where, ""),
        patterns=patterns,
        per_structure=per_structure,
        mask_kind=_mask_kind(entry, kind),
        exclude=get_texts(entry, "exclude", where) if "exclude" in entry else (),
        cases=_case_list(entry, where, path),
        labels=labels,
        annotated=_read_annotated(entry, labels, varies, leaves, where),
        varies=varies,
        absorbs=_read_absorbs(entry, leaves, where),
        overlap=get_choice(entry, "overlap", where, ("error", "last")) == "last",
        first_volume=get_flag(entry, "first_volume", where),
        replace_nan=get_flag(entry, "replace_nan", where),
        grid=_read_grid_rules(entry, kind, where),
        dicom=dicom,
        several_segments=get_rule(entry, dicom_rules.SEVERAL_ROIS, where, dicom_rules.SeveralRois)
        if kind is SourceKind.SLICER
        else None,
    )


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


def get_patterns(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    patterns = get_texts(table, key, where)
    for pattern in patterns:
        if "{case}" not in pattern:
            raise LabelSetError(f"{where}: {key}: pattern '{pattern}' has no {{case}}")
        for word in re.findall(r"\{(\w+)\}", pattern):
            if word not in PLACEHOLDERS:
                raise LabelSetError(
                    f"{where}: {key}: pattern '{pattern}': unknown placeholder {{{word}}}: "
                    "expected {case} or {structure}; write * for a part that does not matter"
                )
    return patterns


def _path(entry: Mapping[str, Any], key: str, where: str, manifest: Path) -> Path | None:
    if key not in entry:
        return None
    return manifest.parent / Path(get_text(entry, key, where)).expanduser()


def _case_list(entry: Mapping[str, Any], where: str, manifest: Path) -> Path | None:
    """Return the file that lists the cases: beside the manifest, or else in the folder."""
    beside = _path(entry, "cases", where, manifest)
    folder = _path(entry, "folder", where, manifest)
    if beside is None or folder is None or beside.exists():
        return beside
    inside = folder / get_text(entry, "cases", where)
    return inside if inside.exists() else beside


def _mask_kind(entry: Mapping[str, Any], kind: SourceKind) -> Mask:
    if entry.get("mask") == "labelled":
        return Mask.LABELLED
    return Mask.FILE if "mask" in entry and kind is not SourceKind.DICOM else Mask.NONE


def _read_annotated(
    entry: Mapping[str, Any],
    labels: Mapping[str, LabelSet],
    varies: LabelSet,
    leaves: tuple[str, ...],
    where: str,
) -> LabelSet:
    """Return what annotators looked for: by default all that they have a label for, but for what
    varies from case to case.
    """
    if "annotated" in entry:
        return leaf_set(entry["annotated"], leaves, f"{where}: annotated")
    partial_sets = (meaning for meaning in labels.values() if len(meaning) < len(leaves))
    return frozenset[int]().union(*partial_sets) - varies


def _read_absorbs(
    entry: Mapping[str, Any], leaves: tuple[str, ...], where: str
) -> dict[int, LabelSet]:
    table = get_table(entry, "absorbs", where) if "absorbs" in entry else {}
    leaf_set(list(table), leaves, f"{where}: absorbs")
    return {
        leaves.index(leaf): leaf_set(inner, leaves, f"{where}: absorbs.{leaf}")
        for leaf, inner in table.items()
    }


def _read_grid_rules(entry: Mapping[str, Any], kind: SourceKind, where: str) -> GridRules:
    rules = GridRules(
        resample=get_rule(entry, "resample", where, Resample),
        interpolation=get_rule(entry, "interpolation", where, Interpolation),
        outside=get_rule(entry, "outside", where, Outside),
    )
    if kind is SourceKind.SLICER and "outside" not in entry:  # Slicer crops what it saves
        return replace(rules, outside=Outside.UNLABELLED)
    if rules.resample is Resample.NEVER and {"interpolation", "outside"} & set(entry):
        raise LabelSetError(f'{where}: interpolation and outside need resample = "to image"')
    return rules


def _read_dicom_rules(
    kind: SourceKind, entry: Mapping[str, Any], channels: tuple[str, ...], where: str
) -> dicom_rules.DicomRules | None:
    """Return the rules of a source of kind "dicom", after checking the keys of every kind."""
    for key in sorted(FOREIGN_KEYS[kind] & set(entry)):
        raise LabelSetError(f'{where}: {key}: not for kind = "{kind.value}": remove it')
    if kind is not SourceKind.DICOM:
        return None
    if len(channels) > 1:
        raise LabelSetError(f'{where}: kind = "dicom" has one channel, but got {len(channels)}')
    return dicom_rules.read_dicom_rules(entry, where)


def _check_expressions(names: Iterable[str], where: str) -> None:
    for name in names:
        dicom_rules.compile_regex(name, f"{where}.labels: {name}")


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


def choose_sources(
    path: Path | None, training: Sequence[str], test: Sequence[str]
) -> tuple[Manifest, list[Source]]:
    """Return the label space, and the sources with their folders.

    `training` and `test` are texts NAME=FOLDER.
    """
    own = load_manifest(path) if path else None
    sources = _sources_with_files(own) if own is not None else []
    manifest = own
    for part, texts in ((TRAINING, training), (TEST, test)):
        for text in texts:
            name, folder, other = _named_source(text, own)
            manifest = manifest or other
            _check_label_space(name, other, manifest, path)
            sources.append(replace(other.sources[name], folder=folder, part=part))
    if manifest is None or not sources:
        raise LabelSetError(
            "no source: give --source NAME=FOLDER ('convert --presets' lists them) or -m FILE.toml"
        )
    return manifest, sources


def _sources_with_files(manifest: Manifest) -> list[Source]:
    return [source for source in manifest.sources.values() if source.folder or source.cases]


def _named_source(text: str, own: Manifest | None) -> tuple[str, Path, Manifest]:
    """Return the name and the folder in NAME=FOLDER, and the manifest that has the source."""
    name, _, folder = text.partition("=")
    if not name or not folder:
        raise LabelSetError(
            f"--source {text}: expected NAME=FOLDER; 'convert --presets' lists the names"
        )
    path = Path(folder).expanduser()
    if own is not None and name in own.sources:
        return name, path, own
    shipped = preset_files()
    if name not in shipped:
        known = [*shipped, *(own.sources if own is not None else ())]
        raise LabelSetError(f"--source {text}: no such source{did_you_mean(name, known)}")
    return name, path, load_manifest(shipped[name])


def _check_label_space(name: str, other: Manifest, manifest: Manifest, path: Path | None) -> None:
    if (manifest.leaves, manifest.channels) != (other.leaves, other.channels):
        first = path or f"'{next(iter(manifest.sources))}'"
        raise LabelSetError(
            f"--source {name}: the preset has other labels or channels than {first}"
        )
