"""`nnunet_labelset export`: a trained model as a zip that stock nnU-Net installs and predicts with, without us.

The network is nnU-Net's own, so that the checkpoint only has to name the built-in trainer that it was derived from. The
names of the training cases and the state of the optimiser stay behind.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from nnunet_labelset.contract import BLOCK
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.io.text import some
from nnunet_labelset.nnunet.discovery import trainers_folder

CHECKPOINT = "checkpoint_final.pth"

PREDICT = Path(__file__).parent / "scripts" / "predict_logits.py"


def export(model: Path, output: Path, folds: list[str] | None = None, overwrite: bool = False) -> None:
    """Write the zip, after the exported model has given the same logits as the original one."""
    if output.exists() and not overwrite:
        raise LabelSetError(f"{output}: exists already; --overwrite replaces it")
    if output.suffix != ".zip":
        raise LabelSetError(f"{output}: expected a file name that ends in .zip")
    if not model.is_dir():
        trained = sorted(path.name for path in model.parent.glob("*__*__*") if path.is_dir())
        raise LabelSetError(f"{model}: no such model; trained: {some(trained) or 'none'}")
    trained = sorted(path.parent.name[len("fold_") :] for path in model.glob(f"fold_*/{CHECKPOINT}"))
    missing = sorted(set(folds or []) - set(trained))
    if missing or not trained:
        raise LabelSetError(f"{model}: fold {some(missing) or '0'} is not trained to its end ({CHECKPOINT} is missing)")
    folds = folds or trained
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".labelset_export_", dir=output.parent) as scratch:
        # nnU-Net takes the class from the checkpoint and the folder from -tr: the name that users know can stay.
        copy = Path(scratch) / "unzipped" / model.parent.name / model.name
        trainer = _write_copy(model, copy, folds)
        archive = Path(scratch) / "model.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for path in sorted(copy.rglob("*")):
                file.write(path, path.relative_to(Path(scratch) / "unzipped"))
        print(f"Comparing the predictions of {model.name} and its export ...", flush=True)
        ours = _predict(model, folds, Path(scratch) / "ours.npy", with_plugin=True)
        theirs = _predict(copy, folds, Path(scratch) / "theirs.npy", with_plugin=False)
        if not np.array_equal(ours.argmax(0), theirs.argmax(0)) or not np.allclose(ours, theirs, atol=1e-5):
            raise LabelSetError(f"{model}: the exported model predicts something else; nothing was written")
        os.replace(archive, output)
    known_as, _, configuration = model.name.split("__")
    name = f"-d {model.parent.name} -tr {known_as} -c {configuration} -f {' '.join(folds)}"
    previous = read_json(model / "plans.json")["configurations"].get(configuration, {}).get("previous_stage")
    if previous:  # nnU-Net predicts a cascade stage by stage
        name += f" -prev_stage_predictions PREDICTIONS_OF_{previous}\n(export {previous} as well: it predicts first)"
    print(
        f"{output}: folds {', '.join(folds)} as {trainer}; stock nnU-Net gives the same segmentation.\n"
        f"Elsewhere: nnUNetv2_install_pretrained_model_from_zip {output.name}\n"
        f"           nnUNetv2_predict -i INPUT -o OUTPUT {name}"
    )


def _write_copy(model: Path, copy: Path, folds: list[str]) -> str:
    """The files that nnU-Net predicts with; returns the name of the built-in trainer."""
    import torch
    from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

    builtin = ""
    write_json(copy / "dataset.json", _without_cases(read_json(model / "dataset.json")))
    write_json(copy / "plans.json", read_json(model / "plans.json"))
    for fold in folds:
        source, target = model / f"fold_{fold}", copy / f"fold_{fold}"
        target.mkdir(parents=True)
        checkpoint = torch.load(source / CHECKPOINT, map_location="cpu", weights_only=False)
        if not builtin:
            os.environ.setdefault("nnUNet_extTrainer", trainers_folder())
            with contextlib.redirect_stdout(io.StringIO()):  # nnU-Net tells where it looks
                trainer = recursive_find_trainer_class_by_name(checkpoint["trainer_name"])
            builtin = next(cls.__name__ for cls in trainer.__mro__ if cls.__module__.startswith("nnunetv2."))
        init_args = {**checkpoint["init_args"], "dataset_json": _without_cases(checkpoint["init_args"]["dataset_json"])}
        checkpoint |= {"trainer_name": builtin, "init_args": init_args, "optimizer_state": None}
        torch.save(checkpoint, target / CHECKPOINT)
        if (source / "progress.png").is_file():
            (target / "progress.png").write_bytes((source / "progress.png").read_bytes())
    return builtin


def _without_cases(dataset_json: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in dataset_json.items() if key != "dataset"}
    return {**kept, BLOCK: {**kept[BLOCK], "cases": {}}} if BLOCK in kept else kept


def _predict(folder: Path, folds: list[str], output: Path, with_plugin: bool) -> np.ndarray:
    environment = {key: value for key, value in os.environ.items() if key != "nnUNet_extTrainer"}
    if with_plugin:
        environment["nnUNet_extTrainer"] = os.environ.get("nnUNet_extTrainer", trainers_folder())
    command = [sys.executable, str(PREDICT), str(folder), ",".join(folds), str(output)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise LabelSetError(f"{folder}: prediction failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return np.load(output)
