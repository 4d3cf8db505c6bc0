"""A folder of predictions: the references of its files, and the scores of one case after the other.
Finished cases survive an interruption.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.results import VERSION, Case
from nnunet_labelset.evaluation.scores import file_states, score_pair
from nnunet_labelset.evaluation.structures import (
    DEFAULT_OPTIONS,
    Pair,
    ScoringOptions,
    structures_of,
)
from nnunet_labelset.io.files import case_files, read_json, reason, write_json
from nnunet_labelset.io.lock import locked
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.records import from_json, to_json
from nnunet_labelset.io.text import some

LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.(json|csv)")  # of a writer that was killed


@dataclass(frozen=True)
class Pairs:
    """Pairs in the order of their names, cases without prediction, predictions without
    reference.
    """

    pairs: tuple[Pair, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]


def find_pairs(
    folder_ref: str | Path,
    folder_pred: str | Path,
    contract: Contract,
    file_ending: str,
    chill: bool,
    options: ScoringOptions = DEFAULT_OPTIONS,
) -> Pairs:
    """Return the pairs of two folders; what has no partner is an error unless `chill`."""
    references = _listed(folder_ref, file_ending)
    predictions = _listed(folder_pred, file_ending)
    if os.path.samefile(folder_ref, folder_pred):
        raise LabelSetError(
            f"{folder_pred}: references and predictions are the same folder: name two folders"
        )
    missing = sorted(references.keys() - predictions)
    extra = sorted(predictions.keys() - references)
    cases = sorted(references.keys() & predictions)
    if not cases:
        raise LabelSetError(
            f"{folder_ref} and {folder_pred} have no case in common: for example {some(missing, 2)}"
        )
    if not chill:
        _check_partners(folder_pred, missing, extra)
    if unlisted := [case for case in cases if case not in contract.cases]:
        raise LabelSetError(
            f"{len(unlisted)} case(s) without a protocol: {some(unlisted)}: add them to "
            f"{BLOCK}.cases in dataset.json, or give --annotated FILE.csv with the columns case "
            "and annotated"
        )
    structures = {name: structures_of(contract, name, options) for name in contract.protocols}
    pairs = tuple(
        Pair(
            case=case,
            protocol_name=contract.protocol_name(case),
            protocol=contract.protocol(case),
            reference_file=str(references[case]),
            prediction_file=str(predictions[case]),
            label_names=contract.leaf_names,
            structures=structures[contract.protocol_name(case)],
            surfaces=options.surfaces,
            cap=options.cap,
        )
        for case in cases
    )
    return Pairs(pairs, tuple(missing), tuple(extra))


def _check_partners(folder: str | Path, missing: Sequence[str], extra: Sequence[str]) -> None:
    problems = [f"{len(missing)} missing: {some(missing)}"] if missing else []
    problems += [f"{len(extra)} without reference: {some(extra)}"] if extra else []
    if problems:
        raise LabelSetError(f"{folder}: {', and '.join(problems)}; --chill scores the others")


def _listed(folder: str | Path, file_ending: str) -> dict[str, Path]:
    """Return the files of a folder by case; an empty folder or a file that cannot be opened is an
    error.
    """
    try:
        exists = os.path.isdir(folder)
    except OSError:
        exists = False
    if not exists:
        raise LabelSetError(f"{folder}: no such folder")
    files = case_files(folder, file_ending)
    if not files:
        raise LabelSetError(f"{folder}: no *{file_ending} files")
    if broken := [str(path) for path in files.values() if not os.path.isfile(path)]:
        raise LabelSetError(
            f"{some(broken)}: not a file, or a link that leads nowhere: remove or replace it"
        )
    return files


def union_members(pairs: Sequence[Pair], leaves: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return all that is scored in any pair beside the labels, by name, in the order of labels."""
    structures = frozenset().union(*(pair.structures for pair in pairs))
    members = {each.name: sorted(each.members) for each in structures if each.name not in leaves}
    names = pairs[0].label_names
    ordered = sorted(members, key=lambda name: (members[name], name))
    return {name: tuple(names[leaf] for leaf in members[name]) for name in ordered}


@contextmanager
def locked_output(folder: Path) -> Iterator[None]:
    """Hold a folder for one run of evaluate, and remove what a killed one left behind."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except OSError as error:
            raise LabelSetError(f"{folder}: cannot be written: {reason(error)}") from None
        for inner in (folder, folder / "cases"):
            _remove_leftovers(inner)
        yield


def _remove_leftovers(folder: Path) -> None:
    with suppress(OSError):
        for path in folder.iterdir():
            if LEFTOVER.fullmatch(path.name):
                path.unlink()


def score_folder(pairs: Sequence[Pair], cache: Path, processes: int) -> list[Case]:
    """Return the scores of all pairs, sorted by case; each is kept in `cache` once it is ready."""
    keys = {pair.case: _cache_key(pair) for pair in pairs}
    cached = {pair.case: _from_cache(cache, pair, keys[pair.case]) for pair in pairs}
    results = {name: case for name, case in cached.items() if case is not None}
    if results:
        print(f"{len(results)} of {len(pairs)} cases are already scored in {cache}")
    todo = [pair for pair in pairs if pair.case not in results]
    problems = []
    for pair, result in map_parallel(_score_or_problem, todo, processes, "Evaluating"):
        if isinstance(result, str):
            problems.append(result)
            continue
        results[pair.case] = result
        write_json(cache / f"{pair.case}.json", {"key": keys[pair.case], "result": to_json(result)})
    if problems:
        raise LabelSetError(
            f"{len(problems)} of {len(pairs)} cases cannot be scored: "
            f"{some(sorted(problems), 10, '; ')}"
        )
    return [results[case] for case in sorted(results)]


def _score_or_problem(pair: Pair) -> Case | str:
    """Score a pair; what is wrong with one case shall not hide what is wrong with the others."""
    try:
        return score_pair(pair)
    except LabelSetError as error:
        return str(error)
    except (OSError, MemoryError) as error:
        return f"{pair.case}: {type(error).__name__}: {error}"


def _cache_key(pair: Pair) -> dict[str, Any]:
    """Return what a result depends on: the files by size and time, the meaning of their values, and
    the metrics.
    """
    try:
        files = file_states(pair.reference_file, pair.prediction_file)
    except OSError as error:
        where = error.filename or pair.prediction_file
        raise LabelSetError(f"{where}: not readable: {reason(error)}") from None
    return to_json({"pair": pair, "version": VERSION, "files": files, "metrics": list(METRICS)})


def _from_cache(cache: Path, pair: Pair, key: Mapping[str, Any]) -> Case | None:
    """Return a cached case; None if there is none, or if it is not complete or out of date."""
    file = cache / f"{pair.case}.json"
    try:
        content = read_json(file)
        if content.get("key") != key:
            return None
        case = from_json(Case, content.get("result"), str(file))
    except LabelSetError:
        return None
    complete = all(
        structure.name in case.leaves
        and METRICS.keys() <= case.leaves[structure.name].values.keys()
        for structure in pair.structures
    )
    return case if complete else None
