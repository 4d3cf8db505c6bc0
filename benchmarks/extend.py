"""A model of six organs learns the larynx from cases in which only the larynx is drawn. What does
it forget?

    python -m benchmarks.extend --data openkbp/ -o results/

The old model learns six organs of OpenKBP (5 mm, a network that a CPU trains in minutes) from the
cases without larynx. The cases with one show nothing but it. Each way begins with `nnunet_labelset
extend` and is scored on the complete cases that nobody has seen:

- label-sets: elsewhere such a case says {background and the six};
- label-sets, teacher: the old model says which of these;
- plain: elsewhere is background, and nnU-Net drops the output layers of `-pretrained_weights`;
- plain, outputs kept: the same with the old output layers, which nnU-Net itself cannot do.

A second call goes on where the first one ended.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np

from benchmarks.accuracy.prepare import CONFIGURATION, write
from benchmarks.accuracy.studies import BACKGROUND, ORGANS, STUDIES, Case
from benchmarks.accuracy.tables import difference, head, row
from benchmarks.commands import Commands, side_by_side
from benchmarks.evaluated import collect, scores
from nnunet_labelset.io.files import write_json
from nnunet_labelset.nnunet.plans import cut_down

NEW = "Larynx"
SIX = tuple(organ for organ in ORGANS if organ != NEW)
OLD = "Dataset831_Six"
LARYNX, GAPS = "Dataset832_LarynxOnly", "Dataset833_LarynxBackground"
WAYS = {
    "label-sets, teacher": (LARYNX, "nnUNetTrainerLabelSetTeacher_noSides"),
    "plain, outputs kept": (GAPS, "nnUNetTrainer_noSides_keepOutputs"),
    "label-sets": (LARYNX, "nnUNetTrainerLabelSet_noSides"),
    "plain": (GAPS, "nnUNetTrainer_noSides"),
}
BEFORE = "old model"
FEATURES = (8, 16, 32, 48)


def old_labels(case: Case) -> tuple[np.ndarray, tuple[str, ...]]:
    """The six organs, which do not know that there is a larynx, and what an unannotated voxel may
    be.
    """
    uncertain = tuple(leaf for leaf in case.uncertain if leaf != NEW)
    unknown = len(SIX) + 1 if len(uncertain) > 1 else 0
    table = [0, *(SIX.index(organ) + 1 if organ in SIX else 0 for organ in ORGANS), unknown]
    return np.array(table, np.uint8)[case.labels], uncertain if unknown else ()


def write_raw(raw: Path, data: Path) -> None:
    """Three data sets of the same cases: a case with larynx teaches the larynx, one without the
    six.
    """
    leaves = {OLD: SIX, LARYNX: ORGANS, GAPS: ORGANS}
    blocks: dict[str, dict] = {
        name: {"version": 1, "protocols": {"complete": {}}, "cases": {}} for name in leaves
    }
    for case in STUDIES["openkbp"].cases(data):
        larynx = case.labels == ORGANS.index(NEW) + 1
        six, uncertain = old_labels(case)
        if case.is_test:
            parts = {OLD: (six, ()), LARYNX: (case.labels, ())}
        elif NEW in case.uncertain:
            parts = {OLD: (six, uncertain)}
        else:
            only = np.where(larynx, case.labels, len(ORGANS) + 1).astype(np.uint8)
            gaps = np.where(larynx, case.labels, 0).astype(np.uint8)
            parts = {LARYNX: (only, (BACKGROUND, *SIX)), GAPS: (gaps, ())}
        for name, (labels, unknown) in parts.items():
            part = "Ts" if case.is_test else "Tr"
            write(
                raw / name / f"images{part}" / f"{case.name}_0000.nii.gz", case.image, case.spacing
            )
            write(raw / name / f"labels{part}" / f"{case.name}.nii.gz", labels, case.spacing)
            protocol = "+".join(unknown) or "complete"
            blocks[name]["protocols"][protocol] = {"ignore": list(unknown)} if unknown else {}
            blocks[name]["cases"][case.name] = protocol
    for name, block in blocks.items():
        labels = {leaf: value for value, leaf in enumerate((BACKGROUND, *leaves[name]))}
        content = {
            "channel_names": {"0": "CT"},
            "labels": {**labels, "ignore": len(labels)} if name != GAPS else labels,
            "numTraining": len(list((raw / name / "labelsTr").iterdir())),
            "file_ending": ".nii.gz",
            "label_sets": block,
        }
        write_json(raw / name / "dataset.json", content)


class Study:
    """The runs in one folder, each done once."""

    def __init__(self, data: Path, folder: Path, old_steps: int, steps: int) -> None:
        self.data, self.old_steps, self.steps = data, old_steps, steps
        self.commands = Commands(folder)
        self.one_at_a_time = Lock()
        self.old = self.commands.folder / "old" / f"{old_steps}_steps"
        self.runs = self.commands.folder / "runs" / f"{old_steps} and {steps}"

    def prepare(self) -> None:
        done, commands = self.commands.folder / "prepared", self.commands
        if done.is_file():
            return
        write_raw(commands.raw, self.data)
        commands.run(
            "nnUNetv2_plan_and_preprocess", "-d", OLD[7:10], "--no_pp", "-npfp", 1, "-np", 1
        )
        plans = commands.preprocessed / OLD / "nnUNetPlans.json"
        cut_down(plans, CONFIGURATION, STUDIES["openkbp"].patch, FEATURES)
        commands.run("nnUNetv2_preprocess", "-d", OLD[7:10], "-c", "3d_fullres", "-np", 1)
        done.touch()

    def run(self, ways: Sequence[str], seed: int) -> None:
        """The old model, its start files for both data sets, and the ways to go on."""
        length, results = self._length(self.old_steps), self.runs / f"results, seed {seed}"
        model = self.commands.train(
            OLD, "nnUNetTrainerLabelSet_noSides", self.old / f"seed {seed}", seed, **length
        )
        self._finish(BEFORE, seed, OLD, model)
        with self.one_at_a_time:  # both would write the fingerprint
            for dataset in (LARYNX, GAPS):
                self._start(model, dataset, self._plans(seed))
        for way in ways:
            dataset, trainer = WAYS[way]
            start = (
                self.commands.preprocessed / dataset / f"start_{self._plans(seed)}_3d_fullres.pth"
            )
            options = ["-p", self._plans(seed), "-pretrained_weights", start]
            length = self._length(self.steps)
            self._finish(
                way,
                seed,
                LARYNX,
                self.commands.train(dataset, trainer, results, seed, *options, **length),
            )

    def _start(self, model: Path, dataset: str, plans: str) -> None:
        folder = self.commands.preprocessed / dataset
        done = folder / f"{plans}.done"
        if done.is_file():
            return
        for file in (folder / f"{plans}.json", folder / f"start_{plans}_3d_fullres.pth"):
            file.unlink(missing_ok=True)  # of a call that was stopped
        told = self.commands.run(
            "nnunet_labelset", "extend", "-m", model, "-d", dataset, "-p", plans
        )
        for line in told.splitlines():
            if line.startswith("  nnUNetv2"):
                self.commands.run(*line.split(), "-np", 1)
        done.touch()

    def _plans(self, seed: int) -> str:
        return f"six_{self.old_steps}_steps_seed_{seed}"

    def _length(self, steps: int) -> dict[str, str]:
        return {"nnunet_labelset_epochs": "20", "nnunet_labelset_iterations": str(steps // 20)}

    def _finish(self, way: str, seed: int, test: str, model: Path) -> None:
        """Predict, evaluate, and write `run.json` last."""
        target, raw = self.runs / f"{way}, seed {seed}", self.commands.raw / test
        if not (target / "run.json").is_file():
            self.commands.predict(model, raw / "imagesTs", target)
            options = ["-djfile", raw / "dataset.json", "-np", 1, "--no-surfaces"]
            self.commands.run("nnunet_labelset", "evaluate", raw / "labelsTs", target, *options)
            write_json(target / "run.json", {"method": way, "seed": seed, "steps": self.runs.name})
            print(f"{way}, seed {seed}: done", flush=True)


def table(methods: dict) -> str:
    """Dice of every organ before and after, and the change of the six with its interval."""
    cases = sorted(next(iter(methods[BEFORE].values())))
    before = 100 * scores(methods[BEFORE], "dice", cases, list(SIX))
    lines = head("", "seeds", *SIX, NEW, "the six", "change of the six [95 %]")
    lines.append(row(BEFORE, len(before), *_means(before), "", f"{np.nanmean(before):.1f}", ""))
    for way in [way for way in WAYS if way in methods]:
        after = 100 * scores(methods[way], "dice", cases, [*SIX, NEW])
        six = after[..., : len(SIX)]
        change = difference(np.nanmean(six, 2), np.nanmean(before, 2))
        lines.append(row(way, len(after), *_means(after), f"{np.nanmean(six):.1f}", change))
    return "\n".join(lines) + "\n"


def _means(values: np.ndarray) -> list[str]:
    return [f"{mean:.1f}" for mean in np.nanmean(values, (0, 1))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of OpenKBP, a folder per patient"
    )
    parser.add_argument(
        "-o", type=Path, required=True, metavar="FOLDER", help="keep everything here"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--old-steps", type=int, default=1800, help="of the old model; default: %(default)s"
    )
    parser.add_argument("--steps", type=int, default=600, help="of every way; default: %(default)s")
    parser.add_argument(
        "--together", type=int, default=2, help="trainings side by side; default: %(default)s"
    )
    args = parser.parse_args()
    study = Study(args.data, args.o, args.old_steps, args.steps)
    study.prepare()
    side_by_side(args.together, [partial(study.run, args.ways, seed) for seed in args.seeds])
    found = collect(args.o / "runs")
    write_json(args.o / "results.json", found)
    (args.o / "results.md").write_text(
        "\n".join(f"## {steps} steps\n\n{table(found[steps])}" for steps in found)
    )
    print((args.o / "results.md").read_text())


if __name__ == "__main__":
    main()
