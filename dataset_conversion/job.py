"""One case as a job for a worker process, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from nnunet_labelset.contract import LabelSet
from nnunet_labelset.dataset_conversion.scheme import Scheme


@dataclass(frozen=True)
class CaseJob:
    """Files and rules of one case. `labels` is one file with the scheme's values, or one file per structure: then
    structure `i` has the value `i + 1` in the scheme, and `None` is a structure that was not drawn in this case.
    """

    case: str
    source: str
    part: str
    images: tuple[Path, ...]
    labels: tuple[Path | None, ...]
    mask: Path | None
    scheme: Scheme
    leaves: tuple[str, ...]
    per_structure: bool = False
    overlap: bool = False
    first_volume: bool = False
    replace_nan: bool = False
    mask_images: float | None = None  # mm around the mask
    link: bool = False
    ending: str = ".nii.gz"

    @property
    def inputs(self) -> tuple[Path, ...]:
        return tuple(path for path in (*self.images, *self.labels, self.mask) if path is not None)


@dataclass
class CaseResult:
    """`protocol` says what each value stands for (None: no label map); `notes` are facts worth telling, by kind."""

    protocol: tuple[LabelSet, ...] | None = None
    uses_ignore: bool = False
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
