"""Count the files that the three walks of architecture.md execute: `python -m docs.walks`.

A file counts when one of its functions is called; imports alone do not count. Everything runs in
this process, on the tiny data of the tests.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from nnunet_labelset.cli import VERBS, main, module_of
from tests import conftest
from tests.helpers import conversion, tiny

ROOT = Path(__file__).parents[1]
OUTER = ("nnunet_labelset", "trainers", "dataset_conversion")
# What every walk uses and nobody needs to open to follow one.
TOOLS = ("nnunet_labelset/io/", "nnunet_labelset/cli.py", "nnunet_labelset/commands/options.py")


@contextmanager
def executed_files() -> Iterator[set[str]]:
    """Collect the files of the package whose functions are called in this block."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # neither a module nor a class
        if event == "call" and is_function and not code.co_name.startswith("<"):
            files.add(code.co_filename)

    paths: set[str] = set()
    sys.setprofile(note)
    try:
        yield paths
    finally:
        sys.setprofile(None)
        resolved = {Path(file).resolve() for file in files}
        inside = {path.relative_to(ROOT) for path in resolved if ROOT in path.parents}
        paths.update(str(path) for path in inside if path.parts[0] in OUTER)


def call(*words: object) -> None:
    """Run a verb; any mistake ends the count."""
    if main([str(word) for word in words]):
        raise SystemExit(f"failed: {words}")


def conversion_walk(folder: Path) -> set[str]:
    for number in range(3):
        conversion.write_case_folder(folder / "source", f"case_{number}", seed=number)
    source = f"case_folders={folder / 'source'}"
    with executed_files() as files:
        call(
            *("convert", "-d", 27, "-n", "Fetal", "-o", folder / "raw", "-np", 1),
            *("--source", source, "--fully-annotated", "case_folders"),
        )
    return files


def training_walk(folder: Path) -> tuple[set[str], set[str]]:
    """Return the files of a training up to its last epoch, and those of the validation after it."""
    nnunet = tiny.NNUNet(folder / "nnunet")
    os.environ.update(nnunet.environment, nnUNet_n_proc_DA="0")
    conftest._prepare(nnunet.root)
    from nnunet_labelset.trainers.label_set import nnUNetTrainerLabelSet

    with executed_files() as files:
        trainer = tiny.make(nnunet, nnUNetTrainerLabelSet)
        trainer.num_epochs = trainer.num_val_iterations_per_epoch = 1
        trainer.num_iterations_per_epoch = 2
        trainer.run_training()
    with executed_files() as validation_files:
        trainer.perform_actual_validation()
    return files, validation_files


def evaluation_walk(folder: Path) -> dict[str, set[str]]:
    """Return the files of each verb."""
    raw = tiny.write_raw(folder / "evaluated")
    file = raw / "dataset.json"
    content = json.loads(file.read_text())
    content["label_sets"]["cases"].update(test_100="full", test_101="full")
    file.write_text(json.dumps(content))
    names = ("first", "second")
    results = [f"{name}={folder / name}" for name in names]
    with executed_files() as evaluated:
        for name in names:
            shutil.copytree(raw / "labelsTs", folder / name)
            call("evaluate", raw / "labelsTs", folder / name, "-djfile", file, "-np", 1)
    with executed_files() as compared:
        call("compare", *results, "-o", folder / "comparison")
    with executed_files() as reported:
        call("report", *results, "-o", folder / "report.html")
    return {"evaluate": evaluated, "compare": compared, "report": reported}


def count_walks() -> None:
    """Print the files of every walk, and how many of them are tools that all walks share."""
    for verb in VERBS:
        module_of(verb)  # imported before anything is counted
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training, validation = training_walk(folder)
        verbs = evaluation_walk(folder)
        walks = {
            "conversion": conversion_walk(folder),
            "training": training,
            "training and the validation after it": training | validation,
            **verbs,
            "evaluation to report": set().union(*verbs.values()),
        }
    for walk, files in walks.items():
        tools = {file for file in files if file.startswith(TOOLS)}
        print(f"\n{walk}: {len(files)} files, {len(tools)} of them tools that all walks share")
        print("\n".join(f"  {file}" for file in sorted(files - tools)))


if __name__ == "__main__":
    count_walks()
