"""`nnunet_labelset merge`: several nnU-Net data sets in one label space, by the names of their labels."""

from __future__ import annotations

import argparse

from nnunet_labelset.dataset_conversion.dataset import Target, dataset_folder, write_dataset
from nnunet_labelset.dataset_conversion.job import CaseJob
from nnunet_labelset.dataset_conversion.meaning import Scheme
from nnunet_labelset.dataset_conversion.merge import (
    EPILOG,
    Part,
    check_label_options,
    common_channels,
    common_leaves,
    merged_sets,
    read_part,
)
from nnunet_labelset.dataset_conversion.sources.chosen import add_target_arguments
from nnunet_labelset.dataset_conversion.summary import summary
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import check_name
from nnunet_labelset.nnunet.folders import nnunet_folder
from nnunet_labelset.nnunet.raw import RawCase, file_ending


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("datasets", nargs="+", metavar="DATASET", help="ids, names or folders of data sets")
    add_target_arguments(parser)
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="DATASET:LABEL=LEAF[+LEAF]",
        help="rename a label of a data set, or say which leaves it may be; repeatable",
    )
    parser.add_argument("--channels", nargs="+", metavar="NAME", help="names of the channels, where data sets differ")
    parser.add_argument("--prefix", action="store_true", help="put the name of the data set before every case name")
    parser.add_argument("--copy", action="store_true", help="copy the images instead of linking them")


def run(args: argparse.Namespace) -> None:
    parts = [read_part(given, args.label) for given in args.datasets]
    folders = [part.folder.resolve() for part in parts]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise LabelSetError(f"{parts[number].given}: the data set {folder.name} is given twice")
    check_label_options(parts, args.label)
    channels = common_channels(parts, args.channels)
    endings = {file_ending(part.dataset_json) for part in parts}
    ending = endings.pop() if len(endings) == 1 else ".nii.gz"
    leaves = common_leaves(parts)
    folder = dataset_folder(args.o or nnunet_folder("nnUNet_raw"), args.d, args.n)
    jobs: list[CaseJob] = []
    problems: list[tuple[str, str]] = []
    seen: dict[str, str] = {}
    for part in parts:
        for case in part.cases:
            name = f"{part.name}_{case.name}" if args.prefix else case.name
            try:
                check_name(name, f"{part.folder}: case")
                if name.lower() in seen:
                    raise LabelSetError(f"{part.folder}: case '{name}' is also in {seen[name.lower()]}: use --prefix")
                seen[name.lower()] = str(part.folder)
                jobs.append(_job(name, part, case, leaves, len(channels), not args.copy, ending))
            except LabelSetError as error:
                problems.append((name, str(error)))
    target = Target(folder, leaves, channels, ending, args.overwrite, args.skip_bad_cases)
    print(summary(write_dataset(target, jobs, problems, args.np), folder, []))


def _job(
    name: str, part: Part, case: RawCase, leaves: tuple[str, ...], channels: int, link: bool, ending: str
) -> CaseJob:
    if len(case.images) != channels:
        raise LabelSetError(f"{part.folder}: case '{case.name}' has {len(case.images)} images, expected {channels}")
    values, source = {}, part.name
    if case.label is not None:
        values = merged_sets(part, part.contract.sets_of(case.name), leaves)
        if part.has_contract and len(part.contract.protocols) > 1:
            source = f"{part.name}_{part.contract.protocol_of(case.name)}"
    return CaseJob(
        name,
        source,
        case.part,
        case.images,
        () if case.label is None else (case.label,),
        None,
        Scheme(len(leaves), values, unlabelled=values.get(0, frozenset([0]))),
        leaves,
        link=link,
        ending=ending,
    )
