"""metrics.json, read and checked: whoever has an Evaluation need not ask again whether it is
whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.results import VERSION, Averages, Case, Evaluation, Outcome
from nnunet_labelset.evaluation.version_two import upgrade
from nnunet_labelset.io.files import read_json, reason
from nnunet_labelset.io.records import from_json
from nnunet_labelset.io.text import some


def read_evaluation(file: str | Path) -> Evaluation:
    """Return the content of a metrics.json of this version or the one before."""
    content = read_json(file)
    if content.get("version") == 2:
        return upgrade(content, f"{file}:")
    if content.get("version") != VERSION:
        raise LabelSetError(
            f"{file}: not a result of this version of 'nnunet_labelset evaluate' (expected version "
            f"{VERSION}, got {str(content.get('version'))[:20]}): run it again"
        )
    evaluation = from_json(Evaluation, content, f"{file}:")
    check_evaluation(evaluation, file)
    return evaluation


def check_evaluation(evaluation: Evaluation, file: str | Path) -> None:
    if not evaluation.cases:
        raise LabelSetError(f"{file}: no cases: run 'nnunet_labelset evaluate' again")
    if unknown := set(evaluation.settings.metrics) - set(METRICS):
        raise LabelSetError(f"{file}: settings.metrics: unknown metrics {some(sorted(unknown))}")
    names = Counter(case.case for case in evaluation.cases)
    if twice := sorted(name for name, number in names.items() if number > 1):
        raise LabelSetError(f"{file}: listed more than once: {some(twice)}")
    if "protocol" not in evaluation.groups:
        raise LabelSetError(f"{file}: groups: 'protocol' is missing")
    for case in evaluation.cases:
        _check_case(case, evaluation, f"{file}: case '{case.case}'")
    _check_averages(evaluation.averages.overall, evaluation, f"{file}: averages")
    for column, groups in evaluation.averages.groups.items():
        for group, averages in groups.items():
            _check_averages(averages, evaluation, f"{file}: averages {column} {group}".rstrip())


def _check_case(case: Case, evaluation: Evaluation, where: str) -> None:
    if missing := set(evaluation.leaves) - set(case.leaves):
        raise LabelSetError(f"{where}: no scores of {some(sorted(missing))}")
    if unknown := set(case.leaves) - set(evaluation.structures):
        raise LabelSetError(f"{where}: scores of unknown labels {some(sorted(unknown))}")
    if evaluation.subjects and case.case not in evaluation.subjects:
        raise LabelSetError(f"{where}: no entry in 'subjects'")
    for label, score in case.leaves.items():
        _require(evaluation.settings.metrics, score.values, f"{where}, {label}")
        for metric in METRICS:  # one that is newer than the file
            score.values.setdefault(metric, None)


def _check_averages(averages: Averages, evaluation: Evaluation, where: str) -> None:
    metrics = evaluation.settings.metrics
    _require(evaluation.structures, averages.leaves, where)
    for label, label_averages in averages.leaves.items():
        _require(metrics, label_averages.metrics, f"{where}, {label}")
        _require([word.value for word in Outcome], label_averages.outcomes, f"{where}, {label}")
    directed = [name for name in metrics if METRICS[name].better]
    _require(directed, averages.mean, f"{where}: mean")


def _require(names: Iterable[str], given: Iterable[str], where: str) -> None:
    if missing := set(names).difference(given):
        raise LabelSetError(f"{where}: '{min(missing)}' is missing")


def load_results(arguments: Sequence[str]) -> tuple[dict[str, Evaluation], dict[str, str]]:
    """Return evaluations by method name, and where they are, from `NAME=PATH` or `PATH`; all bad
    ones are named together.
    """
    results: dict[str, Evaluation] = {}
    sources: dict[str, str] = {}
    problems = []
    for argument in arguments:
        try:
            name, file = _named_file(argument)
            if name in sources:
                raise LabelSetError(f"two result sets are called '{name}': name them: NAME={file}")
            sources[name] = str(file.absolute())
            results[name] = read_evaluation(file)
        except LabelSetError as error:
            problems.append(str(error))
    if problems:
        raise LabelSetError("; ".join(problems))
    return results, sources


def _named_file(argument: str) -> tuple[str, Path]:
    """Return the method and its metrics.json; a name may hold `=`, so that the first path that
    exists counts.
    """
    pieces = argument.split("=")
    for cut in range(len(pieces)):
        file = find_metrics("=".join(pieces[cut:]))
        if file:
            folder = file.parent.parent if file.parent.name == "evaluation" else file.parent
            return "=".join(pieces[:cut]) or folder.absolute().name, file
    path = argument if len(pieces) == 1 else argument.partition("=")[2]
    raise LabelSetError(f"{path}: no metrics.json there: run 'nnunet_labelset evaluate' first")


def find_metrics(path: str | Path) -> Path | None:
    """Return metrics.json, given itself, its folder, or the folder of the predictions."""
    if not path:
        return None
    folder = Path(path)
    candidates = (folder, folder / "metrics.json", folder / "evaluation" / "metrics.json")
    try:
        return next((file for file in candidates if file.is_file()), None)
    except OSError as error:  # no permission, a loop of links
        raise LabelSetError(f"{path}: not readable: {reason(error)}") from None
