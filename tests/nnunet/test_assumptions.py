"""What we rely on in nnU-Net (docs/architecture.md lists it): when a newer one breaks something,
this says what.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

from nnunet_labelset.nnunet import logs, names
from nnunet_labelset.nnunet.checkpoint_file import OUTPUT_LAYERS
from nnunet_labelset.nnunet.discovery import has_pretraining
from nnunet_labelset.nnunet.export import CHECKPOINT_KEYS
from nnunet_labelset.nnunet.summary import NNUNET_METRICS
from tests.helpers.imports import ROOT, imported_names, modules

ASSUMPTIONS: dict[str, Callable[[], None]] = {}


def assumption(check: Callable[[], None]) -> Callable[[], None]:
    ASSUMPTIONS[check.__name__] = check
    return check


@cache
def source(module: str = "") -> str:
    """The text of a module of nnU-Net, or of all of it."""
    spec = find_spec("nnunetv2")
    assert spec is not None
    root = Path((spec.submodule_search_locations or [""])[0])
    paths = (
        [root / f"{module}.py"]
        if module
        else sorted(p for p in root.rglob("*.py") if "tests" not in p.parts)
    )
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def trainer() -> type:
    return import_module("nnunetv2.training.nnUNetTrainer.nnUNetTrainer").nnUNetTrainer


def mixins() -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    for path in sorted((ROOT / "nnunet_labelset" / "training").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Mixin"):
                yield from (
                    (node, method) for method in node.body if isinstance(method, ast.FunctionDef)
                )


@assumption
def imported_names_exist() -> None:
    """Every name that the package imports from nnU-Net is there."""
    wanted = {
        name
        for path in modules().values()
        for name in imported_names(path)
        if name.startswith("nnunetv2.") and (has_pretraining() or ".pretraining." not in name)
    }
    assert wanted
    for name in sorted(wanted):
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), f"nnU-Net has no {name}"


@assumption
def trainer_signature() -> None:
    assert list(inspect.signature(trainer().__init__).parameters)[1:] == [
        *("plans", "configuration", "fold", "dataset_json", "device")
    ]


def called_above(method: ast.FunctionDef) -> set[str]:
    """The names in `super().name(...)`."""
    return {
        call.func.attr
        for call in ast.walk(method)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == "super()"
    }


@assumption
def trainer_methods() -> None:
    """What the mixins call with super() exists, and takes what theirs take."""
    ours = {method.name for _, method in mixins() if method.name not in called_above(method)}
    for node, method in mixins():
        for name in called_above(method) - ours:
            assert hasattr(trainer(), name), (
                f"{node.name}.{method.name} calls {name}, which nnUNetTrainer lacks"
            )
        if hasattr(trainer(), method.name) and not method.name.startswith("__"):
            # called through self
            static = isinstance(inspect.getattr_static(trainer(), method.name), staticmethod)
            theirs = ["self"] * static + list(
                inspect.signature(getattr(trainer(), method.name)).parameters
            )
            names = [argument.arg for argument in method.args.args]
            taken = ["self" if name == "cls" else name for name in names]
            assert taken == theirs[: len(taken)], (
                f"{node.name}.{method.name}: nnU-Net's takes {theirs}"
            )


@assumption
def batches_name_their_cases() -> None:
    text = source("training/dataloading/data_loader")
    assert re.search(r"['\"]keys['\"]", text)
    assert "get_indices" in text
    assert "annotated_classes_key" in text  # patches around annotated voxels


@assumption
def deep_supervision_wraps_one_loss() -> None:
    wrapper = import_module("nnunetv2.training.loss.deep_supervision").DeepSupervisionWrapper
    assert wrapper(len, (1.0,)).loss is len


@assumption
def external_trainers() -> None:
    text = source("utilities/find_objects")
    assert f"{names.EXTERNAL_TRAINERS}.get().split(os.pathsep)" in text
    assert all(
        variable in source("paths") for variable in (*names.VARIABLES, names.EXTERNAL_TRAINERS)
    )


@assumption
def file_names() -> None:
    text = source()
    raw = (names.IMAGES_TRAINING, names.LABELS_TRAINING, names.FIRST_CHANNEL[:2])
    preprocessed = (
        names.SPLITS,
        names.REFERENCES,
        names.DEFAULT_PLANS,
        *names.CONFIGURATIONS,
        *names.PLANNERS,
    )
    checkpoints = (names.FINAL_CHECKPOINT, names.LATEST_CHECKPOINT, names.BEST_CHECKPOINT)
    results = (
        names.PLANS,
        names.DATASET,
        names.PROGRESS,
        names.VALIDATION,
        names.SUMMARY,
        names.POSTPROCESSING,
    )
    quoted = [f"'{key}'" for key in (names.FILE_ENDING, names.CHANNELS, names.NUM_TRAINING)]
    for name in (*raw, *preprocessed, *checkpoints, *results, names.PROBABILITIES, *quoted):
        assert name in text, f"nnU-Net no longer knows the name {name}"
    trainer = source("training/nnUNetTrainer/nnUNetTrainer")
    assert all(f"splits[self.fold]['{key}']" in trainer for key in (names.TRAINED, names.VALIDATED))
    assert f"if '{names.LISTED}' in dataset_json" in source("utilities/utils")
    for planner in names.PLANNERS.values():
        assert f"class {planner}(" in text, f"nnU-Net has no planner {planner}"


@assumption
def folder_names() -> None:
    paths = import_module("nnunetv2.utilities.file_path_utilities")
    assert names.model_name("T", "P", "C") == paths.convert_trainer_plans_config_to_identifier(
        "T", "P", "C"
    )
    assert (
        names.crossvalidation_name([0, 1])
        == f"crossval_results_folds_{paths.folds_tuple_to_string((0, 1))}"
    )
    assert "f'crossval_results_folds_{folds_tuple_to_string(" in source()
    assert re.search(r"""f['"]fold_\{""", source())


@assumption
def commands() -> None:
    known = {entry.name for entry in entry_points(group="console_scripts")}
    commands = [name for name in vars(names).values() if str(name).startswith("nnUNetv2_")]
    assert len(commands) >= 10
    for name in commands:
        if name == names.TRAIN_PRETRAINED and not has_pretraining():
            continue
        assert name in known, f"nnU-Net has no command {name}"


@assumption
def log_lines() -> None:
    text = source("training/nnUNetTrainer/nnUNetTrainer")
    for words in (
        "Epoch {self.current_epoch}",
        "'train_loss'",
        "'val_loss'",
        "'Pseudo dice'",
        '"Mean Validation Dice: "',
    ):
        assert words in text, f"nnU-Net's trainer no longer logs {words}"
    assert "training_log_%d_" in text
    assert logs.LOGS.startswith("training_log_")


@assumption
def checkpoint_keys() -> None:
    text = inspect.getsource(trainer().save_checkpoint)
    for key in (*CHECKPOINT_KEYS, "optimizer_state"):
        assert f"'{key}'" in text, f"nnU-Net's checkpoints have no {key}"


@assumption
def training_state() -> None:
    """What is kept beside the optimiser's groups comes back, and the moving average can be begun
    anew.
    """
    assert "self.optimizer.load_state_dict(checkpoint['optimizer_state'])" in source(
        "training/nnUNetTrainer/nnUNetTrainer"
    )
    logger = import_module("nnunetv2.training.logging.nnunet_logger").LocalLogger()
    assert logger.my_fantastic_logging["ema_fg_dice"] == []


@assumption
def outputs_are_not_pretrained() -> None:
    assert f"'{OUTPUT_LAYERS}'" in source("run/load_pretrained_weights")
    assert "'-pretrained_weights'" in source("run/run_training")


@assumption
def summary_layout() -> None:
    text = source("evaluation/evaluate_predictions")
    for key in (
        "metric_per_case",
        "mean",
        "foreground_mean",
        "reference_file",
        "prediction_file",
        *NNUNET_METRICS,
    ):
        assert f"'{key}'" in text, f"nnU-Net's {names.SUMMARY} has no {key}"


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_nnunet_is_as_we_think(name: str) -> None:
    ASSUMPTIONS[name]()


def test_the_documentation_lists_the_same() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert re.findall(
        r"^\| `(\w+)` \|", page.split("## What we rely on in nnU-Net")[1], re.M
    ) == list(ASSUMPTIONS)
