"""`nnunet_labelset convert`: from sources, described by presets or a manifest, to an nnU-Net raw data set."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from nnunet_labelset.dataset_conversion.case_list import read_case_list
from nnunet_labelset.dataset_conversion.manifest import Manifest, Source, leaf_set, load_manifest, presets
from nnunet_labelset.dataset_conversion.plan import Options, plan
from nnunet_labelset.dataset_conversion.summary import summary
from nnunet_labelset.dataset_conversion.writer import Target, dataset_folder, write_dataset
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import nnunet_folder
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


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_target_arguments(parser)
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="training cases: a preset or a source of the manifest, and its folder; repeatable",
    )
    parser.add_argument(
        "--test-source", action="append", default=[], metavar="NAME=FOLDER", help="test cases, likewise"
    )
    parser.add_argument(
        "-m", "--manifest", type=Path, metavar="FILE.toml", help="sources of your own (docs/manifest.md)"
    )
    parser.add_argument(
        "--annotated",
        type=Path,
        metavar="FILE.csv",
        help="one row per case: case, annotated (leaves separated by ';', or 'all'); optional: source, part",
    )
    parser.add_argument(
        "--infer-annotated",
        action="store_true",
        help="where annotation varies from case to case, what occurs in a file is annotated in it",
    )
    parser.add_argument(
        "--withhold",
        nargs="+",
        default=[],
        metavar="LEAF",
        help="make these leaves unannotated, to simulate partial annotation",
    )
    parser.add_argument(
        "--withhold-in",
        nargs="+",
        default=["*"],
        metavar="NAME",
        help="only in these sources or cases (names, or patterns such as 'sub-0*')",
    )
    parser.add_argument(
        "--mask-images",
        type=float,
        nargs="?",
        const=2.0,
        metavar="MM",
        help="zero the images outside the mask, dilated by MM millimetres (default 2)",
    )
    parser.add_argument("--link", action="store_true", help="link unchanged images instead of copying them")
    parser.add_argument("--prefix", action="store_true", help="put the name of the source before every case name")
    parser.add_argument("--presets", action=ListPresets, nargs=0, help="list the presets and stop")


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


def run(args: argparse.Namespace) -> None:
    manifest, sources = choose_sources(args)
    folder = dataset_folder(args.o or nnunet_folder("nnUNet_raw"), args.d, args.n)
    rows = read_case_list(args.annotated, manifest.leaves) if args.annotated else {}
    withheld = leaf_set(args.withhold, manifest.leaves, "--withhold")
    if 0 in withheld:
        raise LabelSetError("--withhold background: background cannot be withheld")
    if args.mask_images is not None and args.mask_images < 0:
        raise LabelSetError(f"--mask-images {args.mask_images}: expected 0 mm or more")
    options = Options(
        manifest.leaves,
        manifest.channels,
        args.infer_annotated,
        withheld,
        tuple(args.withhold_in),
        args.mask_images,
        args.link,
        args.prefix,
    )
    made = plan(sources, rows, options, {**manifest.sources, **presets().sources})
    target = Target(
        folder, manifest.leaves, manifest.channels, overwrite=args.overwrite, skip_bad_cases=args.skip_bad_cases
    )
    written = write_dataset(target, made.jobs, made.problems, args.np)
    print(summary(written, folder, made.notes))


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
