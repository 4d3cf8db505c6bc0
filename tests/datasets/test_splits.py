"""`splits`: what every split must satisfy, for random contracts, and the command."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_labelset import Contract, LabelSetError
from nnunet_labelset.cli import main
from nnunet_labelset.dataset_conversion.records import PROVENANCE_COLUMNS
from nnunet_labelset.datasets.folds import always_trained, k_folds, random_splits, subjects_of
from nnunet_labelset.nnunet.names import SPLITS
from tests.helpers.small_dataset import write_dataset


def make_contract(protocols, cases):
    """Leaves a, b, c, d; a protocol is given as the leaves that it leaves out."""
    labels = {"background": 0, "a": 1, "b": 2, "c": 3, "d": 4, "ignore": 5}
    # one leaf alone would be a singleton set, which says that it *is* annotated
    sets = {
        name: {"ignore": ["background", *out]} if out else {} for name, out in protocols.items()
    }
    block = {"version": 1, "protocols": sets, "cases": cases}
    return Contract.from_dataset_json({"labels": labels, "label_sets": block})


@st.composite
def contracts(draw):
    protocols = draw(
        st.lists(st.sets(st.sampled_from("abcd")), min_size=1, max_size=4, unique_by=frozenset)
    )
    names = [f"p{i}" for i in range(len(protocols))]
    chosen = draw(st.lists(st.sampled_from(names), min_size=2, max_size=30))
    cases = {f"case_{i:02d}": protocol for i, protocol in enumerate(chosen)}
    return make_contract(dict(zip(names, protocols, strict=True)), cases)


def check_split(contract, split, subject=None):
    """What holds for each split whatever its kind."""
    train, val = split["train"], split["val"]
    assert sorted(train + val) == sorted(contract.cases)
    assert val
    assert train
    covered = {leaf for case in train for leaf in contract.annotated(case)}
    assert covered == {leaf for case in contract.cases for leaf in contract.annotated(case)}
    if subject:
        assert not {subject[case] for case in train} & {subject[case] for case in val}


@settings(max_examples=150)
@given(contracts(), st.integers(2, 6), st.integers(0, 5))
def test_folds(contract, k, seed):
    subjects = subjects_of(contract, contract.cases)
    kept = {case for subject in always_trained(subjects) for case in subject.cases}
    try:
        splits = k_folds(subjects, k, seed)
    except LabelSetError:
        assert len(contract.cases) - len(kept) < 2 * k  # only a crowded data set may be refused
        return
    assert len(splits) == k
    for split in splits:
        check_split(contract, split)
    assert sorted(case for split in splits for case in split["val"]) == sorted(
        set(contract.cases) - kept
    )
    for protocol in contract.protocols:
        numbers = [
            sum(contract.cases[case] == protocol for case in split["val"]) for split in splits
        ]
        assert max(numbers) - min(numbers) <= 1


@settings(max_examples=100)
@given(contracts(), st.floats(0.05, 0.5), st.data())
def test_random_splits(contract, fraction, data):
    numbers = st.integers(0, 8)
    subject = {case: str(data.draw(numbers)) for case in contract.cases}
    subjects = subjects_of(contract, contract.cases, subject)
    assert sorted(case for s in subjects for case in s.cases) == sorted(contract.cases)
    if len(subjects) < 2 or len(always_trained(subjects)) == len(subjects):
        with pytest.raises(LabelSetError, match="subject"):
            random_splits(subjects, 4, fraction)
        return
    splits = random_splits(subjects, 4, fraction)
    assert splits == random_splits(subjects, 4, fraction)
    largest = max(len(s.cases) for s in subjects)
    for split in splits:
        check_split(contract, split, subject)
        assert len(split["val"]) < fraction * len(contract.cases) + largest


def test_the_paper():
    """10 splits 90/10 of 18 atlases, 116 controls and 30 spina bifida cases."""
    sizes = {"atlas": 18, "controls": 62, "controls_csf": 36, "controls_cc": 18, "spina_bifida": 30}
    out = {
        "atlas": "",
        "controls": "bcd",
        "controls_csf": "cd",
        "controls_cc": "bc",
        "spina_bifida": "bcd",
    }
    contract = make_contract(
        out, {f"{name}_{i}": name for name, size in sizes.items() for i in range(size)}
    )
    splits = random_splits(subjects_of(contract, contract.cases), 10, 0.1)
    for split in splits:
        check_split(contract, split)
        assert Counter(contract.cases[case] for case in split["val"]) == {
            "atlas": 2,
            "controls": 6,
            "controls_csf": 3,
            "controls_cc": 2,
            "spina_bifida": 3,
        }
    assert len({tuple(split["val"]) for split in splits}) == 10


def test_leaf_that_one_case_annotates():
    contract = make_contract({"p": "d", "q": ""}, {"x1": "p", "x2": "p", "x3": "p", "only": "q"})
    splits = k_folds(subjects_of(contract, contract.cases), 3)
    assert [split["val"] for split in sorted(splits, key=lambda split: split["val"])] == [
        ["x1"],
        ["x2"],
        ["x3"],
    ]
    with pytest.raises(LabelSetError, match=r"4 .* 3 .*\(1 .*-k.*--random"):
        k_folds(subjects_of(contract, contract.cases), 4)


def test_two_cases_of_a_leaf_go_apart():
    """c is annotated by one case of each of two protocols: stratifying alone could put both into
    one fold.
    """
    cases = {"left": "p", "right": "q", **{f"other_{i}": "r" for i in range(8)}}
    contract = make_contract({"p": "ad", "q": "bd", "r": "cd"}, cases)
    for seed in range(20):
        for split in k_folds(subjects_of(contract, contract.cases), 5, seed):
            check_split(contract, split)


def test_impossible():
    """Each pair of three cases alone annotates one leaf: two of the three share one of two
    folds.
    """
    contract = make_contract({"p": "cd", "q": "bd", "r": "ad"}, {"x": "p", "y": "q", "z": "r"})
    with pytest.raises(LabelSetError, match=r"2 folds .*-k.*--random"):
        k_folds(subjects_of(contract, contract.cases), 2)
    assert len(k_folds(subjects_of(contract, contract.cases), 3)) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-k", "1"], "-k to be at least 2, but got 1"),
        (["-k", "9"], "9 folds are impossible with 6 subject(s)"),
        (["--random", "0"], "--random to be at least 1"),
        (["--random", "3", "--val-fraction", "1.5"], "between 0 and 1, but got 1.5"),
        (["--val-fraction", "0.2"], "needs --random"),
        (["--subject", "(["], "not a regular expression"),
        (["--subject", "sub-(.*)"], "matches no case"),
        (["--table", "t.csv"], "--table needs --subject"),
        (["--subject", "_"], "all 6 cases"),
    ],
)
def test_bad_arguments(tmp_path, monkeypatch, capsys, arguments, text):
    folder = write_dataset(tmp_path)
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
    assert main(["splits", "-d", str(folder), *arguments]) == 1
    assert text in capsys.readouterr().err
    assert not (tmp_path / "preprocessed").exists()


def test_command(tmp_path, monkeypatch, capsys):
    folder = write_dataset(tmp_path)
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
    file = tmp_path / "preprocessed" / folder.name / "splits_final.json"
    assert main(["splits", "-d", "27", "-k", "2"]) == 0
    splits = json.loads(file.read_text())
    assert [len(split["val"]) for split in splits] == [3, 3]
    assert "fold 0: 3 train, 3 val (1 full, 1 no_spleen, 1 merged)" in capsys.readouterr().out
    assert main(["splits", "-d", "27", "-k", "2"]) == 0  # the same again is no harm
    assert main(["splits", "-d", "27", "-k", "3"]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert json.loads(file.read_text()) == splits
    # both cases of a protocol are one subject; nobody else annotates the tumour
    assert (
        main(
            [
                "splits",
                "-d",
                "27",
                "-k",
                "2",
                "--subject",
                "(full|no_spleen|merged_.)",
                "--overwrite",
            ]
        )
        == 0
    )
    for split in json.loads(file.read_text()):
        assert {"full_1", "full_2"} <= set(split["train"])
    assert (
        "full_1, full_2 is in no validation: no other case annotates tumour"
        in capsys.readouterr().out
    )
    table = tmp_path / "subjects.csv"
    table.write_text(
        "case,subject\n"
        + "".join(f"{p}_{i},{i}\n" for p in ("full", "merged", "no_spleen") for i in (1, 2))
    )
    assert (
        main(
            [
                "splits",
                "-d",
                "27",
                "-k",
                "2",
                "--subject",
                "subject",
                "--table",
                str(table),
                "--overwrite",
            ]
        )
        == 0
    )
    assert {tuple(split["val"]) for split in json.loads(file.read_text())} == {
        ("full_1", "merged_1", "no_spleen_1"),
        ("full_2", "merged_2", "no_spleen_2"),
    }


def test_copies_of_an_image_stay_in_one_fold(tmp_path, monkeypatch, capsys):
    """By the image itself, or by the file that two cases were made from."""
    folder = write_dataset(tmp_path)
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
    for case in ("no_spleen_1", "no_spleen_2"):
        (folder / "imagesTr" / f"{case}_0000.nii.gz").write_bytes(b"copy")
    (folder / "provenance.csv").write_text(
        f"{','.join(PROVENANCE_COLUMNS)}\n"
        "no_spleen_2,a,1,,\nno_spleen_2,label,7,,\nmerged_1,b,1,,\nmerged_2,c,7,,\n"
    )
    together = {"no_spleen_1", "no_spleen_2", "merged_1"}
    for kind in (["-k", "2"], ["--random", "9", "--val-fraction", "0.4"]):
        assert main(["splits", "-d", str(folder), *kind, "--overwrite"]) == 0
        splits = json.loads((tmp_path / "preprocessed" / folder.name / SPLITS).read_text())
        assert {len(together & set(split["val"])) for split in splits} == {0, 3}
    output = capsys.readouterr().out
    assert "no_spleen_1, no_spleen_2" in output
    assert "merged_1, no_spleen_2" in output


def test_preprocessed_data_set_alone(tmp_path, monkeypatch):
    """On a training machine the raw data set may not be there."""
    folder = write_dataset(tmp_path / "preprocessed")
    (folder / "labelsTr").rename(folder / "gt_segmentations")
    monkeypatch.setenv("nnUNet_raw", str(tmp_path / "raw"))
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
    assert main(["splits", "-d", "27", "--random", "2", "--val-fraction", "0.3"]) == 0
    assert [
        len(split["val"]) for split in json.loads((folder / "splits_final.json").read_text())
    ] == [2, 2]


def test_thousands_of_protocols_take_moments():
    """Each case its own protocol: quadratic time would take minutes."""
    labels = {"background": 0, **{f"organ_{i}": i for i in range(1, 117)}}
    protocols = {
        f"p{i}": {"background": ["background", f"organ_{1 + i % 116}"]} for i in range(2000)
    }
    block = {
        "version": 1,
        "protocols": protocols,
        "cases": {f"c{i:04d}": f"p{i}" for i in range(2000)},
    }
    contract = Contract.from_dataset_json({"labels": labels, "label_sets": block})
    subjects = subjects_of(contract, contract.cases)
    for split in random_splits(subjects, 10, 0.1) + k_folds(subjects, 5):
        check_split(contract, split)


def test_many_scarce_leaves_are_spread():
    """Each leaf is annotated by two of 400 cases, whatever their protocols: no fold may hold
    both.
    """
    leaves = [f"organ_{i}" for i in range(1, 101)]
    labels = {"background": 0, **{leaf: i for i, leaf in enumerate(leaves, 1)}}
    protocols, cases = {}, {}
    for i in range(400):
        drawn = {leaves[i // 2]} if i < 200 else set()
        protocols[f"p{i}"] = {
            "background": ["background", *(leaf for leaf in leaves if leaf not in drawn)]
        }
        cases[f"c{i:03d}"] = f"p{i}"
    block = {"version": 1, "protocols": protocols, "cases": cases}
    contract = Contract.from_dataset_json({"labels": labels, "label_sets": block})
    splits = k_folds(subjects_of(contract, contract.cases), 5)
    for split in splits:
        check_split(contract, split)
    assert (
        max(len(split["val"]) for split in splits) - min(len(split["val"]) for split in splits)
        <= 10
    )


def test_overwrite_names_the_networks_that_were_trained(tmp_path, monkeypatch, capsys):
    folder = write_dataset(tmp_path / "raw")
    for variable in ("raw", "preprocessed", "results"):
        monkeypatch.setenv(f"nnUNet_{variable}", str(tmp_path / variable))
    assert main(["splits", "-d", "27", "-k", "2"]) == 0
    model = tmp_path / "results" / folder.name / "nnUNetTrainerLabelSet__nnUNetPlans__3d_fullres"
    (model / "fold_1").mkdir(parents=True)
    (model / "fold_0").mkdir()
    (model / "fold_1" / "checkpoint_latest.pth").touch()
    assert main(["splits", "-d", "27", "-k", "2"]) == 0
    assert model.name not in capsys.readouterr().out  # nothing was replaced
    assert main(["splits", "-d", "27", "--random", "3", "--overwrite"]) == 0
    out = capsys.readouterr().out
    assert f"{model.name} fold 1" in out
    assert "fold 0:" in out
    assert f"{model.name} fold 0" not in out
    assert main(["splits", "-d", "27", "--random", "3", "--overwrite"]) == 0
    assert model.name not in capsys.readouterr().out  # the same again
