"""The sources of a run: those of a manifest that have a folder, and those asked for by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nnunet_labelset.dataset_conversion.sources.manifest import (
    Manifest,
    Source,
    load_manifest,
    preset_files,
)
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.nnunet.raw import TEST, TRAINING


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
