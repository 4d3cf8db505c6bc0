"""Package layout: the outer folders `trainers` and `dataset_conversion` are installed inside
`nnunet_labelset`.
"""

import os
import re
from pathlib import Path

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


def long_description() -> str:
    """Return README.md; with REPOSITORY set, its links also work on a package index."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    repository = os.environ.get("REPOSITORY")
    if not repository:
        return text
    text = re.sub(r"!\[([^]]*)\]\((?!\w+:)([^)]+)\)", rf"![\1]({repository}/raw/main/\2)", text)
    return re.sub(
        r"(?<!!)\[([^]]*)\]\((?![\w]+:|#)([^)]+)\)", rf"[\1]({repository}/blob/main/\2)", text
    )


setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    packages=[*INNER, *(f"nnunet_labelset.{name}" for name in MOVED)],
    package_dir={
        "nnunet_labelset": "nnunet_labelset",
        **{f"nnunet_labelset.{name}": name for name in OUTER},
    },
    package_data={
        "nnunet_labelset": ["py.typed"],
        "nnunet_labelset.dataset_conversion.presets": ["*.toml"],
        "nnunet_labelset.study": ["workflow/*"],
        "nnunet_labelset.audit": ["assets/*"],
        "nnunet_labelset.nnunet": ["assets/*", "scripts/*.py"],
        "nnunet_labelset.report": ["assets/*"],
    },
)
