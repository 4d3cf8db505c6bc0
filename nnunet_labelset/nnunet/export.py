"""`nnunet_labelset export`: a trained model as a zip that stock nnU-Net installs and predicts with,
without us.

The network is nnU-Net's own, so that the checkpoint only has to name the built-in trainer that it
was derived from. Only what prediction needs is taken along: names of cases and the state of the
optimiser stay behind.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import (
    new_file,
    read_bytes,
    read_json,
    write_bytes,
    write_json,
    write_text,
)
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.checkpoint_file import TRUST_IT, read_checkpoint, trusted
from nnunet_labelset.nnunet.discovery import external_trainers
from nnunet_labelset.nnunet.label_colours import write_label_colours
from nnunet_labelset.nnunet.models import trained_folds
from nnunet_labelset.nnunet.raw import without_cases
from nnunet_labelset.nnunet.swapped_prediction import SWAP_MIRRORING

CHECKPOINT = names.FINAL_CHECKPOINT
CHECKPOINT_KEYS = (
    "network_weights",
    "init_args",
    "trainer_name",
    "inference_allowed_mirroring_axes",
    "current_epoch",
)

PREDICT_SCRIPT = Path(__file__).parent / "scripts" / "predict_logits.py"


def export(
    model: Path,
    output: Path,
    folds: list[str] | None = None,
    overwrite: bool = False,
    card: bool = False,
) -> None:
    """Write the zip, after the exported model has given the same logits as the original one.

    With `card` a model card to fill in goes into the zip and beside it.
    """
    _check_output(output, overwrite, card)
    folds = _chosen_folds(model, folds)
    with tempfile.TemporaryDirectory(prefix="labelset_export_") as scratch:
        # nnU-Net takes the class from the checkpoint and the folder from -tr: the name that users
        # know can stay.
        copy = Path(scratch) / "unzipped" / model.parent.name / model.name
        builtin = _write_copy(model, copy, folds)
        postprocessing = _copy_postprocessing(model, copy, folds)
        if card:
            from nnunet_labelset.nnunet.model_card import model_card  # imports statistics

            write_text(copy / "README.md", model_card(model, folds, builtin))
        _compare_predictions(model, copy, folds, Path(scratch))
        if card:
            write_bytes(output.with_suffix(".md"), read_bytes(copy / "README.md"))
        _write_zip(output, Path(scratch) / "unzipped")
    print(
        f"{output}: folds {', '.join(folds)}; "
        "stock nnU-Net gives the same segmentation, without this package."
    )
    if SWAP_MIRRORING in model.name:
        print(
            "It predicts without mirroring there, as it must: nnU-Net would mix left and right. "
            "'nnunet_labelset predict' mirrors the original model and swaps the sides."
        )
    print(f"Elsewhere, type:\n{how_to_predict(model, output.name, folds, postprocessing)}")


def _check_output(output: Path, overwrite: bool, card: bool) -> None:
    if output.suffix != ".zip":
        raise LabelSetError(f"{output}: expected a file name that ends in .zip")
    for path in [output, output.with_suffix(".md")] if card else [output]:
        if path.exists() and not overwrite:
            raise LabelSetError(f"{path}: exists already; --overwrite replaces it")


def _chosen_folds(model: Path, folds: list[str] | None) -> list[str]:
    """Return the folds to export, each once and in the order in which nnU-Net names them."""
    trained = list(trained_folds(model.glob(f"{names.fold_name('*')}/*")))
    missing = sorted(set(folds or []) - set(trained))
    if missing or not trained:
        raise LabelSetError(
            f"{model}: fold {some(missing) or '0'} is not trained to its end "
            f"({CHECKPOINT} is missing)"
        )
    return sorted(set(folds or trained), key=lambda fold: (len(fold), fold))


def _compare_predictions(model: Path, copy: Path, folds: list[str], scratch: Path) -> None:
    """Fail unless the exported model predicts what the original one does."""
    print(f"Comparing the predictions of {model.name} and its export ...", flush=True)
    ours = _predict(model, folds, scratch / "ours.npy", with_plugin=True)
    theirs = _predict(copy, folds, scratch / "theirs.npy", with_plugin=False)
    same_labels = np.array_equal(ours.argmax(0), theirs.argmax(0))
    if not same_labels or not np.allclose(ours, theirs, atol=1e-5):
        raise LabelSetError(
            f"{model}: the exported model predicts something else; nothing was written"
        )


def _write_zip(output: Path, folder: Path) -> None:
    with (
        new_file(output) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))


def how_to_predict(model: Path, archive: str, folds: list[str], postprocessing: Path | None) -> str:
    """The commands of stock nnU-Net, as they must be typed: the model keeps the name of its
    trainer.
    """
    trainer, plans, configuration = names.model_words(model)
    words = (
        f"-d {model.parent.name} -tr {trainer} -p {plans} -c {configuration} -f {' '.join(folds)}"
    )
    previous = (
        read_json(model / names.PLANS)["configurations"]
        .get(configuration, {})
        .get("previous_stage")
    )
    lines = [f"  {names.INSTALL_MODEL} {archive}"]
    if previous:  # nnU-Net predicts a cascade stage by stage
        words += f" -prev_stage_predictions PREDICTIONS_OF_{previous}"
        lines.append(f"  # {previous} predicts first: export and install it as well")
    lines.append(f"  {names.PREDICT} -i INPUT -o OUTPUT {words}")
    if postprocessing is not None:
        folder = f"${names.RESULTS}/{model.parent.name}/{model.name}"
        lines.append(
            f"  {names.APPLY_POSTPROCESSING} -i OUTPUT -o POSTPROCESSED -pp_pkl_file "
            f"{folder}/{postprocessing} -plans_json {folder}/{names.PLANS} -dataset_json "
            f"{folder}/{names.DATASET}"
        )
    return "\n".join(lines)


def _write_copy(model: Path, copy: Path, folds: list[str]) -> str:
    """Write the files that nnU-Net predicts with; returns the name of the built-in trainer."""
    import torch

    builtin = ""
    dataset_json = read_json(model / names.DATASET)
    write_json(copy / names.DATASET, without_cases(dataset_json))
    write_label_colours(copy, dataset_json)
    write_json(copy / names.PLANS, read_json(model / names.PLANS))
    for fold in folds:
        source, target = model / names.fold_name(fold), copy / names.fold_name(fold)
        target.mkdir(parents=True)
        checkpoint = read_checkpoint(source / CHECKPOINT, trusted(), how_to_trust=TRUST_IT)
        builtin = builtin or _builtin_trainer(checkpoint["trainer_name"])
        init_args = dict(checkpoint["init_args"])
        init_args["dataset_json"] = without_cases(init_args["dataset_json"])
        kept = {key: checkpoint[key] for key in CHECKPOINT_KEYS if key in checkpoint}
        torch.save({**kept, "trainer_name": builtin, "init_args": init_args}, target / CHECKPOINT)
        if (source / names.PROGRESS).is_file():
            shutil.copyfile(source / names.PROGRESS, target / names.PROGRESS)
    return builtin


def _builtin_trainer(trainer_name: str) -> str:
    """Return the class of nnU-Net from which a trainer is derived."""
    from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

    os.environ[names.EXTERNAL_TRAINERS] = external_trainers()
    with contextlib.redirect_stdout(io.StringIO()):  # nnU-Net tells where it looks
        trainer = recursive_find_trainer_class_by_name(trainer_name)
    return next(cls.__name__ for cls in trainer.__mro__ if cls.__module__.startswith("nnunetv2."))


def _copy_postprocessing(model: Path, copy: Path, folds: list[str]) -> Path | None:
    """What find_best_configuration decided for exactly these folds; returns where it lies in the
    model folder.
    """
    place = Path(names.crossvalidation_name(folds), names.POSTPROCESSING)
    if not (model / place).is_file():
        return None
    (copy / place).parent.mkdir()
    shutil.copyfile(model / place, copy / place)
    return place


def _predict(folder: Path, folds: list[str], output: Path, with_plugin: bool) -> np.ndarray:
    environment = {
        key: value for key, value in os.environ.items() if key != names.EXTERNAL_TRAINERS
    }
    if with_plugin:
        environment[names.EXTERNAL_TRAINERS] = external_trainers()
    command = [sys.executable, str(PREDICT_SCRIPT), str(folder), ",".join(folds), str(output)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise LabelSetError(
            f"{folder}: prediction failed: "
            f"{(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        )
    return np.load(output)
