"""Result sets: read and checked, up to date, and fit to be compared. Whoever has an Evaluation need
not ask again whether it is whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.annotated_table import contract_with_list
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.averages import evaluation
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.results import (
    VERSION,
    Averages,
    Case,
    Evaluation,
    Outcome,
    Settings,
)
from nnunet_labelset.evaluation.scores import file_states, meaning_of
from nnunet_labelset.io.files import read_json, reason
from nnunet_labelset.io.records import from_json
from nnunet_labelset.io.text import some

# metrics.json of version 2 (nnunet_labelset 0.2): its averages are computed anew.
OUTCOMES_OF_VERSION_2 = {
    "scored": Outcome.SCORED,
    "missed": Outcome.MISSED,
    "absent_in_reference": Outcome.INVENTED,
    "absent_in_both": Outcome.ABSENT,
    "unannotated": Outcome.NOT_ANNOTATED,
}
NEW_OF_SCORE = {"dice_low": None, "dice_high": None, "tolerance": None}
NEW_OF_CASE = {"reference_digest": "", "worst_distance": None}


def read_evaluation(file: str | Path) -> Evaluation:
    """Return the content of a metrics.json of this version or the one before."""
    content = read_json(file)
    if content.get("version") == 2:
        return _upgrade(content, f"{file}:")
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
        _check_groups(groups, evaluation, f"{file}: averages {column}")


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


def _check_groups(groups: Mapping[str, Averages], evaluation: Evaluation, where: str) -> None:
    for group, averages in groups.items():
        _check_averages(averages, evaluation, f"{where} {group}".rstrip())


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


def _upgrade(content: dict[str, Any], where: str) -> Evaluation:
    """Return an evaluation of version 2 that was read as JSON; `where` begins error messages."""
    try:
        unions = {name: tuple(members) for name, members in content["unions"].items()}
        cases = [_upgrade_case(case, content["leaves"], unions) for case in content["cases"]]
        tolerances = dict(content["settings"]["tolerance"])
        tolerance = tolerances.pop("", None)
        settings = {
            **content["settings"],
            "tolerance": tolerance,
            "tolerances": tolerances,
        }
        columns = [column for column in content["group_columns"] if column != "protocol"]
        groups = {
            column: {case["case"]: case["groups"][column] for case in content["cases"]}
            for column in columns
        }
        return evaluation(
            [from_json(Case, case, where) for case in cases],
            labels=content["labels"],
            leaves=content["leaves"],
            unions=unions,
            groups=groups,
            settings=from_json(Settings, settings, where),
            missing=content["missing_predictions"],
            extra=content["extra_predictions"],
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, LabelSetError):
            raise
        raise LabelSetError(
            f"{where} not a sound result of version 2: run 'nnunet_labelset evaluate' again"
        ) from None


def _upgrade_case(
    case: dict[str, Any], leaves: list[str], unions: dict[str, tuple[str, ...]]
) -> dict[str, Any]:
    """Return a case in which unions that stood under a label stand under their own name."""
    scores: dict[str, Any] = {}
    for name, score in case["leaves"].items():
        new = {
            **dict.fromkeys(METRICS),
            **NEW_OF_SCORE,
            **score,
            "outcome": OUTCOMES_OF_VERSION_2[score["outcome"]].value,
        }
        union = new.pop("union")
        if union and name in leaves:
            own_name = "+".join(union)
            unions.setdefault(own_name, tuple(union))
            scores[own_name] = new
            hidden = {**dict.fromkeys(METRICS), **NEW_OF_SCORE}
            counts = dict.fromkeys(("tp", "fp", "fn", "tn", "n_ref", "n_pred"), 0)
            scores[name] = {**hidden, **counts, "outcome": Outcome.NOT_ANNOTATED.value}
        else:
            scores[name] = new
    return {**NEW_OF_CASE, **case, "leaves": scores}


def read_contract(dataset_json: str | Path, annotated: str | None) -> Contract:
    """What the values stand for: dataset.json, or the table that was given instead of its cases."""
    content = read_json(dataset_json)
    return (
        contract_with_list(content, annotated) if annotated else Contract.from_dataset_json(content)
    )


def stale_results(results: Mapping[str, Evaluation]) -> list[str]:
    """A line for every method of which something has changed since `evaluate`; files that are gone
    cannot be asked.
    """
    return [
        f"'{method}': {changed}"
        for method, found in results.items()
        if (changed := _changed(found))
    ]


def require_fresh(results: Mapping[str, Evaluation]) -> None:
    """Fail with one line that names what has changed since `evaluate`."""
    if problems := stale_results(results):
        raise LabelSetError(f"scores are out of date: {'; '.join(problems)}: run 'evaluate' again")


def _changed(evaluation: Evaluation) -> str:
    """Return which references, predictions or protocols are not those that were scored, or ""."""
    changed: dict[str, list[str]] = {"reference": [], "prediction": [], "protocol": []}
    try:
        contract = read_contract(evaluation.settings.dataset_json, evaluation.settings.annotated)
        meanings = {
            case: meaning_of(contract.leaf_names, contract.protocol(case))
            for case in contract.cases
        }
    except LabelSetError:  # moved, like files that are gone
        meanings = {}
    for case in evaluation.cases:
        paths = (case.reference_file, case.prediction_file)
        for what, path, state in zip(changed, paths, case.files, strict=False):
            if _is_other_file(path, state):
                changed[what].append(case.case)
        if meanings.get(case.case, case.meaning) != case.meaning:
            changed["protocol"].append(case.case)
    return ", ".join(f"changed {what} of {some(cases)}" for what, cases in changed.items() if cases)


def _is_other_file(path: str, state: tuple[int, ...]) -> bool:
    """Tell whether a file has changed; one that is gone or out of reach cannot be asked."""
    try:
        return Path(path).is_file() and file_states(path)[0] != state
    except OSError:
        return False


def check_same_settings(results: Mapping[str, Evaluation]) -> None:
    """What distances depend on must be the same; where nothing is measured, it may differ."""
    settings = {method: result.settings for method, result in results.items()}
    for option, field_name in (
        ("cap", "cap"),
        ("tolerance", "tolerance"),
        ("tolerance", "tolerances"),
    ):
        given = {method: getattr(each, field_name) for method, each in settings.items()}
        if len({repr(value) for value in given.values()}) > 1:
            shown = ", ".join(f"{method}: {value}" for method, value in given.items())
            raise LabelSetError(
                f"evaluated with different --{option} ({shown}): their distances cannot be compared"
            )


def same_labels(results: Mapping[str, Evaluation]) -> tuple[str, ...]:
    (first, expected), *others = ((method, result.leaves) for method, result in results.items())
    for method, leaves in others:
        if leaves != expected:
            raise LabelSetError(
                f"different labels: '{first}' has {some(expected, 20)}; "
                f"'{method}' has {some(leaves, 20)}"
            )
    _check_same_unions(results)
    return expected


def _check_same_unions(results: Mapping[str, Evaluation]) -> None:
    """Refuse two regions of one name: `--regions` names them as the user likes."""
    known: dict[str, tuple[str, ...]] = {}
    for method, result in results.items():
        for name, members in result.unions.items():
            if set(known.setdefault(name, members)) != set(members):
                raise LabelSetError(
                    f"'{name}' is {'+'.join(members)} for '{method}', and {'+'.join(known[name])} "
                    "for another method: evaluate both with the same --regions"
                )


def common_cases(results: Mapping[str, Evaluation]) -> list[str]:
    names = {method: set(result.by_case) for method, result in results.items()}
    common = sorted(set.intersection(*names.values()))
    if not common:
        examples = "; ".join(
            f"'{method}' has {some(sorted(cases), 2)}" for method, cases in names.items()
        )
        raise LabelSetError(f"the result sets have no case in common: {examples}")
    if len(common) < 2:
        raise LabelSetError(
            f"the result sets have only the case '{common[0]}' in common: a comparison needs two "
            "or more"
        )
    return common


def check_same_references(results: Mapping[str, Evaluation], cases: Sequence[str]) -> None:
    """The same reference under the same contract, and the same patients."""
    (first, expected), *others = results.items()
    for method, result in others:
        if any(result.subjects.get(case) != expected.subjects.get(case) for case in cases):
            raise LabelSetError(
                f"'{first}' and '{method}' were evaluated with different --subject: evaluate both "
                "with the same table"
            )
        for case in cases:
            differs = _reference_difference(expected.by_case[case], result.by_case[case])
            if differs is not None:
                raise LabelSetError(
                    f"case '{case}'{differs}: '{first}' and '{method}' were scored against "
                    "different references or protocols: evaluate both against the same folder"
                )


def _reference_difference(one: Case, two: Case) -> str | None:
    """Return what differs between two references, as the words after the name of the case."""
    for leaf in {**one.leaves, **two.leaves}:
        mine, other = one.leaves.get(leaf), two.leaves.get(leaf)
        if mine is None or other is None:
            return f", {leaf}"
        if mine.n_ref != other.n_ref:
            return f", {leaf}"
        if len({mine.tolerance, other.tolerance} - {None}) > 1:
            return f", {leaf} (tolerance {mine.tolerance:g} and {other.tolerance:g} mm)"
        if mine.outcome.is_compared != other.outcome.is_compared:
            return f", {leaf}"
    digests = {one.reference_digest, two.reference_digest} - {""}
    alike = one.known == two.known and one.meaning == two.meaning and len(digests) < 2
    return None if alike else ""
