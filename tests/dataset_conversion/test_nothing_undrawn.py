"""No label counts as annotated in a case that did not draw it, and none is lost that was drawn.

Random merges and completions, with an oracle that reads dataset.json by the rules of
docs/contract.md and knows nothing of the package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.contract import Contract, Protocol
from nnunet_labelset.dataset_conversion.complete import complete_values
from nnunet_labelset.dataset_conversion.meaning import interpret
from nnunet_labelset.dataset_conversion.merge import InputDataset, merge_jobs
from nnunet_labelset.dataset_conversion.merge_names import common_labels, rename_labels
from nnunet_labelset.dataset_conversion.plan import Options
from nnunet_labelset.dataset_conversion.sources.manifest import Manifest
from nnunet_labelset.io.npz import slabs_of
from nnunet_labelset.nnunet.raw import RawCase
from tests.helpers.conversion import contract_of, slabs, write_nnunet, write_volume

ORGANS = ("liver", "spleen", "kidney", "tumour")
RUNS = 300


def meanings(dataset_json: dict[str, Any], protocol: str) -> dict[str, set[str]]:
    """What the values may be, by name; an unmentioned `ignore` is not among them."""
    block = dataset_json["label_sets"]["protocols"][protocol]
    names = [name for name in dataset_json["labels"] if name != "ignore"]
    return {name: {name} for name in names} | {name: set(block[name]) for name in block}


def annotated_labels(dataset_json: dict[str, Any], protocol: str) -> set[str]:
    block = dataset_json["label_sets"]["protocols"][protocol]
    sets = meanings(dataset_json, protocol).values()
    alone = {min(labels) for labels in sets if len(labels) == 1}
    disputed = set().union(*(labels for labels in sets if len(labels) > 1))
    return {label for label in alone if label not in disputed or block.get(label) == [label]}


def random_dataset(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """A dataset.json with one case and a random protocol, as people write them by hand."""
    organs = list(rng.permutation(ORGANS)[: rng.integers(1, 4)])
    names = ["background", *organs]
    has_ignore = rng.random() < 0.5
    protocol = {}
    for value in [*names, *(["ignore"] if has_ignore else [])]:
        if rng.random() < 0.5:
            size = len(names) if rng.random() < 0.3 else int(rng.integers(1, len(names) + 1))
            protocol[str(value)] = [str(name) for name in rng.permutation(names)[:size]]
    labels = {str(name): value for value, name in enumerate(names)}
    labels |= {"ignore": len(names)} if has_ignore else {}
    return {
        "labels": labels,
        "file_ending": ".nii.gz",
        "channel_names": {"0": "CT"},
        "label_sets": {"version": 1, "protocols": {"p": protocol}, "cases": {f"c{number}": "p"}},
    }


def as_input(content: dict[str, Any], number: int) -> InputDataset:
    contract = Contract.from_dataset_json(content)
    case = RawCase(f"c{number}", "training", (Path("image"),), Path("label"))
    return InputDataset(
        given=str(number),
        folder=Path(f"Dataset00{number}_X"),
        dataset_json=content,
        contract=contract,
        cases=[case],
        name=f"X{number}",
        fully_annotated=False,
        names={leaf: (leaf,) for leaf in contract.leaf_names},
    )


@pytest.mark.parametrize("seed", range(RUNS))
def test_merging_keeps_exactly_what_was_drawn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    contents = [random_dataset(rng, number) for number in (1, 2)]
    datasets = [as_input(content, number) for number, content in enumerate(contents, start=1)]
    first_organ = datasets[0].contract.leaf_names[1]
    other = str(rng.choice([organ for organ in ORGANS if organ != first_organ]))
    renames = {first_organ: {first_organ}}
    if rng.random() < 0.4 and any(other in dataset.contract.leaf_names for dataset in datasets):
        rename_labels(datasets, [f"1:{first_organ}={first_organ}+{other}"])
        renames[first_organ] = {first_organ, other}
    labels = common_labels(datasets)
    options = Options(Manifest(labels, ("CT",)), link=True)
    plan = merge_jobs(datasets, options)
    for number, (job, content) in enumerate(zip(plan.jobs, contents, strict=True), start=1):
        own = [name for name in content["labels"] if name != "ignore"]
        became = {name: renames.get(name, {name}) if number == 1 else {name} for name in own}
        absent = set(labels.leaf_names) - set().union(*became.values())
        became["background"] = {"background"} | absent
        values = range(len(content["labels"]))
        present = [value for value in values if rng.random() < 0.7] or [0]
        meaning = interpret(job.protocol, present)
        stored = Contract(
            labels.leaf_names, {"p": meaning.protocol}, {"c": "p"}, meaning.protocol.has_ignore
        ).to_dataset_json()
        before = annotated_labels(content, "p")
        expected = {
            label
            for label in labels.leaf_names
            if (makers := [name for name in own if label in became[name]])
            and all(name in before and became[name] == {label} for name in makers)
        }
        assert annotated_labels(stored, "p") == expected, (content, stored)
        for value in present:
            name = list(content["labels"])[value]
            source = meanings(content, "p").get(name) or set(own)
            target = {labels.leaf_names[leaf] for leaf in meaning.label_set(value)}
            assert target >= set().union(*(became[label] for label in source))


@pytest.mark.parametrize("seed", range(RUNS))
def test_completing_keeps_exactly_what_was_drawn_or_decided(seed: int) -> None:
    rng = np.random.default_rng(seed)
    content = random_dataset(rng, 1)
    contract = Contract.from_dataset_json(content)
    protocol, names = contract.protocols["p"], contract.leaf_names
    values = rng.integers(0, len(protocol.sets), (3, 4, 5))
    sharpness = rng.choice([0.01, 0.2])
    probabilities = np.moveaxis(rng.dirichlet(np.full(len(names), sharpness), values.shape), -1, 0)
    result, completed = complete_values(values, slabs_of(probabilities), protocol, 0.9)
    stored = Contract(
        names, {"p": completed.protocol}, {"c": "p"}, completed.protocol.has_ignore
    ).to_dataset_json()
    claimed = annotated_labels(stored, "p")
    drawn = annotated_labels(content, "p")
    assert claimed >= drawn
    # A label that nobody drew counts only if the model decided about every voxel that may be it.
    value_names = list(content["labels"])
    sets = meanings(content, "p")
    still_open = set()
    for before, after in zip(values.ravel(), result.ravel(), strict=True):
        if len(completed.protocol.sets[after]) > 1:
            still_open |= sets.get(value_names[before], set())
    assert not (claimed - drawn) & still_open


def test_a_label_that_was_declared_missing_stays_missing_after_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spleen of one of two cases was drawn: so it is after a merge, whatever the voxels."""
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    for number, array in {3: slabs(0), 4: slabs(1)}.items():
        block = {
            "version": 1,
            "protocols": {"all": {}, "none": {"background": ["background", "spleen"]}},
            "cases": {f"x{number}": "none", f"y{number}": "all"},
        }
        write_nnunet(
            tmp_path,
            f"Dataset00{number}_Spleen",
            {"background": 0, "spleen": 1},
            {f"x{number}": array, f"y{number}": slabs(1)},
            label_sets=block,
        )
    assert main(["merge", "-d", "50", "-n", "All", "-np", "1", "3", "4"]) == 0
    contract = contract_of(tmp_path / "Dataset050_All")
    assert {case: contract.annotated(case) for case in contract.cases} == {
        "x3": (),
        "x4": (),
        "y3": ("background", "spleen"),
        "y4": ("background", "spleen"),
    }
    content = json.loads((tmp_path / "Dataset050_All" / "dataset.json").read_text())
    assert annotated_labels(content, content["label_sets"]["cases"]["x4"]) == set()


