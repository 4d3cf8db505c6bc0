"""nnU-Net's names of files, their keys, folders, plans and commands, each once: what it renames is
renamed here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

RAW, PREPROCESSED, RESULTS = VARIABLES = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")
EXTERNAL_TRAINERS = (
    "nnUNet_extTrainer"  # the variable that names folders of trainers outside of nnU-Net
)

PROCESSES, AUGMENTATION_PROCESSES = "nnUNet_def_n_proc", "nnUNet_n_proc_DA"  # variables, too

# commands
COMMANDS = (
    *(
        f"nnUNetv2_{name}"
        for name in ("plan_and_preprocess", "preprocess", "train", "predict", "ensemble")
    ),
    *(
        f"nnUNetv2_{name}"
        for name in ("extract_fingerprint", "find_best_configuration", "apply_postprocessing")
    ),
    *(f"nnUNetv2_{name}" for name in ("install_pretrained_model_from_zip", "convert_MSD_dataset")),
)
PLAN_AND_PREPROCESS, PREPROCESS, TRAIN, PREDICT, ENSEMBLE, *_others = COMMANDS
EXTRACT_FINGERPRINT, FIND_BEST, APPLY_POSTPROCESSING, INSTALL_MODEL, CONVERT_DECATHLON = _others

# a raw data set
IMAGES_TRAINING, LABELS_TRAINING, IMAGES_TEST, LABELS_TEST = (
    "imagesTr",
    "labelsTr",
    "imagesTs",
    "labelsTs",
)
FIRST_CHANNEL = "_0000"  # at the end of the name of a case's first image
# keys of its dataset.json; LISTED are the files of training cases that do not lie in its folders
FILE_ENDING, CHANNELS, NUM_TRAINING, LISTED = (
    "file_ending",
    "channel_names",
    "numTraining",
    "dataset",
)

# a preprocessed data set
SPLITS = "splits_final.json"
TRAINED, VALIDATED = "train", "val"  # the cases of one split
REFERENCES = "gt_segmentations"
DEFAULT_PLANS = "nnUNetPlans"
PLANNERS = {
    DEFAULT_PLANS: "ExperimentPlanner",
    "nnUNetResEncUNetMPlans": "nnUNetPlannerResEncM",
    "nnUNetResEncUNetLPlans": "nnUNetPlannerResEncL",
    "nnUNetResEncUNetXLPlans": "nnUNetPlannerResEncXL",
}
CONFIGURATIONS = ("2d", "3d_fullres", "3d_lowres", "3d_cascade_fullres")
DEFAULT_CONFIGURATION = "3d_fullres"
CASCADE, BEFORE_CASCADE = "3d_cascade_fullres", "3d_lowres"

# a trained model
FINAL_CHECKPOINT, LATEST_CHECKPOINT, BEST_CHECKPOINT = (
    f"checkpoint_{name}.pth" for name in ("final", "latest", "best")
)
PLANS, DATASET, PROGRESS = "plans.json", "dataset.json", "progress.png"
VALIDATION, SUMMARY, PROBABILITIES = "validation", "summary.json", ".npz"
POSTPROCESSING = "postprocessing.pkl"
# what a cascade is shown of the stage before it, a folder for each configuration
NEXT_STAGE = "predicted_next_stage"


def data_of(configuration: str) -> tuple[str, ...]:
    """What must be preprocessed for a configuration: 3d_lowres predicts for the grid of its
    cascade.
    """
    return (
        (BEFORE_CASCADE, DEFAULT_CONFIGURATION)
        if configuration in (BEFORE_CASCADE, CASCADE)
        else (configuration,)
    )


def dataset_name(number: int, name: str) -> str:
    return f"Dataset{number:03d}_{name}"


def dataset_words(folder: str) -> tuple[int, str] | None:
    """Id and name of a data set from the name of its folder; None if nnU-Net would not find it
    there.
    """
    found = re.fullmatch(r"Dataset(\d{3})_(.+)", folder)
    return (int(found[1]), found[2]) if found else None


def model_name(trainer: str, plans: str, configuration: str) -> str:
    """The folder of a model in `nnUNet_results/DatasetXXX_Name`."""
    return f"{trainer}__{plans}__{configuration}"


def model_words(folder: Path) -> tuple[str, str, str]:
    """Trainer, plans and configuration of a model folder."""
    trainer, plans, configuration = folder.name.split("__")
    return trainer, plans, configuration


def fold_name(fold: str | int) -> str:
    return f"fold_{fold}"


def crossvalidation_name(folds: Sequence[str | int]) -> str:
    """Where nnU-Net collects the validation of all folds, beside them."""
    return f"crossval_results_folds_{'_'.join(map(str, folds))}"
