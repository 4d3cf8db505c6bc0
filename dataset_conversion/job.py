"""One case as a job for a worker process, and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nnunet_labelset.contract import Protocol
from nnunet_labelset.dataset_conversion.meaning import SourceProtocol
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.regrid import GridRules
from nnunet_labelset.datasets.normalisation import Air
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.flat import PICTURES, is_picture
from nnunet_labelset.nnunet.names import IMAGES_TEST, IMAGES_TRAINING, LABELS_TEST, LABELS_TRAINING
from nnunet_labelset.nnunet.raw import DEFAULT_ENDING, TRAINING

if TYPE_CHECKING:  # pydicom is an extra
    from nnunet_labelset.dataset_conversion.dicom.drawing import DicomCase


@dataclass(frozen=True)
class CaseJob:
    """Files and rules of one case.

    `labels` is one file with the values of the protocol, or one file per structure: then structure
    `i` has the value `i + 1` in the protocol, and None is a structure that was not drawn here.
    """

    case: str
    source: str
    part: str
    images: tuple[Path, ...]
    labels: tuple[Path | None, ...]
    mask: Path | None
    protocol: SourceProtocol
    leaves: tuple[str, ...]
    per_structure: bool = False
    overlap: bool = False
    first_volume: bool = False
    replace_nan: bool = False
    mask_images: float | None = None  # mm around the mask
    fully_annotated: bool = False  # the user vouches for it, however much of the mask is unlabelled
    link: bool = False
    looks_for_air: bool = False  # nnU-Net may normalise inside a mask
    ending: str = DEFAULT_ENDING
    colours: int = 1  # channels in one picture, such as 3 for RGB
    notes: tuple[Note, ...] = ()  # what was noticed before any file was read
    raters: bool = False  # `labels` are the label maps of several raters
    grid: GridRules = field(default_factory=GridRules)
    segments: Mapping[int, tuple[str, ...]] | None = None  # names in a file of 3D Slicer
    dicom: DicomCase | None = None  # its images and labels, in place of files

    @property
    def image_files(self) -> list[str]:
        """The images of the case, in the folder of the data set."""
        folder = IMAGES_TRAINING if self.part == TRAINING else IMAGES_TEST
        return [
            f"{folder}/{self.case}_{channel:04d}{self.ending}"
            for channel in range(len(self.images))
        ]

    @property
    def label_file(self) -> str:
        folder = LABELS_TRAINING if self.part == TRAINING else LABELS_TEST
        return f"{folder}/{self.case}{self.ending}"

    @property
    def inputs(self) -> tuple[Path, ...]:
        files = self.dicom.files if self.dicom is not None else self.images
        return tuple(path for path in (*files, *self.labels, self.mask) if path is not None)


@dataclass
class CaseResult:
    """The protocol of the label map that was written (None: the case has none), and remarks.

    `checksums` are those of the files that were read, by path; `values` are voxels by value of the
    label map that was written.
    """

    protocol: Protocol | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    checksums: dict[str, str] = field(default_factory=dict)
    is_flat: bool = False  # a single slice
    values: dict[int, int] = field(default_factory=dict)
    air: Air | None = None


def common_ending(endings: Iterable[str]) -> str:
    """Return the ending of all files of a data set whose images end so: that of pictures if they
    share one that nnU-Net reads, and the usual one of volumes.
    """
    different = {ending.lower() for ending in endings}
    pictures = {ending for ending in different if is_picture(f"x{ending}")}
    if not pictures:
        return DEFAULT_ENDING
    if pictures != different:
        raise LabelSetError(
            f"flat pictures and volumes ({', '.join(sorted(different))}) in one data set: "
            "nnU-Net reads one kind of files only: write two data sets"
        )
    ending = pictures.pop() if len(pictures) == 1 else ""
    return ending if ending in PICTURES else PICTURES[0]