def test_verify_trusts_what_merge_declared_until_somebody_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Left and right are united, and one of them was not drawn: the other one is there."""
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    monkeypatch.delenv("nnUNet_preprocessed", raising=False)
    labels = {"background": 0, "left": 1, "right": 2}
    protocols = {
        "all": {},
        "left": {"background": ["background", "right"]},
        "none": {"background": ["background", "left", "right"]},
    }
    block = {"version": 1, "protocols": protocols, "cases": {"a": "all", "b": "left", "d": "none"}}
    arrays = {"a": slabs(1, 2), "b": slabs(1), "d": slabs(0)}
    write_nnunet(tmp_path, "Dataset003_Sides", labels, arrays, label_sets=block)
    write_nnunet(tmp_path, "Dataset004_Both", {"background": 0, "kidney": 1}, {"c": slabs(0, 1)})
    united = ["--label", "3:left=kidney", "--label", "3:right=kidney", "--fully-annotated", "4"]
    assert main(["merge", "-d", "50", "-n", "All", "-np", "1", "3", "4", *united]) == 0
    file = tmp_path / "Dataset050_All" / "dataset.json"
    assert contract_of(file.parent).annotated("b") == ()
    capsys.readouterr()
    assert main(["verify", "-d", "50", "-np", "1"]) == 0
    assert "labelsTr/b.nii.gz" in capsys.readouterr().out  # a doubt
    map_of_d = file.parent / "labelsTr" / "d.nii.gz"
    before = map_of_d.read_bytes()
    write_volume(map_of_d, slabs(1))  # somebody draws what was not drawn, and does not say so
    assert main(["verify", "-d", "50", "-np", "1"]) == 1
    assert "labelsTr/d.nii.gz" in capsys.readouterr().out
    map_of_d.write_bytes(before)
    content = json.loads(file.read_text())
    cases = content["label_sets"]["cases"]
    cases["a"], cases["b"] = cases["b"], cases["a"]
    file.write_text(json.dumps(content))
    assert main(["verify", "-d", "50", "-np", "1"]) == 1
    assert "labelsTr/a.nii.gz" in capsys.readouterr().out


def test_scribbles_stay_scribbles_when_a_model_completes_them() -> None:
    """Some voxels of every label are decided, others stay open: nothing counts as drawn."""
    everything = frozenset(range(3))
    protocol = Protocol((everything, frozenset([1]), frozenset([2])), 3)
    values = np.array([[[0, 0, 1, 2, 0]]])
    probabilities = np.array([[1.0, 0, 0, 0, 0.4], [0, 1, 0, 0, 0.3], [0, 0, 1, 1, 0.3]])
    _, completed = complete_values(values, slabs_of(probabilities[:, None, None]), protocol, 0.9)
    assert completed.completed == 2
    assert completed.protocol.annotated == frozenset()
