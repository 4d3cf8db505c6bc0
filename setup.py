"""Package layout: the outer folders `trainers` and `dataset_conversion` are installed inside `nnunet_labelset`."""

from setuptools import find_packages, setup

OUTER = ("trainers", "dataset_conversion")

setup(
    packages=[
        *find_packages(include=["nnunet_labelset", "nnunet_labelset.*"]),
        *(f"nnunet_labelset.{name}" for name in find_packages(include=[*OUTER, *(f"{name}.*" for name in OUTER)])),
    ],
    package_dir={
        "nnunet_labelset": "nnunet_labelset",
        **{f"nnunet_labelset.{name}": name for name in OUTER},
    },
    package_data={
        "nnunet_labelset": ["py.typed"],
        "nnunet_labelset.dataset_conversion.presets": ["*.toml"],
        "nnunet_labelset.study.scripts": ["*.sh"],
        "nnunet_labelset.nnunet": ["assets/*", "scripts/*.py"],
        "nnunet_labelset.report": ["assets/*"],
    },
)
