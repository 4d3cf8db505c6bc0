"""The methods of the paper on real volumes, at a size that a CPU trains: prints Table 2.

The folder holds case folders (srr, mask, parcellation; all leaves annotated). Cases that match --complete keep all
leaves; in those that match --partial, the leaves that the paper's spina bifida cases lack are withheld; --test cases
are taken out of both. All methods have the same data, network, number of steps and seed.

    python benchmarks/accuracy.py atlas --complete '*_notoperated' --partial '*_operated' \
        --test GA23_notoperated GA26_operated GA28_operated GA30_operated GA32_operated GA34_operated
"""

from __future__ import annotations

import argparse
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path

import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.study.demo import DATASET, METHODS, MORE_METHODS, Demo, Size, populations

WITHHELD = ("external_csf", "cortical_gray_matter", "deep_gray_matter", "brainstem", "corpus_callosum")


class Study(Demo):
    """The demo with real volumes instead of generated ones."""

    @property
    def methods(self) -> dict[str, str]:
        return {**METHODS, **MORE_METHODS}

    def _convert(self) -> None:
        data = self.folder / "data"
        sources = ["--source", f"atlas={data / 'complete'}", "--source", f"case_folders={data / 'partial'}"]
        withhold = ["--withhold", *WITHHELD, "--withhold-in", "case_folders"]
        test = ["--test-source", f"atlas={data / 'test'}"]
        name = DATASET[1].split("_")[1]
        self._call("nnunet_labelset", "convert", "-d", DATASET[0], "-n", name, *sources, *test, *withhold)


def resample(source: Path, target: Path, spacing: float) -> None:
    """Write the three files of a case on a coarser grid."""
    target.mkdir(parents=True)
    for name in ("srr", "mask", "parcellation"):
        image = sitk.ReadImage(str(source / f"{name}.nii.gz"))
        size = [round(n * s / spacing) for n, s in zip(image.GetSize(), image.GetSpacing(), strict=True)]
        if name == "srr":  # what the coarse grid cannot show is smoothed away
            image = sitk.SmoothingRecursiveGaussian(sitk.Cast(image, sitk.sitkFloat32), spacing / 2.355)
        interpolator = sitk.sitkLinear if name == "srr" else sitk.sitkNearestNeighbor
        grid = (image.GetOrigin(), [spacing] * 3, image.GetDirection())
        coarse = sitk.Resample(image, size, sitk.Transform(), interpolator, *grid, 0, image.GetPixelID())
        sitk.WriteImage(coarse, str(target / f"{name}.nii.gz"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="case folders, everything annotated")
    parser.add_argument("--complete", required=True, metavar="PATTERN", help="cases that keep all leaves")
    parser.add_argument("--partial", required=True, metavar="PATTERN", help="cases whose leaves are withheld")
    parser.add_argument("--test", required=True, nargs="+", metavar="CASE", help="test cases, or ends of their names")
    parser.add_argument("--spacing", type=float, default=2.4, metavar="MM", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=1500, help="default: %(default)s")
    parser.add_argument("--patch", type=int, nargs=3, default=[24, 32, 24])
    parser.add_argument("--features", type=int, nargs="+", default=[12, 24, 48, 64])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", type=Path, metavar="FOLDER", help="keep everything here")
    args = parser.parse_args()

    scratch = args.o or Path(tempfile.mkdtemp())
    groups = {}
    for case in sorted(path.name for path in args.folder.iterdir() if (path / "parcellation.nii.gz").is_file()):
        part = "complete" if fnmatchcase(case, args.complete) else "partial"
        if part == "partial" and not fnmatchcase(case, args.partial):
            continue
        is_test = any(case.endswith(name) for name in args.test)
        target = scratch / "data" / ("test" if is_test else part) / case
        groups[case] = part
        if not target.is_dir():
            resample(args.folder / case, target, args.spacing)
    rows = [f"{case}\tpopulation of the {part} cases" for case, part in groups.items()]
    (scratch / "data" / "participants.tsv").write_text("\n".join(["participant_id\tPathology", *rows]) + "\n")

    epochs = 6
    size = Size("", epochs, args.steps // epochs, ("0",), tuple(args.patch), tuple(args.features))
    study = Study(scratch, size, full=False, device=args.device, seed=args.seed)
    begin = time.monotonic()
    study.prepare()
    results = study.compare_methods()
    print(f"\n{len(groups)} cases, {args.steps} steps, {(time.monotonic() - begin) / 60:.0f} minutes; {scratch}\n")
    print((scratch / "comparison" / "table.md").read_text().split("\nEvery pair")[0])
    print(populations(results))


if __name__ == "__main__":
    main()
