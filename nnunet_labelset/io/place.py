"""Where the voxels of a volume lie, as ITK and with it nnU-Net sees it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.io.nifti import Header, forms_differ, nearest_place

# Headers are float32 in NIfTI: what differs by less than this is the same place.
RELATIVE_SPACING = 1e-3
RELATIVE_ORIGIN = 1e-2  # of a voxel
DIRECTION = 1e-3
# What a NIfTI header says about places; the rest is about the voxels.
PLACE_FIELDS = (
    *("dim", "pixdim", "xyzt_units", "intent_code", "toffset", "qform_code", "sform_code", "quatern_b", "quatern_c"),
    *("quatern_d", "qoffset_x", "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z"),
)


@dataclass(frozen=True)
class Place:
    """Where the voxels of a volume lie, with the names of SimpleITK, so that `geometry_difference` takes both."""

    size: tuple[int, ...]  # (x, y, z), or (x, y, z, t)
    spacing: tuple[float, ...]
    origin: tuple[float, ...]
    direction: tuple[float, ...]
    components: int = 1
    refused: str = ""  # why ITK, and with it nnU-Net's usual reader, does not read the file
    ambiguous: str = ""  # why other programs may see the volume elsewhere

    def spatial(self) -> Place:
        """Where one volume of a 4D file lies."""
        direction = tuple(np.reshape(self.direction, (4, 4))[:3, :3].ravel().tolist())
        return replace(self, size=self.size[:3], spacing=self.spacing[:3], origin=self.origin[:3], direction=direction)

    def GetSize(self) -> tuple[int, ...]:  # noqa: N802
        return self.size

    def GetDimension(self) -> int:  # noqa: N802
        return len(self.size)

    def GetSpacing(self) -> tuple[float, ...]:  # noqa: N802
        return self.spacing

    def GetOrigin(self) -> tuple[float, ...]:  # noqa: N802
        return self.origin

    def GetDirection(self) -> tuple[float, ...]:  # noqa: N802
        return self.direction

    def GetNumberOfComponents(self) -> int:  # noqa: N802
        return self.components


def nifti_place(path: Path, header: Header, stored: bytes) -> Place:
    """The place that ITK finds for a NIfTI file with this header, or the nearest one if it refuses the file.

    To tell it, ITK unpacks the whole file: it is asked about the header alone, once for all files of a case.
    """
    voxels = header.get_data_dtype()
    usual = type(header) is nibabel.Nifti1Header and voxels.kind in "iuf" and voxels.itemsize <= 8
    if not usual or header.binaryblock != stored:  # nibabel mends what it knows to be wrong
        return _ask_itk(path, header)
    bare = nibabel.Nifti1Header(endianness=header.endianness, check=False)
    for field in PLACE_FIELDS:
        bare[field] = header[field]
    bare["vox_offset"] = len(bare.binaryblock) + 4
    try:
        return _place_of_header(bare.binaryblock)
    except OSError:  # no place for temporary files
        return _ask_itk(path, header)


@lru_cache(maxsize=16)
def _place_of_header(block: bytes) -> Place:
    handle, name = tempfile.mkstemp(suffix=".nii")
    try:
        with open(handle, "wb") as file:
            file.write(block + bytes(4))  # no extensions
        return _ask_itk(Path(name), nibabel.Nifti1Header(block, check=False))
    finally:
        os.unlink(name)


def _ask_itk(path: Path, header: Header) -> Place:
    reader = sitk.ImageFileReader()
    reader.SetImageIO("NiftiImageIO")  # else every format that ITK knows has a look at the file
    reader.SetFileName(str(path))
    ambiguous = forms_differ(header)
    try:
        reader.ReadImageInformation()
    except RuntimeError:
        spacing, origin, direction, why = nearest_place(header)
        size = tuple(map(int, header.get_data_shape()))
        size = (*size, 1) if len(size) == 2 else size
        if len(size) == 4:
            turned = np.eye(4)
            turned[:3, :3] = np.reshape(direction, (3, 3))
            spacing, origin, direction = (*spacing, 1.0), (*origin, 0.0), tuple(turned.ravel().tolist())
        return Place(size, spacing, origin, direction, 1, why, ambiguous)
    return replace(place_of(reader), ambiguous=ambiguous)


def place_of(reader: sitk.ImageFileReader) -> Place:
    """Where a file lies that ITK has looked at."""
    return Place(
        reader.GetSize(),
        reader.GetSpacing(),
        reader.GetOrigin(),
        reader.GetDirection(),
        reader.GetNumberOfComponents(),
    )


def geometry_difference(a: Place | sitk.Image, b: Place | sitk.Image) -> str | None:
    """What differs in size, spacing, origin or direction beyond rounding, or None."""
    if a.GetSize() != b.GetSize():
        return f"size {a.GetSize()} and {b.GetSize()}"
    spacing = np.array(a.GetSpacing())
    if not np.allclose(spacing, b.GetSpacing(), rtol=RELATIVE_SPACING, atol=0):
        return f"spacing {a.GetSpacing()} and {b.GetSpacing()}"
    if not np.allclose(a.GetDirection(), b.GetDirection(), rtol=0, atol=DIRECTION):
        return f"direction {a.GetDirection()} and {b.GetDirection()}"
    if np.any(np.abs(np.array(a.GetOrigin()) - b.GetOrigin()) > RELATIVE_ORIGIN * spacing.max()):
        return f"origin {a.GetOrigin()} and {b.GetOrigin()}"
    return None
