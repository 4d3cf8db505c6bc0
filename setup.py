"""Package layout: the outer folders `trainers` and `dataset_conversion` are installed inside
`nnunet_labelset`.
"""

from setuptools import find_packages, setup

OUTER = ("trainers", "dataset_conversion")
# Links of these names inside the package are for editors; an install does not need them.
LINKS = [
    pattern
    for name in OUTER
    for pattern in (f"nnunet_labelset.{name}", f"nnunet_labelset.{name}.*")
]
INNER = find_packages(include=["nnunet_labelset", "nnunet_labelset.*"], exclude=LINKS)
MOVED = find_packages(include=[pattern for name in OUTER for pattern in (name, f"{name}.*")])

setup(
    packages=[*INNER, *(f"nnunet_labelset.{name}" for name in MOVED)],
    package_dir={
        "nnunet_labelset": "nnunet_labelset",
        **{f"nnunet_labelset.{name}": name for name in OUTER},
    },
    package_data={
        "nnunet_labelset": ["py.typed"],
        "nnunet_labelset.dataset_conversion.presets": ["*.toml"],
        "nnunet_labelset.study": ["workflow/*"],
        "nnunet_labelset.nnunet": ["assets/*", "scripts/*.py"],
        "nnunet_labelset.report": ["assets/*"],
    },
)
