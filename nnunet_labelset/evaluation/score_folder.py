"""The scores of a folder of predictions, case by case; finished cases survive an interruption."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.pairs import Pair
from nnunet_labelset.evaluation.results import VERSION, Case
from nnunet_labelset.evaluation.scores import file_states, score_pair
from nnunet_labelset.io.files import read_json, reason, write_json
from nnunet_labelset.io.lock import locked
from nnunet_labelset.io.parallel import map_parallel
from nnunet_labelset.io.records import from_json, to_json
from nnunet_labelset.io.text import some

LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.(json|csv)")  # of a writer that was killed


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
