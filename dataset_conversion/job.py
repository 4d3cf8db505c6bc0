"""One case as a job for a worker process: its name, its files and rules, and its result."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nnunet_labelset.contract import Protocol
from nnunet_labelset.dataset_conversion.meaning import SourceProtocol
from nnunet_labelset.dataset_conversion.notes import Note
from nnunet_labelset.dataset_conversion.regrid import GridRules
from nnunet_labelset.datasets.normalisation import Air
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import SAFE_NAME, check_name
from nnunet_labelset.io.flat import PICTURES, is_picture
from nnunet_labelset.nnunet.names import IMAGES_TEST, IMAGES_TRAINING, LABELS_TEST, LABELS_TRAINING
from nnunet_labelset.nnunet.raw import DEFAULT_ENDING, TRAINING

if TYPE_CHECKING:  # pydicom is an extra
    from nnunet_labelset.dataset_conversion.dicom.drawing import DicomCase

RENAME = "rename it in a case list (--annotated FILE.csv, column 'name')"
LONGEST = 100  # characters of a name that was made safe
SPELLED = str.maketrans(
    {
        "ä": "ae",
        "ö": "oe",
        "ü": "ue",
        "Ä": "Ae",
        "Ö": "Oe",
        "Ü": "Ue",
        "ß": "ss",
        "ø": "o",
        "Ø": "O",
    }
)


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
    reason: str = ""  # what says which labels are annotated: a line of a table, a source, a block
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


class Renamed(NamedTuple):
    """A case whose name could not stay."""

    source: str
    old: str
    new: str


class UnsafeNameError(LabelSetError):
    """A name with characters that no file name should have; told once for all cases of a source."""


class CaseNames:
    """The names of a data set. With `safe`, names that cannot be file names are changed."""

    def __init__(self, safe: bool = False) -> None:
        self.safe = safe
        self.renamed: list[Renamed] = []
        self._places: dict[str, str] = {}  # where each case was found, by its name in small letters

    def add(self, case: str, where: str, way_out: str) -> str:
        """Return the name of a case in the data set; one that is taken is an error.

        Names that differ only in capital letters are one file on some systems.
        """
        name = case
        if self.safe and not _is_safe(case):
            name = self._safe_name(case)
            self.renamed.append(Renamed(where, case, name))
        try:
            check_name(name, f"{where}: case")
        except LabelSetError as error:
            kind = LabelSetError if SAFE_NAME.fullmatch(name) else UnsafeNameError
            raise kind(f"{error}: {RENAME}, or use --safe-names") from None
        if name.lower() in self._places:
            raise LabelSetError(
                f"{where}: case '{name}' is also in {self._places[name.lower()]}: {way_out}, "
                f"or {RENAME}"
            )
        self._places[name.lower()] = f"{where} as '{name}'"
        return name

    def _safe_name(self, case: str) -> str:
        """Return a name that is safe and that no case before has."""
        name = safe_name(case)
        number = 2
        while name.lower() in self._places:
            name = f"{safe_name(case)}_{number}"
            number += 1
        return name


def _is_safe(name: str) -> bool:
    return bool(SAFE_NAME.fullmatch(name)) and len(name) <= LONGEST


def safe_name(name: str) -> str:
    """Return a name of ASCII letters, digits, '_', '-', '+' and '.' that resembles `name`.

    >>> safe_name("Müller, Anna (2)")
    'Mueller_Anna_2'
    """
    composed = unicodedata.normalize("NFC", name).translate(SPELLED)
    plain = unicodedata.normalize("NFKD", composed).encode("ascii", "ignore").decode()
    words = re.sub(r"[^A-Za-z0-9_.+-]+", "_", plain).strip("_.+-")
    return words[:LONGEST] or "case"
