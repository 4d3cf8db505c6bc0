"""`nnunet_labelset trainers`: where nnU-Net finds our trainers."""

from __future__ import annotations

from importlib.util import find_spec


def trainers_folder() -> str:
    """The folder of `nnunet_labelset.trainers`, for nnU-Net's variable `nnUNet_extTrainer`."""
    spec = find_spec("nnunet_labelset.trainers")
    assert spec is not None
    assert spec.submodule_search_locations
    return spec.submodule_search_locations[0]
