"""A model card in the style of Hugging Face, from what lies in a model folder; no case is named in
it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nnunet_labelset import __version__
from nnunet_labelset.contract import BLOCK, Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.statistics import describe
from nnunet_labelset.io.files import read_json
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.checkpoint_file import stored_state
from nnunet_labelset.nnunet.models import read_splits, trained_folds
from nnunet_labelset.nnunet.swapped_prediction import SWAP_MIRRORING

MIRRORING = "Labels differ by side: the model predicts without mirroring, as the checkpoints say."
CARD = Path(__file__).parent / "assets" / "model_card.md"


def model_card(model: Path, folds: list[str], builtin: str) -> str:
    """Labels, protocols, coverage, scores with intervals and the true trainer; what only people
    know is left open.
    """
    trainer, plans, configuration = names.model_words(model)
    dataset_json = read_json(model / names.DATASET)
    contract = Contract.from_dataset_json(dataset_json) if BLOCK in dataset_json else None
    if contract is not None:
        contract = _of_training_cases(contract, model, folds)
    return CARD.read_text(encoding="utf-8").format(
        dataset=model.parent.name,
        configuration=configuration,
        plans=plans,
        folds=", ".join(folds),
        channels=", ".join(map(str, dataset_json.get(names.CHANNELS, {}).values())),
        trainer=trainer,
        version=__version__,
        builtin=builtin,
        mirroring=f"\n{MIRRORING}" if SWAP_MIRRORING in trainer else "",
        labels="\n".join(_labels(dataset_json["labels"], contract, _validation_dice(model, folds))),
        protocols="\n".join(_protocols(contract)) if contract else "Not declared.",
    )


def _of_training_cases(contract: Contract, model: Path, folds: list[str]) -> Contract:
    """Return the contract of the cases on which the exported folds were trained.

    Where neither checkpoints nor splits tell, all cases of the contract count.
    """
    if "all" in folds:
        return contract
    trained = _cases_in_checkpoints(model, folds)
    if trained is None:
        try:
            trained = _cases_in_splits(read_splits(model.parent.name), folds)
        except LabelSetError:
            return contract
    cases = {case: protocol for case, protocol in contract.cases.items() if case in trained}
    protocols = {name: contract.protocols[name] for name in dict.fromkeys(cases.values())}
    return replace(contract, cases=cases, protocols=protocols) if cases else contract


def _cases_in_checkpoints(model: Path, folds: list[str]) -> set[str] | None:
    """Return the training cases that the checkpoints of all folds name, if they do."""
    checkpoints = trained_folds(model.glob(f"{names.fold_name('*')}/*"))
    cases: set[str] = set()
    for fold in folds:
        stored = stored_state(checkpoints[fold]) if fold in checkpoints else {}
        if not stored.get("training_cases"):
            return None
        cases.update(stored["training_cases"])
    return cases


def _cases_in_splits(splits: list[dict[str, list[str]]], folds: list[str]) -> set[str]:
    """Return the training cases of all folds that the splits know."""
    cases: set[str] = set()
    for number in map(int, folds):
        if number < len(splits):
            cases.update(splits[number][names.TRAINED])
    return cases


def _labels(
    labels: dict[str, object], contract: Contract | None, scores: dict[str, list[float]]
) -> list[str]:
    coverage = contract.coverage() if contract else {}
    lines = []
    for name, value in labels.items():
        if contract is None or name in coverage:
            dice = describe(scores.get(str(value), ()), interval=True)
            said = "not scored" if dice.mean is None else f"{dice.mean:.3f}, {dice.n} case(s)"
            if dice.mean is not None and dice.low is not None and dice.high is not None:
                said = f"{dice.mean:.3f} [{dice.low:.3f}, {dice.high:.3f}], {dice.n} cases"
            seen = f"{coverage[name]} of {len(contract.cases)}" if contract else "not declared"
            lines.append(f"| {value} | {name} | {seen} | {said} |")
    return lines


def _protocols(contract: Contract) -> list[str]:
    lines = []
    for name, protocol in contract.protocols.items():
        number = list(contract.cases.values()).count(name)
        unknown = [
            f"{contract.value_names[value]} may be {contract.words(labels)}"
            for value, labels in enumerate(protocol.sets)
            if 1 < len(labels) < contract.num_leaves
        ]
        lines.append(
            f"- {name} ({number} cases): {'; '.join(unknown) or 'every value stands for itself'}"
        )
    return lines


def _validation_dice(model: Path, folds: list[str]) -> dict[str, list[float]]:
    """Dice of every validated case in which a label has a score, by value."""
    scores: dict[str, list[float]] = {}
    for fold in folds:
        summary = model / names.fold_name(fold) / names.VALIDATION / names.SUMMARY
        for case in read_json(summary)["metric_per_case"] if summary.is_file() else ():
            for value, metrics in case["metrics"].items():
                if metrics["Dice"] == metrics["Dice"]:  # not NaN
                    scores.setdefault(value, []).append(metrics["Dice"])
    return scores
