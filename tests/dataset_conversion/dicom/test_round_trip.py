"""One file per organ, and the same as DICOM with RTSTRUCT: the same data set, label by label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.ndimage import binary_dilation, binary_erosion, gaussian_filter

from tests.helpers.conversion import contract_of, convert, label_sets_of
from tests.helpers.dicom import RoiSpec, Scan, mask_contours, write_series, write_structures
from tests.helpers.volumes import write_volume

ORGANS = ("Brainstem", "SpinalCord", "LeftParotid", "Larynx")
SHAPE = (12, 40, 36)
SPACING = (2.5, 1.5, 1.25)  # (slices, rows, columns)
MISSING = {"pt_1": (), "pt_2": ("Larynx",), "pt_3": ("LeftParotid", "SpinalCord")}
MANIFEST = f"""
leaves = ["background", {", ".join(f'"{organ}"' for organ in ORGANS)}]
channels = ["CT"]

[sources.files]
folder = "files"
image = "{{case}}/ct.nii.gz"
label = "{{case}}/{{structure}}.nii.gz"
varies = [{", ".join(f'"{organ}"' for organ in ORGANS)}]

[sources.files.labels]
{chr(10).join(f'{organ} = "{organ}"' for organ in ORGANS)}

[sources.dicom]
kind = "dicom"
folder = "dicom"
[sources.dicom.labels]
{chr(10).join(f'"^{organ}$" = "{organ}"' for organ in ORGANS)}
"""


def blobs(seed: int) -> dict[str, np.ndarray]:
    """Return smooth organs without overlap, some of them with holes and in pieces."""
    noise = np.random.default_rng(seed).normal(size=(len(ORGANS), *SHAPE))
    fields = np.stack([gaussian_filter(field, 2.5) for field in noise])
    strongest = fields.argmax(axis=0)
    level = np.quantile(fields.max(axis=0), 0.6)
    drawn = fields.max(axis=0) > level
    return {organ: drawn & (strongest == number) for number, organ in enumerate(ORGANS)}


def write_both(tmp_path: Path, case: str, seed: int) -> None:
    scan = Scan(shape=SHAPE, spacing=SPACING, patient=case)
    image = 2 * np.random.default_rng(seed).integers(-400, 400, SHAPE)
    masks = blobs(seed)
    place = (SPACING[::-1], scan.origin)
    write_volume(tmp_path / "files" / case / "ct.nii.gz", image.astype(np.int16), *place)
    rois = {}
    for organ, mask in masks.items():
        if organ in MISSING[case]:
            continue
        write_volume(tmp_path / "files" / case / f"{organ}.nii.gz", mask.astype(np.uint8), *place)
        rois[organ] = RoiSpec(mask_contours(scan, mask))
    write_series(tmp_path / "dicom" / case, image.astype(np.int16), scan)
    write_structures(tmp_path / "dicom" / case / "RS.dcm", scan, rois)


def test_contours_give_the_same_data_set(tmp_path):
    for seed, case in enumerate(MISSING):
        write_both(tmp_path, case, seed)
    manifest = tmp_path / "m.toml"
    folders = {}
    for number, kind in (("1", "files"), ("2", "dicom")):
        other = "dicom" if kind == "files" else "files"
        text = MANIFEST.replace(f'folder = "{other}"', "")  # waits for --source
        manifest.write_text(text)
        assert convert(tmp_path / "raw", "-m", str(manifest), number=number, name=kind) == 0
        folders[kind] = tmp_path / "raw" / f"Dataset00{number}_{kind}"
    contracts = {kind: contract_of(folder) for kind, folder in folders.items()}
    differing = 0
    for case in MISSING:
        coverage = [contracts[kind].coverage([case]) for kind in folders]
        assert coverage[0] == coverage[1]
        files, dicom = (label_sets_of(folder, case) for folder in folders.values())
        assert files[0, 0, 0] == dicom[0, 0, 0]
        for organ in ORGANS:
            drawn, converted = (sets == {organ} for sets in (files, dicom))
            flat = np.ones((1, 3, 3), bool)
            rim = binary_dilation(drawn, flat) & ~binary_erosion(drawn, flat)
            assert not ((drawn != converted) & ~rim).any()
            # Outlines between centres of voxels cut corners, and their volume is kept.
            assert np.count_nonzero(drawn != converted) <= 0.05 * np.count_nonzero(drawn)
            differing += int(np.count_nonzero(drawn != converted))
    assert differing < 0.01 * len(MISSING) * np.prod(SHAPE)
