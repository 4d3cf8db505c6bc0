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
    *(
        "dim",
        "pixdim",
        "xyzt_units",
        "intent_code",
        "toffset",
        "qform_code",
        "sform_code",
        "quatern_b",
        "quatern_c",
    ),
    *("quatern_d", "qoffset_x", "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z"),
)


@dataclass(frozen=True)
class Place:
    """Where the voxels of a volume lie, as SimpleITK counts it."""

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
        return replace(
            self,
            size=self.size[:3],
            spacing=self.spacing[:3],
            origin=self.origin[:3],
            direction=direction,
        )


def nifti_place(path: Path, header: Header, stored: bytes) -> Place:
    """The place that ITK finds for a NIfTI file with this header, or the nearest one if it refuses
    the file.

    To tell it, ITK unpacks the whole file: it is asked about the header alone, once for all files
    of a case.
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
            spacing, origin, direction = (
                (*spacing, 1.0),
                (*origin, 0.0),
                tuple(turned.ravel().tolist()),
            )
        return Place(size, spacing, origin, direction, 1, why, ambiguous)
    return replace(place_of(reader, reader.GetNumberOfComponents()), ambiguous=ambiguous)


def place_of(source: sitk.ImageFileReader | sitk.Image, components: int = 1) -> Place:
    """Where an image lies, or a file that ITK has looked at."""
    return Place(
        source.GetSize(), source.GetSpacing(), source.GetOrigin(), source.GetDirection(), components
    )


def geometry_difference(a: Place, b: Place) -> str | None:
    """What differs in size, spacing, origin or direction beyond rounding, or None."""
    if a.size != b.size:
        return f"size {a.size} and {b.size}"
    if not np.allclose(a.spacing, b.spacing, rtol=RELATIVE_SPACING, atol=0):
        return f"spacing {a.spacing} and {b.spacing}"
    if not np.allclose(a.direction, b.direction, rtol=0, atol=DIRECTION):
        return f"direction {a.direction} and {b.direction}"
    dimensions = len(a.spacing)
    direction = np.reshape(a.direction, (dimensions, dimensions))
    moved = np.abs(direction.T @ np.subtract(b.origin, a.origin))  # along the axes of the voxels
    if (moved > RELATIVE_ORIGIN * np.array(a.spacing)).any():
        return f"origin {a.origin} and {b.origin}"
    return None
