"""NIfTI files: no more is read than the header promises, nothing that is missing is filled up,
places are explained.

ITK turns NaN into 0, fills up truncated files without a word, knows no NIfTI-2, and refuses a
direction that is not orthonormal to the fourth digit.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_bytes

Header = nibabel.Nifti1Header | nibabel.Nifti2Header
GZIP = b"\x1f\x8b"
HEADER_BYTES = 540  # of NIfTI-2, the longer one
NIFTI_VOXELS = 352  # where the voxels begin in a NIfTI-1 file without extensions
FORMS_APART = 0.1  # of a voxel: qform is stored as a quaternion, which rounds
SHEAR = 0.02  # of a direction cosine; beyond it, voxels would move visibly


def read_nifti(path: Path) -> tuple[np.ndarray, Header, bytes]:
    """The voxels (z, y, x) of a .nii or .nii.gz file, scaled as its header says; its header, also
    as it is stored.
    """
    content = read_bytes(path)
    zipped = content.startswith(GZIP)
    start = (
        zlib.decompressobj(31).decompress(content, HEADER_BYTES)
        if zipped
        else content[:HEADER_BYTES]
    )
    # also of one that is cut off
    second = nibabel.Nifti2Header.may_contain_header(start.ljust(HEADER_BYTES, b"\0"))
    kind: type[Header] = nibabel.Nifti2Header if second else nibabel.Nifti1Header
    if len(start) < kind.sizeof_hdr:
        raise ValueError("too short for a NIfTI header")
    header = kind(start[: kind.sizeof_hdr])
    expected = bytes_promised(header)
    check_promise(path, expected, len(content), zipped)
    if zipped:
        content = unzip(content, expected)
    if len(content) < expected:
        raise LabelSetError(
            f"{path}: cut off: its header promises {expected} bytes, but there are {len(content)}"
        )
    array = np.asarray(nibabel.arrayproxy.ArrayProxy(io.BytesIO(content), header)).T
    return array.astype(array.dtype.newbyteorder("="), copy=False), header, start[: kind.sizeof_hdr]


def nifti_bytes(path: Path, expected: int) -> bytes:
    """Return the content of a .nii or .nii.gz file that this program has written."""
    content = read_bytes(path)
    return zlib.decompress(content, 31, expected) if content.startswith(GZIP) else content


def bytes_promised(header: Any) -> int:
    """The size of the uncompressed file with the voxels, as its header says."""
    shape = header.get_data_shape()
    if any(size < 1 for size in shape):
        raise ValueError(f"the header says that its size is {shape}")
    return (
        int(header.get_data_offset())
        + math.prod(map(int, shape)) * header.get_data_dtype().itemsize
    )


def check_promise(path: Path, expected: int, stored: int, zipped: bool) -> None:
    """Say so before memory is asked for, if `stored` bytes cannot hold the `expected` ones."""
    # deflate packs a byte into an eighth of a bit at best
    if expected > (stored * 1032 + 4096 if zipped else stored):
        raise LabelSetError(
            f"{path}: cut off: its header promises {expected} bytes, but the file has {stored}"
        )
    memory = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if hasattr(os, "sysconf")
        else expected
    )
    if expected > memory:
        raise LabelSetError(
            f"{path}: {expected >> 30} GB of voxels: more than the memory of this machine"
        )


def unzip(content: bytes, most: int) -> bytes:
    """At most `most` bytes; in one go, which is fastest, unless the file has several parts
    (bgzip).
    """
    unzip = zlib.decompressobj(31)
    found = unzip.decompress(content, most + 1)  # the one more makes zlib compare the checksum
    if unzip.eof and len(found) < most and unzip.unused_data.strip(b"\0"):
        return gzip.GzipFile(fileobj=io.BytesIO(content)).read(most)
    if not unzip.eof and len(found) < most:
        raise EOFError("the compressed file is cut off")
    return found


def forms_differ(header: Header) -> str:
    """In words, if qform and sform put the voxels to different places: programs differ in which one
    they take.
    """
    if not (header["qform_code"] > 0 and header["sform_code"] > 0):
        return ""
    shape = [max(size - 1, 1) for size in (*header.get_data_shape(), 1, 1, 1)[:3]]
    corners = np.array(
        [[x, y, z, 1] for x in (0, shape[0]) for y in (0, shape[1]) for z in (0, shape[2])]
    )
    sform, qform = header.get_sform(), header.get_qform()
    apart = np.linalg.norm(corners @ (sform - qform).T, axis=1).max()
    if not apart > FORMS_APART * nibabel.affines.voxel_sizes(sform).min():
        return ""
    return (
        f"qform and sform in its header are up to {apart:.3g} mm apart, and programs differ in "
        "which one they take"
    )


def nearest_place(
    header: Header,
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...], str]:
    """Spacing, origin and the nearest orthonormal direction as ITK counts them (LPS), and why ITK
    does not read it.
    """
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ header.get_best_affine()
    spacing = nibabel.affines.voxel_sizes(affine)
    cosines = affine[:3, :3] / spacing
    left, _, right = np.linalg.svd(cosines)
    direction = left @ right
    shear = np.abs(direction - cosines).max()
    if not shear < SHEAR:
        raise ValueError(
            f"the axes in its header are not at right angles (off by {shear:.2g}): resample the "
            "volume"
        )
    why = (
        "NIfTI-2"
        if isinstance(header, nibabel.Nifti2Header)
        else f"axes not quite at right angles ({shear:.1g} off)"
    )
    return (
        tuple(spacing.tolist()),
        tuple(affine[:3, 3].tolist()),
        tuple(direction.ravel().tolist()),
        why,
    )
