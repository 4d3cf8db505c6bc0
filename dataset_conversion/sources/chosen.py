"""The sources of a run: those of a manifest that have a folder, and those asked for by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nnunet_labelset.dataset_conversion.sources.manifest import (
    Manifest,
    Source,
    load_manifest,
    presets,
)
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.nnunet.raw import TEST, TRAINING


def choose_sources(
    path: Path | None, training: Sequence[str], test: Sequence[str]
) -> tuple[Manifest, list[Source]]:
    """The label space, and the sources with their folders; `training` and `test` are texts
    NAME=FOLDER.
    """
    manifest = load_manifest(path) if path else None
    known = presets()
    sources: list[Source] = []
    if manifest:
        known = {**known, **dict.fromkeys(manifest.sources, manifest)}
        with_files = (
            source for source in manifest.sources.values() if source.folder or source.cases
        )
        sources.extend(with_files)
    for part, texts in ((TRAINING, training), (TEST, test)):
        for text in texts:
            name, folder = _name_and_folder(text, known)
            manifest = manifest or known[name]
            if (manifest.leaves, manifest.channels) != (known[name].leaves, known[name].channels):
                other = path or f"'{next(iter(manifest.sources))}'"
                raise LabelSetError(
                    f"--source {name}: the preset has other labels or channels than {other}"
                )
            sources.append(replace(known[name].sources[name], folder=folder, part=part))
    if manifest is None or not sources:
        raise LabelSetError(
            "no source: give --source NAME=FOLDER ('convert --presets' lists them) or -m FILE.toml"
        )
    return manifest, sources


def _name_and_folder(text: str, known: Mapping[str, Manifest]) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not name or not folder:
        raise LabelSetError(
            f"--source {text}: expected NAME=FOLDER; 'convert --presets' lists the names"
        )
    if name not in known:
        raise LabelSetError(f"--source {text}: no such source{did_you_mean(name, known)}")
    return name, Path(folder).expanduser()
