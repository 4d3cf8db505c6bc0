"""`nnunet_labelset convert`: from sources, described by presets or a manifest, to an nnU-Net raw data set."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from nnunet_labelset.dataset_conversion.sources.manifest import Manifest, Source, load_manifest, presets
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.parallel import default_processes
from nnunet_labelset.nnunet.raw import TEST, TRAINING

EPILOG = """\
examples:
  nnunet_labelset convert -d 27 -n FetalBrain --source atlas=/data/atlas --source leuven_controls=/data/leuven \\
      --annotated annotated.csv --test-source feta=/data/feta_2.4
  nnunet_labelset convert -d 30 -n Abdomen -m abdomen.toml
  nnunet_labelset convert --presets
"""


class ListPresets(argparse.Action):
    """Print the presets and stop, like `--help`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sources = presets().sources
        width = max(map(len, sources))
        for name, source in sources.items():
            print(f"{name:{width}}  {source.description}")
        parser.exit()


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """What `convert` and `merge` have in common."""
    parser.add_argument("-d", type=int, required=True, metavar="ID", help="id of the new data set")
    parser.add_argument("-n", required=True, metavar="NAME", help="name of the new data set")
    parser.add_argument("-o", type=Path, metavar="FOLDER", help="where to write it (default: $nnUNet_raw)")
    parser.add_argument("-np", type=int, default=default_processes(), help="processes (default %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace the data set if it exists")
    parser.add_argument(
        "--skip-bad-cases", action="store_true", help="leave out cases with problems instead of stopping"
    )


def choose_sources(args: argparse.Namespace) -> tuple[Manifest, list[Source]]:
    """The label space, and the sources with their folders: those of the manifest that have one, and those asked for."""
    shipped = presets()
    manifest = load_manifest(args.manifest) if args.manifest else shipped
    sources = [source for source in manifest.sources.values() if source.folder or source.cases]
    for part, texts in ((TRAINING, args.source), (TEST, args.test_source)):
        for text in texts:
            name, _, folder = text.partition("=")
            if not name or not folder:
                raise LabelSetError(f"--source {text}: expected NAME=FOLDER; 'convert --presets' lists the names")
            origin = manifest
            if name not in {**manifest.sources, **shipped.sources}:
                hint = did_you_mean(name, {**manifest.sources, **shipped.sources})
                raise LabelSetError(f"--source {text}: no such source{hint}")
            if name not in manifest.sources:
                origin = shipped
                if (manifest.leaves, manifest.channels) != (shipped.leaves, shipped.channels):
                    raise LabelSetError(
                        f"--source {name}: the preset has other leaves or channels than {args.manifest}"
                    )
            sources.append(replace(origin.sources[name], folder=Path(folder).expanduser(), part=part))
    if not sources:
        raise LabelSetError("no source: give --source NAME=FOLDER ('convert --presets' lists them) or -m FILE.toml")
    return manifest, sources
