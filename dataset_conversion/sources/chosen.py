"""The sources of a run: those of a manifest that have a folder, and those asked for by name."""

from __future__ import annotations

from collections.abc import Sequence
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
    known = {**presets(), **(dict.fromkeys(manifest.sources, manifest) if manifest else {})}
    sources = (
        [source for source in manifest.sources.values() if source.folder or source.cases]
        if manifest
        else []
    )
    for part, texts in ((TRAINING, training), (TEST, test)):
        for text in texts:
            name, _, folder = text.partition("=")
            if not name or not folder:
                raise LabelSetError(
                    f"--source {text}: expected NAME=FOLDER; 'convert --presets' lists the names"
                )
            if name not in known:
                raise LabelSetError(f"--source {text}: no such source{did_you_mean(name, known)}")
            manifest = manifest or known[name]
            if (manifest.leaves, manifest.channels) != (known[name].leaves, known[name].channels):
                other = path or f"'{next(iter(manifest.sources))}'"
                raise LabelSetError(
                    f"--source {name}: the preset has other labels or channels than {other}"
                )
            sources.append(
                replace(known[name].sources[name], folder=Path(folder).expanduser(), part=part)
            )
    if manifest is None or not sources:
        raise LabelSetError(
            "no source: give --source NAME=FOLDER ('convert --presets' lists them) or -m FILE.toml"
        )
    return manifest, sources
