"""`nnunet_labelset experiment`: the runnable scripts of a whole study, for one machine and for a SLURM cluster.

The defaults are the study of the paper (arXiv 2107.03846): four methods, ten networks each on random splits of 90 % and
10 %, the probabilities of the ten averaged, the first method as the baseline of the statistics.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import case_files, check_name, read_json, write_text
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.discovery import trainers_folder
from nnunet_labelset.nnunet.folders import find_dataset, nnunet_folder
from nnunet_labelset.study.experiment_scripts import HEAD, RUN_BODY, RUN_HELP, SLURM_BODY, SLURM_HELP, assignments

PAPER = ("FullySupervisedDice", "SoftTargetDice", "MarginalDice", "LeafDice")
PLANNERS = {
    "nnUNetPlans": "ExperimentPlanner",
    "nnUNetResEncUNetMPlans": "nnUNetPlannerResEncM",
    "nnUNetResEncUNetLPlans": "nnUNetPlannerResEncL",
    "nnUNetResEncUNetXLPlans": "nnUNetPlannerResEncXL",
}


def parse_folds(words: Sequence[str]) -> list[str]:
    """Folds from words such as `0 1 2`, `0-9` or `all`, each once, in the order given."""
    folds: list[str] = []
    for word in words:
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if span is None and word != "all":
            raise LabelSetError(f"-f {word}: expected fold numbers, a range such as 0-9, or all")
        if span is None:
            folds.append(word)
            continue
        first, last = int(span[1]), int(span[2] or span[1])
        if last < first or last >= 1000:
            raise LabelSetError(f"-f {word}: expected a range from low to high, below 1000")
        folds += map(str, range(first, last + 1))
    return list(dict.fromkeys(folds))


def known_trainers() -> set[str]:
    """Names of the classes in the trainer folders of nnU-Net, of this plugin, and of `nnUNet_extTrainer`.

    Read as text: importing nnU-Net's trainers takes many seconds, and a typing error should cost less than that.
    """
    spec = find_spec("nnunetv2")
    assert spec is not None
    assert spec.submodule_search_locations
    folders = [Path(spec.submodule_search_locations[0], "training", "nnUNetTrainer"), Path(trainers_folder())]
    folders += [Path(path) for path in os.environ.get("nnUNet_extTrainer", "").split(os.pathsep) if path]
    sources = (path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))
    return {name for text in sources for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}


def _check_test_cases(images: Path, references: Path, ending: str, contract: Contract) -> None:
    """What `evaluate` would refuse in the end, after all trainings, is refused now."""
    pictured = {name.removesuffix("_0000") for name in case_files(images, ending) if name.endswith("_0000")}
    drawn = set(case_files(references, ending))
    for names, folder, other in ((pictured - drawn, images, references), (drawn - pictured, references, images)):
        if names:
            raise LabelSetError(
                f"{folder}: {len(names)} test case(s) that {other} does not have: {some(sorted(names))}"
            )
    contract.require_cases(drawn)


def write_experiment(
    dataset: str,
    output: Path,
    trainers: Sequence[str],
    folds: Sequence[str],
    configuration: str = "3d_fullres",
    plans: str = "nnUNetPlans",
    num_gpus: int = 1,
    device: str = "cuda",
    checkpoint: str = "checkpoint_final.pth",
    images: Path | None = None,
    references: Path | None = None,
    cap: float | None = None,
    command: str = "",
) -> tuple[Path, Path]:
    """Check the study and write `run.sh` and `submit_slurm.sh` into `output`; returns their paths."""
    folder = find_dataset(dataset)
    raw = nnunet_folder("nnUNet_raw").resolve()
    if folder.resolve().parent != raw or not re.fullmatch(r"Dataset\d{3}_.+", folder.name):
        raise LabelSetError(f"{folder}: nnU-Net trains only on data sets DatasetXXX_Name in $nnUNet_raw ({raw})")
    contents = read_json(folder / "dataset.json")
    contract = Contract.from_dataset_json(contents)
    if configuration == "3d_cascade_fullres":
        raise LabelSetError("-c 3d_cascade_fullres: not possible here, because it needs the predictions of 3d_lowres")
    if num_gpus < 1 or (num_gpus > 1 and device != "cuda"):
        raise LabelSetError(f"-num_gpus {num_gpus} -device {device}: expected 1, or more than 1 only with cuda")
    images = (images or folder / "imagesTs").resolve()
    references = (references or folder / "labelsTs").resolve()
    ending = str(contents.get("file_ending", ".nii.gz"))
    for path, flag in ((images, "-i"), (references, "-r")):
        if not case_files(path, ending):
            raise LabelSetError(f"{path}: no {ending} files to test on: give the folder with {flag}")
    _check_test_cases(images, references, ending, contract)
    known = known_trainers()
    for trainer in trainers:
        if trainer not in known:
            hint = did_you_mean(trainer, known)
            raise LabelSetError(f"-tr {trainer}: no such trainer" + (hint if "did you mean" in hint else ""))
    if len(set(trainers)) < len(trainers):
        raise LabelSetError(f"-tr {' '.join(trainers)}: a trainer is named twice")
    output = output.resolve()
    numbers = [int(fold) for fold in folds if fold != "all"]
    variables = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")
    # A line break in a name must not end the comment.
    head = f"{HEAD}# Written by: {' '.join((command or 'nnunet_labelset experiment').split())}\n"
    run = assignments({name: str(nnunet_folder(name).resolve()) for name in variables}, export=True) + assignments(
        {
            "study": str(output),
            "dataset": folder.name,
            "dataset_id": int(folder.name[7:10]),
            "configuration": check_name(configuration, "configuration"),
            "plans": check_name(plans, "plans"),
            "planner": PLANNERS.get(plans, ""),
            "trainers": trainers,
            "folds": folds,
            "split_options": ("--random", max(numbers, default=0) + 1, "--val-fraction", "0.1"),
            "num_gpus": num_gpus,
            "device": device,
            "checkpoint": check_name(checkpoint, "checkpoint"),
            "images": str(images),
            "references": str(references),
            "cap": "" if cap is None else f"{cap:g}",
            "keep_probabilities": 0,
        }
    )
    counts: dict[str, str | int] = {"study": str(output), "num_gpus": num_gpus}
    counts |= {"num_trainers": len(trainers), "num_networks": len(trainers) * len(folds)}
    scripts = output / "run.sh", output / "submit_slurm.sh"
    write_text(scripts[0], head + RUN_HELP + "\n" + run + RUN_BODY)
    write_text(scripts[1], head + SLURM_HELP + "\n" + assignments(counts) + SLURM_BODY)
    return scripts
