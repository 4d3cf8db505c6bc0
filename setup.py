"""Package layout: the outer folders `trainers` and `dataset_conversion` are installed inside `nnunet_labelset`."""

from setuptools import setup

setup(
    packages=[
        "nnunet_labelset",
        "nnunet_labelset.losses",
        "nnunet_labelset.trainers",
        "nnunet_labelset.dataset_conversion",
        "nnunet_labelset.dataset_conversion.presets",
    ],
    package_dir={
        "nnunet_labelset": "nnunet_labelset",
        "nnunet_labelset.trainers": "trainers",
        "nnunet_labelset.dataset_conversion": "dataset_conversion",
    },
    package_data={"nnunet_labelset": ["py.typed"], "nnunet_labelset.dataset_conversion.presets": ["*.toml"]},
)
