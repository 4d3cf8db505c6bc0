"""metrics.json of version 2 (nnunet_labelset 0.2) as today's classes; averages are computed
anew.
"""

from __future__ import annotations

from typing import Any

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.averages import evaluation
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.results import Case, Evaluation, Outcome, Settings
from nnunet_labelset.io.records import from_json

OUTCOMES = {
    "scored": Outcome.SCORED,
    "missed": Outcome.MISSED,
    "absent_in_reference": Outcome.INVENTED,
    "absent_in_both": Outcome.ABSENT,
    "unannotated": Outcome.NOT_ANNOTATED,
}
NEW_OF_SCORE = {"dice_low": None, "dice_high": None, "tolerance": None}
NEW_OF_CASE = {"reference_digest": "", "worst_distance": None}


def upgrade(content: dict[str, Any], where: str) -> Evaluation:
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
            "outcome": OUTCOMES[score["outcome"]].value,
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
