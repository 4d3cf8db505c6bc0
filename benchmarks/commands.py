"""nnU-Net's own commands in a folder of their own, and runs side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


class Commands:
    """Programs that pip installed beside this Python, one thread each, with nnU-Net's folders
    inside of `folder`.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder.resolve()
        self.raw, self.preprocessed = (
            self.folder / "nnUNet_raw",
            self.folder / "nnUNet_preprocessed",
        )
        self.environment = {
            **os.environ,
            "nnUNet_raw": str(self.raw),
            "nnUNet_preprocessed": str(self.preprocessed),
            "nnUNet_results": str(self.folder / "nnUNet_results"),
            "nnUNet_def_n_proc": "1",
            "nnUNet_n_proc_DA": "1",  # planning fails with 0
            "nnUNet_extTrainer": str(Path(__file__).parent / "trainers"),
            "OMP_NUM_THREADS": "1",
            **environment,
        }

    def run(self, program: str, *arguments: object, **environment: str) -> str:
        """What it printed; a failure ends the benchmark with the end of that."""
        words = [str(Path(sys.executable).parent / program), *map(str, arguments)]
        done = subprocess.run(
            words, env={**self.environment, **environment}, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def train(
        self, dataset: str, trainer: str, results: Path, seed: int, *options: object, **more: str
    ) -> Path:
        """A seeded training on all cases, unless it is there already; the folder of the model."""
        plans = options[options.index("-p") + 1] if "-p" in options else "nnUNetPlans"
        model = results / dataset / f"{trainer}__{plans}__3d_fullres"
        if not (model / "fold_all" / "checkpoint_final.pth").is_file():
            words = [dataset[7:10], "3d_fullres", "all", "-tr", trainer, "-device", "cpu", *options]
            settings = {
                "nnunet_labelset_seed": str(seed),
                "nnUNet_n_proc_DA": "0",
                "nnUNet_results": str(results),
            }
            self.run("nnUNetv2_train", *words, **settings, **more)
        return model

    def predict(self, model: Path, images: Path, output: Path) -> None:
        trainer, plans, configuration = model.name.split("__")
        words = [
            "-d",
            model.parent.name[7:10],
            "-c",
            configuration,
            "-tr",
            trainer,
            "-p",
            plans,
            "-f",
            "all",
        ]
        words += [
            "-step_size",
            0.75,
            "-npp",
            1,
            "-nps",
            1,
            "-device",
            "cpu",
            "--disable_progress_bar",
        ]
        results = str(model.parent.parent)
        self.run("nnUNetv2_predict", "-i", images, "-o", output, *words, nnUNet_results=results)


def side_by_side(together: int, runs: Sequence[Callable[[], Any]]) -> None:
    """So many at a time; the first failure is told when those that run have ended."""
    with ThreadPoolExecutor(together) as pool:
        waiting = [pool.submit(one) for one in runs]
        try:
            for one in waiting:
                one.result()
        finally:
            pool.shutdown(cancel_futures=True)
