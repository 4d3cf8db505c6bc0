"""The data of the demo: phantoms in the layouts of the paper's sources, with its pattern of missing
annotations.

atlas/          case folders, normal, everything annotated
controls/       case folders, normal: white matter, ventricles, cerebellum; external CSF in about
                half of the cases and the corpus callosum in a few, listed in annotated.csv
spina_bifida/   case folders: white matter, ventricles, cerebellum
test/           case folders, both populations, everything annotated
feta/           test cases in FeTA's BIDS layout and values, where white matter includes the corpus
callosum participants.tsv, annotated.csv, demo_data.json
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json, write_json, write_text
from nnunet_labelset.io.place import Place
from nnunet_labelset.io.progress import progress
from nnunet_labelset.io.volume import write_voxels
from nnunet_labelset.nnunet.raw import TEST, TRAINING
from nnunet_labelset.study.phantom.volume import LEAVES, SPACING, make_volume

# Cases of each kind. In the paper: 18 atlases, 116 controls (54 with external CSF, 18 with corpus
# callosum), 30 spina bifida; 34 and 66 test cases, of them 15 and 25 FeTA.
SIZES = {
    "small": {
        "atlas": 8,
        "controls": 4,
        "csf": 2,
        "callosum": 1,
        "spina_bifida": 8,
        "test": 4,
        "feta": 2,
    },
    "full": {
        "atlas": 10,
        "controls": 24,
        "csf": 11,
        "callosum": 4,
        "spina_bifida": 16,
        "test": 10,
        "feta": 5,
    },
}
BASIC = ("white_matter", "ventricles", "cerebellum")
# How `nnunet_labelset convert` reads the folders: preset, folder, part.
SOURCES = (
    ("atlas", "atlas", TRAINING),
    ("leuven_controls", "controls", TRAINING),
    ("leuven_spina_bifida", "spina_bifida", TRAINING),
    ("case_folders", "test", TEST),
    ("feta", "feta", TEST),
)
# FeTA's number of each leaf, in the order of LEAVES; it has none for the corpus callosum.
FETA_VALUES = np.array([0, 3, 4, 5, 1, 2, 6, 7, 3], np.float32)
ATLAS, LEUVEN, ZURICH = range(3)
DESCRIPTION = "demo_data.json"
AGES = (22.0, 34.0)


@dataclass(frozen=True)
class DemoCase:
    """One volume: where it lies, whose brain it is, and which leaves are annotated."""

    folder: str
    name: str
    age: float
    spina_bifida: bool
    centre: int
    annotated: tuple[str, ...] = LEAVES[1:]


def demo_cases(size: str = "small") -> list[DemoCase]:
    """The cases of the demo, in the order of their seeds."""
    numbers = SIZES[size]

    def series(
        folder: str, prefix: str, number: int, sick: bool, centre: int
    ) -> Iterator[DemoCase]:
        for index, age in enumerate(np.linspace(*AGES, number)):
            yield DemoCase(folder, f"{prefix}{index + 1:03d}", round(float(age), 1), sick, centre)

    cases = list(series("atlas", "atlas_", numbers["atlas"], False, ATLAS))
    for index, case in enumerate(
        series("controls", "control_", numbers["controls"], False, LEUVEN)
    ):
        # Spread over the ages: every second case or so has external CSF, and some of these the
        # corpus callosum.
        rare = {"external_csf": numbers["csf"], "corpus_callosum": numbers["callosum"]}
        extra = [
            leaf for leaf, chosen in rare.items() if _spread(index, chosen, numbers["controls"])
        ]
        cases.append(replace(case, annotated=(*BASIC, *extra)))
    for case in series("spina_bifida", "spina_bifida_", numbers["spina_bifida"], True, LEUVEN):
        cases.append(replace(case, annotated=BASIC))
    cases += series("test", "test_control_", numbers["test"], False, LEUVEN)
    cases += series("test", "test_spina_bifida_", numbers["test"], True, LEUVEN)
    for index, age in enumerate(np.linspace(*AGES, 2 * numbers["feta"])):
        cases.append(
            DemoCase("feta", f"sub-{index + 1:03d}", round(float(age), 1), index % 2 == 1, ZURICH)
        )
    return cases


def _spread(index: int, chosen: int, number: int) -> bool:
    """Whether `index` is one of `chosen` indices that are spread evenly over `number`."""
    return (index + 1) * chosen // number > index * chosen // number


def write_demo_data(folder: str | Path, seed: int = 0, size: str = "small") -> dict[str, Any]:
    """Write the data and return its description: seed, size, sources for `convert`, and the names
    of the cases.

    The same data already there is left alone, an interrupted run is finished; other data is never
    overwritten.
    """
    folder = Path(folder)
    if size not in SIZES:
        raise LabelSetError(
            f"Expected the size of the demo data to be one of {', '.join(SIZES)}, but got {size!r}"
        )
    cases = demo_cases(size)
    description: dict[str, Any] = {
        "seed": seed,
        "size": size,
        "complete": True,
        "sources": [
            {"source": name, "folder": place, "part": part} for name, place, part in SOURCES
        ],
        "cases": {
            place: [case.name for case in cases if case.folder == place] for _, place, _ in SOURCES
        },
    }
    if (folder / DESCRIPTION).is_file():
        found = read_json(folder / DESCRIPTION)
        if {**found, "complete": True} != description:
            other = f"seed {found.get('seed')}, {found.get('size')}"
            raise LabelSetError(
                f"{folder}: holds other demo data ({other}): choose another folder or remove it"
            )
        if found["complete"]:
            return description
    elif folder.is_dir() and any(folder.iterdir()):
        raise LabelSetError(f"{folder}: is not empty: choose another folder for the demo data")
    write_json(folder / DESCRIPTION, {**description, "complete": False})
    for index, case in enumerate(progress(cases, "phantoms")):
        _write_case(folder, case, 1000 * seed + index)
    _write_tables(folder, cases)
    write_json(folder / DESCRIPTION, description)
    return description


def _write_case(folder: Path, case: DemoCase, seed: int) -> None:
    image, label, mask = make_volume(case.age, seed, case.spina_bifida, case.centre)
    if case.folder == "feta":
        anat = folder / "feta" / case.name / "anat"
        write_volume(anat / f"{case.name}_rec-mial_T2w.nii.gz", image)
        write_volume(anat / f"{case.name}_rec-mial_dseg.nii.gz", FETA_VALUES[label])
        return
    drawn = np.isin(np.arange(len(LEAVES)), [LEAVES.index(name) for name in case.annotated])
    here = folder / case.folder / case.name
    write_volume(here / "srr.nii.gz", image)
    write_volume(here / "mask.nii.gz", mask)
    write_volume(here / "parcellation.nii.gz", label * drawn[label])


def write_volume(path: Path, array: np.ndarray, spacing: float = SPACING) -> None:
    """Write an array (z, y, x) as the atlases are written: x grows to the right, y to the front."""
    size = array.shape[::-1]
    origin = tuple(
        sign * spacing * (voxels - 1) / 2 for sign, voxels in zip((1, 1, -1), size, strict=True)
    )
    write_voxels(
        path,
        array,
        Place(size, (spacing,) * 3, origin, (-1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0)),
    )


def _write_tables(folder: Path, cases: Iterable[DemoCase]) -> None:
    people = ["participant_id\tPathology\tGestational age\n"]
    feta = list(people)
    annotated = ["case,source,annotated\n"]
    for case in cases:
        pathology = "Spina bifida" if case.spina_bifida else "Normal"
        people.append(f"{case.name}\t{pathology}\t{case.age}\n")
        if case.folder == "feta":
            word = "Pathological" if case.spina_bifida else "Neurotypical"
            feta.append(f"{case.name}\t{word}\t{case.age}\n")
        if case.folder == "controls":
            annotated.append(f"{case.name},leuven_controls,{';'.join(case.annotated)}\n")
    write_text(folder / "participants.tsv", "".join(people))
    write_text(folder / "feta" / "participants.tsv", "".join(feta))
    write_text(folder / "annotated.csv", "".join(annotated))
