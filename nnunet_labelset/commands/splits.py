"""`nnunet_labelset splits`: nnU-Net's `splits_final.json`, stratified by protocol, every fold
trained on every label.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from nnunet_labelset.commands.options import add_dataset, add_names
from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.completed import COMPLETED
from nnunet_labelset.dataset_conversion.records import read_provenance
from nnunet_labelset.datasets.folds import (
    SEED,
    Split,
    Subject,
    always_trained,
    joined_subjects,
    k_folds,
    random_splits,
    read_subjects,
    subjects_of,
)
from nnunet_labelset.datasets.slips import file_checksums, same_images
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import case_files, read_json, write_json
from nnunet_labelset.io.lock import locked
from nnunet_labelset.io.tables import column_of_cases
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.folders import find_dataset, nnunet_folder
from nnunet_labelset.nnunet.models import trained_networks
from nnunet_labelset.nnunet.names import PREPROCESSED, REFERENCES, SPLITS, TRAINED, VALIDATED
from nnunet_labelset.nnunet.publish import PROVENANCE
from nnunet_labelset.nnunet.raw import file_ending, raw_cases, read_dataset, training_cases

WIDTH = 100
DEFAULT_FRACTION = 0.1  # of the cases, validated by each random split


def configure(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "-k",
        type=int,
        default=5,
        help="number of folds of a cross-validation (default: %(default)s)",
    )
    kind.add_argument(
        "--random", type=int, metavar="N", help="make N random splits instead (10 in the paper)"
    )
    parser.add_argument(
        "--val-fraction",
        type=float,
        metavar="F",
        help="fraction of cases that a random split validates (default: 0.1)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=SEED,
        help="random seed (default: %(default)s)",
    )
    parser.add_argument(
        "--subject",
        metavar="PATTERN|COLUMN",
        help="keep the cases of a subject together: a regular expression whose first group is the "
        "subject in the case name, such as '(sub-[0-9]+)', or a column of --table",
    )
    parser.add_argument(
        "--table",
        metavar="FILE",
        help="table of the cases (.tsv or .csv) that has the column named by --subject",
    )
    add_names(parser, "--exclude", "CASE", "cases to leave out of every split")
    parser.add_argument("--overwrite", action="store_true", help="replace existing splits")


def run(args: argparse.Namespace) -> None:
    _check_options(args)
    folder, contract, cases = _training_cases(args.d)
    target = nnunet_folder(PREPROCESSED) / folder.resolve().name / SPLITS
    with locked(folder.resolve()):
        cases = _without_excluded(cases, args.exclude)
        named = _named_subjects(args, cases)
        copies = _copies(folder, cases)
        subjects = joined_subjects(subjects_of(contract, cases, named), copies)
        splits = _new_splits(args, subjects)
        networks = _replaced_networks(target, splits) if args.overwrite else []
        state = _write(target, splits, args.overwrite)
    print(f"{state} {target}: {len(splits)} splits of {len(cases)} cases, {len(subjects)} subjects")
    _print_splits(splits, contract)
    _print_notes([*_copy_notes(copies), *_notes(contract, cases, named, subjects, networks)])


def _check_options(args: argparse.Namespace) -> None:
    if args.table and not args.subject:
        raise LabelSetError("--table needs --subject COLUMN: the column that names the subject")
    if args.val_fraction is not None and args.random is None:
        raise LabelSetError(
            "--val-fraction needs --random N: folds of a cross-validation have a fixed size"
        )


def _without_excluded(cases: list[str], excluded: list[str]) -> list[str]:
    for case in excluded:
        if case not in cases:
            raise LabelSetError(
                f"--exclude {case}: no training case of this name{did_you_mean(case, cases)}"
            )
    return [case for case in cases if case not in excluded]


def _named_subjects(args: argparse.Namespace, cases: list[str]) -> dict[str, str] | None:
    """Return the subjects that --subject names, by case; None without it."""
    if not args.subject:
        return None
    if args.table:
        return column_of_cases(args.table, args.subject, cases)
    subjects = read_subjects(args.subject, cases)
    if len(cases) > 1 and len({subjects.get(case, case) for case in cases}) == 1:
        subject = next(iter(subjects.values()))
        raise LabelSetError(
            f"--subject {args.subject}: '{subject}' would be the subject of all {len(cases)} "
            f"cases: add to the pattern what differs, such as '{args.subject}[0-9]+'"
        )
    return subjects


def _copies(folder: Path, cases: Collection[str]) -> list[list[str]]:
    """Return the cases that have the same image, or were made from the same file.

    In two folds, a network would be validated on an image that it was trained on.
    """
    raw = raw_cases(folder, read_dataset(folder)[0])  # a preprocessed data set has no images
    files = {case.name: case.images[0] for case in raw if case.images and case.name in cases}
    groups = same_images(file_checksums(files))
    with suppress(LabelSetError):  # only `convert` and `merge` write this file
        origins = read_provenance(folder / PROVENANCE)
        sources = {case: origins[case].first_image for case in cases if case in origins}
        groups += [group for group in same_images(sources) if group not in groups]
    return groups


def _copy_notes(copies: list[list[str]]) -> Iterator[str]:
    for group in copies:
        yield (
            f"the same image in {some(group)}: kept in one fold; a copy counts twice, so "
            f"remove all but one, or leave them out: --exclude {' '.join(group[1:])}"
        )


def _new_splits(args: argparse.Namespace, subjects: list[Subject]) -> list[Split]:
    if args.random is None:
        return k_folds(subjects, args.k, args.seed)
    fraction = DEFAULT_FRACTION if args.val_fraction is None else args.val_fraction
    return random_splits(subjects, args.random, fraction, args.seed)


def _print_splits(splits: list[Split], contract: Contract) -> None:
    for number, split in enumerate(splits):
        protocols = Counter(contract.protocol_name(case) for case in split[VALIDATED])
        counts = [f"{protocols[name]} {name}" for name in contract.protocols if protocols[name]]
        start = f"  fold {number}: {len(split[TRAINED])} train, {len(split[VALIDATED])} val"
        line = f"{start} ({some(counts, 8)})"
        print(line if len(line) <= WIDTH else "\n    ".join([f"{start}:", *counts]))


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"note: {note}")


def _notes(
    contract: Contract,
    cases: list[str],
    named: dict[str, str] | None,
    subjects: list[Subject],
    networks: list[str],
) -> Iterator[str]:
    """Yield what a user should know about the new splits."""
    unnamed = [] if named is None else [case for case in cases if case not in named]
    if unnamed:
        yield f"{some(unnamed)}: --subject finds no subject there: each case is its own subject"
    annotating = Counter(leaf for subject in subjects for leaf in subject.leaves)
    for alone in always_trained(subjects):
        labels = some(leaf for leaf in contract.leaf_names if _is_only(leaf, alone, annotating))
        yield f"{some(alone.cases)} is in no validation: no other case annotates {labels}"
    never = [leaf for leaf in contract.leaf_names[1:] if not annotating[leaf]]
    if never:
        yield f"{some(never)}: no case annotates it completely, so the splits do not balance it"
    if networks:
        yield (
            f"trained with the replaced splits: {some(networks, 20)}: train these again; "
            f"validating them on the new folds would score them on their own training cases"
        )


def _is_only(leaf: str, subject: Subject, annotating: Counter[str]) -> bool:
    return leaf in subject.leaves and annotating[leaf] == 1


def _training_cases(dataset: str) -> tuple[Path, Contract, list[str]]:
    """From the raw data set, or where that is not at hand from the preprocessed one."""
    try:
        folder = find_dataset(dataset)
    except LabelSetError as error:
        try:
            folder = find_dataset(dataset, PREPROCESSED)
        except LabelSetError:
            raise error from None
    dataset_json, contract = read_dataset(folder)
    # its copies are for training only, and each belongs to the fold that made it
    if COMPLETED in dataset_json:
        raise LabelSetError(
            f"{folder}: completed by a model: keep the {SPLITS} that 'nnunet_labelset complete' "
            "wrote; if it is lost, complete again"
        )
    if (folder / REFERENCES).is_dir():
        cases = list(case_files(folder / REFERENCES, file_ending(dataset_json)))
    else:
        cases = training_cases(folder, dataset_json)
    contract.require_cases(cases)
    return folder, contract, cases


def _replaced_networks(path: Path, splits: list[Split]) -> list[str]:
    """Return the networks that were trained with the splits in this file, if they are others."""
    return trained_networks(path.parent.name) if path.is_file() and not _has(path, splits) else []


def _has(path: Path, splits: list[Split]) -> bool:
    with suppress(LabelSetError):  # what is not readable is not the same
        return bool(read_json(path, list) == splits)
    return False


def _write(path: Path, splits: list[Split], overwrite: bool) -> str:
    """Write unless the same is there already, and say so; other splits are kept, unless
    `overwrite`.
    """
    if path.is_file() and not overwrite:
        if _has(path, splits):
            return "unchanged:"
        raise LabelSetError(
            f"{path}: has other splits, on which networks may depend: --overwrite replaces them"
        )
    write_json(path, splits)
    return "wrote"
