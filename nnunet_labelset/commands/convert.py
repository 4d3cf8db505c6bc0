"""`nnunet_labelset convert`: from sources, described by presets or a manifest, to an nnU-Net raw
data set.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

from nnunet_labelset.commands.options import add_names, add_repeatable, add_target
from nnunet_labelset.dataset_conversion.addition import ConvertedDataset, new_cases, read_converted
from nnunet_labelset.dataset_conversion.dataset import closing_words, failure_text, write_dataset
from nnunet_labelset.dataset_conversion.plan import Options, Plan, plan
from nnunet_labelset.dataset_conversion.sources.cases import CaseRow, read_annotated_list
from nnunet_labelset.dataset_conversion.sources.manifest import (
    Manifest,
    choose_sources,
    leaf_set,
    preset_files,
    presets,
)
from nnunet_labelset.dataset_conversion.survey import survey
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.folders import nnunet_folder
from nnunet_labelset.nnunet.names import RAW
from nnunet_labelset.nnunet.publish import Target, dataset_folder, restore

EPILOG = """\
examples:
  nnunet_labelset convert -d 27 -n FetalBrain --source atlas=/data/atlas \\
      --source leuven_controls=/data/leuven --annotated annotated.csv \\
      --test-source feta=/data/feta_2.4
  nnunet_labelset convert -d 30 -n Abdomen -m abdomen.toml
  nnunet_labelset convert --presets
"""


class ListPresets(argparse.Action):
    """Print the presets and stop, like `--help`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        width = max(map(len, presets()))
        for name, manifest in presets().items():
            print(f"{name:{width}}  {manifest.sources[name].description}")
        parser.exit()


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_target(parser)
    source = "folder of training cases; NAME is a preset or a source of the manifest; repeatable"
    add_repeatable(parser, "--source", "NAME=FOLDER", source)
    add_repeatable(parser, "--test-source", "NAME=FOLDER", "folder of test cases")
    parser.add_argument(
        "-m",
        "--manifest",
        type=Path,
        metavar="FILE.toml",
        help="manifest that describes your own sources (docs/manifest.md)",
    )
    parser.add_argument(
        "--annotated",
        type=Path,
        metavar="FILE.csv",
        help="table with one row per case: columns case,annotated (such as 'liver;spleen', or "
        "'all'), or case and one yes/no column per label; optional columns: source, part, "
        "name (new name of the case)",
    )
    parser.add_argument(
        "--infer-annotated",
        action="store_true",
        help="where annotation varies, count a label as annotated in the cases that contain it",
    )
    complete = "treat all unlabelled voxels inside the mask as background in these sources or cases"
    add_names(parser, "--fully-annotated", "NAME", complete)
    add_names(
        parser,
        "--withhold",
        "LABEL",
        "make these labels unannotated, to simulate partial annotation",
    )
    withheld = "withhold only in these sources or cases (names or patterns, e.g. 'sub-0*')"
    add_names(parser, "--withhold-in", "NAME", withheld, "*")
    parser.add_argument(
        "--mask-images",
        type=float,
        nargs="?",
        const=2.0,
        metavar="MM",
        help="set the images to zero outside the mask, dilated by MM millimetres (default 2)",
    )
    parser.add_argument(
        "--link", action="store_true", help="link unchanged images instead of copying them"
    )
    parser.add_argument(
        "--prefix", action="store_true", help="put the name of the source before every case name"
    )
    parser.add_argument(
        "--safe-names",
        action="store_true",
        help="rename cases whose names cannot be file names (blanks, umlauts), listed in "
        "renamed_cases.csv; rows '1' of a case list also mean '001'",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print which labels are annotated in how many cases, and all problems (exit code 1 if "
        "there are any); write nothing",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="add new cases to the data set; existing cases are kept, and their source files and "
        "rules must not have changed",
    )
    parser.add_argument("--presets", action=ListPresets, nargs=0, help="list the presets and exit")


def run(args: argparse.Namespace) -> None:
    manifest, sources = choose_sources(args.manifest, args.source, args.test_source)
    folder = dataset_folder(args.o or nnunet_folder(RAW), args.d, args.n)
    rows, options = _read_rows(args.annotated, manifest), read_options(args, manifest)
    target = Target(folder, args.overwrite, args.add)
    before = read_present(target)
    others = {*manifest.sources, *preset_files()}
    planned = plan(sources, rows, options, others, before.parts if before is not None else ())
    if args.dry_run:
        print_survey(planned, before, args)
    else:
        written = write_dataset(target, planned, args.np, args.skip_bad_cases)
        print(closing_words(written, folder))


def _read_rows(path: Path | None, manifest: Manifest) -> Mapping[tuple[str, str], CaseRow]:
    """Return what the table of --annotated says about cases."""
    if path is None:
        return {}
    listed = read_annotated_list(path, manifest.leaves)
    for note in listed.notes:
        print(f"note: {path}: {note}")
    return listed.rows


def print_survey(planned: Plan, before: ConvertedDataset | None, args: argparse.Namespace) -> None:
    """Print what a conversion would find; fail where it would fail without reading a volume."""
    if before is not None:
        planned = new_cases(before, planned, args.np)
    print(survey(planned))
    problematic = {case for case, _ in planned.problems}
    good_jobs = [job for job in planned.jobs if job.case not in problematic]
    has_cases = before is not None
    if failure := failure_text(planned.problems, good_jobs, args.skip_bad_cases, has_cases):
        raise LabelSetError(failure)


def read_present(target: Target) -> ConvertedDataset | None:
    """Return the data set to which cases are added, if that was asked for."""
    if not target.adds:
        return None
    if target.overwrite:
        raise LabelSetError("--add keeps the data set, --overwrite replaces it: choose one")
    restore(target)
    return read_converted(target.folder)


def read_options(args: argparse.Namespace, manifest: Manifest) -> Options:
    withheld = leaf_set(args.withhold, manifest.leaves, "--withhold")
    if 0 in withheld:
        raise LabelSetError("--withhold background: background cannot be withheld")
    if args.mask_images is not None and not 0 <= args.mask_images < math.inf:
        raise LabelSetError(f"--mask-images {args.mask_images}: expected 0 mm or more")
    return Options(
        manifest=manifest,
        infer_annotated=args.infer_annotated,
        fully_annotated=tuple(args.fully_annotated),
        withhold=withheld,
        withhold_in=tuple(args.withhold_in),
        mask_images=args.mask_images,
        link=args.link,
        prefix=args.prefix,
        safe_names=args.safe_names,
    )
