"""`nnunet_labelset merge`: several nnU-Net data sets in one label space, by the names of their
labels.
"""

from __future__ import annotations

import argparse

from nnunet_labelset.commands.options import add_names, add_repeatable, add_target
from nnunet_labelset.dataset_conversion.dataset import closing_words, write_dataset
from nnunet_labelset.dataset_conversion.merge import merge_jobs, read_datasets
from nnunet_labelset.dataset_conversion.merge_names import (
    common_channels,
    common_labels,
    remarks,
    rename_labels,
)
from nnunet_labelset.dataset_conversion.plan import Options
from nnunet_labelset.dataset_conversion.sources.manifest import Manifest
from nnunet_labelset.nnunet.folders import nnunet_folder
from nnunet_labelset.nnunet.names import RAW
from nnunet_labelset.nnunet.publish import Target, dataset_folder

EPILOG = """\
example: data set 3 calls the tumour 'cancer', and in data set 12 'liver' includes the tumour:
  nnunet_labelset merge -d 50 -n Abdomen 3 9 12 --fully-annotated 3 9 --annotated 12=drawn.csv \\
      --label 3:cancer=liver_tumour --label 12:liver=liver+liver_tumour
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "datasets", nargs="+", metavar="DATASET", help="ids, names or folders of data sets"
    )
    add_target(parser)
    annotated = (
        "table of what is annotated in each case of a data set without label-sets (columns "
        "case,annotated); "
        "repeatable"
    )
    add_repeatable(parser, "--annotated", "[DATASET=]FILE.csv", annotated)
    complete = "data sets without label-sets in which every label was drawn in every case"
    add_names(parser, "--fully-annotated", "DATASET", complete)
    label = "rename a label of a data set, or say which labels it may be; repeatable"
    add_repeatable(parser, "--label", "DATASET:LABEL=NAME[+NAME]", label)
    parser.add_argument(
        "--channels",
        nargs="+",
        metavar="NAME",
        help="names of the channels, in the order of the files, if the data sets name them "
        "differently; channels with the same names are put in order by name",
    )
    parser.add_argument(
        "--prefix", action="store_true", help="put the name of the data set before every case name"
    )
    parser.add_argument(
        "--copy", action="store_true", help="copy the images instead of linking them"
    )


def run(args: argparse.Namespace) -> None:
    datasets = read_datasets(args.datasets, args.annotated, args.fully_annotated)
    rename_labels(datasets, args.label)
    labels = common_labels(datasets)
    channels = common_channels(datasets, args.channels)
    options = Options(Manifest(labels, channels), link=not args.copy, prefix=args.prefix)
    folder = dataset_folder(args.o or nnunet_folder(RAW), args.d, args.n)
    plan = merge_jobs(datasets, options)
    written = write_dataset(Target(folder, args.overwrite), plan, args.np, args.skip_bad_cases)
    notes = remarks(datasets, labels, channels, linked=not args.copy)
    print(closing_words(written, folder, notes))
