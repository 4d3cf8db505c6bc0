"""nnU-Net's names of files, keys, folders, plans and commands, each written once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

RAW = "nnUNet_raw"
PREPROCESSED = "nnUNet_preprocessed"
RESULTS = "nnUNet_results"
VARIABLES = (RAW, PREPROCESSED, RESULTS)
EXTERNAL_TRAINERS = "nnUNet_extTrainer"  # folders of trainers outside of nnU-Net
PROCESSES = "nnUNet_def_n_proc"
AUGMENTATION_PROCESSES = "nnUNet_n_proc_DA"

# commands
PLAN_AND_PREPROCESS = "nnUNetv2_plan_and_preprocess"
PREPROCESS = "nnUNetv2_preprocess"
TRAIN = "nnUNetv2_train"
TRAIN_PRETRAINED = "nnUNetv2_train_pretrained"  # not in nnU-Net 2.8.1
PREDICT = "nnUNetv2_predict"
ENSEMBLE = "nnUNetv2_ensemble"
EXTRACT_FINGERPRINT = "nnUNetv2_extract_fingerprint"
FIND_BEST = "nnUNetv2_find_best_configuration"
APPLY_POSTPROCESSING = "nnUNetv2_apply_postprocessing"
INSTALL_MODEL = "nnUNetv2_install_pretrained_model_from_zip"
CONVERT_DECATHLON = "nnUNetv2_convert_MSD_dataset"
CONVERT_VERSION_1 = "nnUNetv2_convert_old_nnUNet_dataset"

# a raw data set
IMAGES_TRAINING = "imagesTr"
LABELS_TRAINING = "labelsTr"
IMAGES_TEST = "imagesTs"
LABELS_TEST = "labelsTs"
FIRST_CHANNEL = "_0000"  # at the end of the name of a case's first image
# keys of its dataset.json
FILE_ENDING = "file_ending"
CHANNELS = "channel_names"
NUM_TRAINING = "numTraining"
LISTED = "dataset"  # the files of training cases that do not lie in its folders

# a preprocessed data set
SPLITS = "splits_final.json"
TRAINED = "train"  # the cases of one split
VALIDATED = "val"
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
FLAT_CONFIGURATION = "2d"
CASCADE = "3d_cascade_fullres"
BEFORE_CASCADE = "3d_lowres"

# a trained model
DEFAULT_NNUNET_TRAINER = "nnUNetTrainer"
FINAL_CHECKPOINT = "checkpoint_final.pth"
LATEST_CHECKPOINT = "checkpoint_latest.pth"
BEST_CHECKPOINT = "checkpoint_best.pth"
PLANS = "plans.json"
DATASET = "dataset.json"
PROGRESS = "progress.png"
VALIDATION = "validation"
SUMMARY = "summary.json"
PROBABILITIES = ".npz"
POSTPROCESSING = "postprocessing.pkl"
NEXT_STAGE = "predicted_next_stage"  # what a cascade is shown, a folder for each configuration


def data_of(configuration: str) -> tuple[str, ...]:
    """Return what must be preprocessed for a configuration.

    A cascade needs both of its stages; `3d_lowres` also predicts on the grid of the second one.
    """
    if configuration in (BEFORE_CASCADE, CASCADE):
        return BEFORE_CASCADE, DEFAULT_CONFIGURATION
    return (configuration,)


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
    trainer, others = folder.name.split("__", 1)
    plans, configuration = others.rsplit("__", 1)  # plans may be called PLANS__from_scratch
    return trainer, plans, configuration


def fold_name(fold: str | int) -> str:
    return f"fold_{fold}"


def crossvalidation_name(folds: Sequence[str | int]) -> str:
    """Where nnU-Net collects the validation of all folds, beside them."""
    return f"crossval_results_folds_{'_'.join(map(str, folds))}"
