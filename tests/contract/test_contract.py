"""The contract in dataset.json: what it means, what it refuses."""

from __future__ import annotations

import copy
import json
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError, did_you_mean
from tests.helpers.errors import facts_of, refusal

LABELS = {
    "background": 0,
    "white_matter": 1,
    "ventricles": 2,
    "cortex": 3,
    "brainstem": 4,
    "ignore": 5,
}
BLOCK = {
    "version": 1,
    "protocols": {
        "atlas": {},
        "basic": {"ignore": ["cortex", "brainstem"]},
        "merged": {"white_matter": ["white_matter", "brainstem"]},
        "liver_style": {"background": ["background", "cortex"], "ignore": ["ventricles", "cortex"]},
    },
    "cases": {"case_1": "atlas", "case_2": "basic", "case_3": "merged", "case_4": "liver_style"},
}


def dataset_json(**changes: object) -> dict:
    return copy.deepcopy({"labels": LABELS, "label_sets": BLOCK, **changes})


def block(**changes: object) -> dict:
    return dataset_json(label_sets={**copy.deepcopy(BLOCK), **changes})


def test_unmentioned_values_stand_for_themselves_and_ignore_for_everything():
    contract = Contract.from_dataset_json(dataset_json())
    assert contract.leaf_names == (
        "background",
        "white_matter",
        "ventricles",
        "cortex",
        "brainstem",
    )
    assert contract.value_names[-1] == "ignore"
    assert contract.protocol("case_1").sets == ({0}, {1}, {2}, {3}, {4}, {0, 1, 2, 3, 4})
    assert contract.protocol("case_2").sets == ({0}, {1}, {2}, {3}, {4}, {3, 4})
    assert contract.protocol("case_3").sets == ({0}, {1, 4}, {2}, {3}, {4}, {0, 1, 2, 3, 4})
    assert contract.protocol("case_4").sets == ({0, 3}, {1}, {2}, {3}, {4}, {2, 3})


def test_annotated_leaves():
    contract = Contract.from_dataset_json(dataset_json())
    assert contract.annotated("case_1") == contract.leaf_names
    assert contract.annotated("case_2") == ("background", "white_matter", "ventricles")
    assert contract.annotated("case_3") == ("background", "ventricles", "cortex")
    assert contract.annotated("case_4") == ("white_matter", "brainstem")
    assert [contract.is_fully_annotated(f"case_{i}") for i in (1, 2, 3, 4)] == [
        True,
        False,
        False,
        False,
    ]
    expected = {"background": 3, "white_matter": 3, "ventricles": 3, "cortex": 2, "brainstem": 2}
    assert contract.coverage() == expected
    assert contract.coverage(["case_1"]) == dict.fromkeys(contract.leaf_names, 1)


def test_a_leaf_without_a_value_of_its_own_is_not_annotated():
    """Every value of the leaf is used for something else."""
    protocol = {"cortex": ["white_matter"], "brainstem": ["background", "brainstem"]}
    contract = Contract.from_dataset_json(block(protocols={"p": protocol}, cases={"c": "p"}))
    assert contract.annotated("c") == ("white_matter", "ventricles")


def test_without_ignore():
    labels = {"background": 0, "organ": 1}
    blocks = {
        "version": 1,
        "protocols": {"p": {"background": ["background", "organ"]}},
        "cases": {"c": "p"},
    }
    contract = Contract.from_dataset_json({"labels": labels, "label_sets": blocks})
    assert not contract.has_ignore
    assert contract.value_names == ("background", "organ")
    assert contract.protocol("c").sets == ({0, 1}, {1})


def test_order_of_the_labels_does_not_matter():
    shuffled = dict(sorted(LABELS.items(), key=lambda item: item[0]))
    assert Contract.from_dataset_json(dataset_json(labels=shuffled)) == Contract.from_dataset_json(
        dataset_json()
    )


@st.composite
def blocks(draw: st.DrawFn) -> dict:
    leaves = [name for name in LABELS if name != "ignore"]
    subset = st.lists(st.sampled_from(leaves), min_size=1, unique=True)
    protocols = draw(
        st.dictionaries(
            st.text(min_size=1), st.dictionaries(st.sampled_from(list(LABELS)), subset), min_size=1
        )
    )
    cases = draw(st.dictionaries(st.text(min_size=1), st.sampled_from(sorted(protocols))))
    return {"version": 1, "protocols": protocols, "cases": cases}


@settings(max_examples=50, derandomize=True)
@given(blocks())
def test_round_trip(written):
    contract = Contract.from_dataset_json({"labels": LABELS, "label_sets": written})
    again = json.loads(json.dumps(contract.to_block()))
    assert Contract.from_dataset_json({"labels": LABELS, "label_sets": again}) == contract
    for protocol, values in again["protocols"].items():
        for value, leaves in values.items():  # only what differs from the default is written
            assert sorted(leaves) == sorted(written["protocols"][protocol][value])
            assert leaves != [value] or any(
                value in other and len(other) > 1 for other in values.values()
            )


NESTED = {"white_matter": [["cortex"]]}
BAD = {
    "dataset.json has no 'labels'": {"label_sets": BLOCK},
    "label 'brain' is a region": dataset_json(labels={"background": 0, "brain": [1, 2]}),
    "value of label 'brain' to be an integer, but got '1'": dataset_json(
        labels={"background": 0, "brain": "1"}
    ),
    "value of label 'brain' to be an integer, but got True": dataset_json(
        labels={"background": 0, "brain": True}
    ),
    r"without gaps, but got \[0, 2\]": dataset_json(labels={"background": 0, "brain": 2}),
    r"without gaps, but got \[0, 1, 1\]": dataset_json(
        labels={"background": 0, "brain": 1, "skull": 1}
    ),
    "'ignore' to have the highest value, but 'brain' has": dataset_json(
        labels={"background": 0, "ignore": 1, "brain": 2}
    ),
    "at least two labels": dataset_json(labels={"background": 0, "ignore": 1}),
    "dataset.json has no 'label_sets' block": {"labels": LABELS},
    "'label_sets' in dataset.json to be an object, but got list": dataset_json(label_sets=[]),
    "label_sets.version to be 1, or 2 for regions, but got 3": block(version=3),
    "label_sets.version to be 1, or 2 for regions, but got True": block(version=True),
    "label_sets.version to be 1, or 2 for regions, but got None": dataset_json(
        label_sets={"protocols": {}, "cases": {}}
    ),
    "label_sets.protocols in dataset.json to be an object, but got None": dataset_json(
        label_sets={"version": 1, "cases": {}}
    ),
    "label_sets.cases in dataset.json to be an object": block(cases=["case_1"]),
    "casess": block(casess={}),
    "case 'c': unknown protocol 'atlsa' in label_sets.cases; did you mean 'atlas'": block(
        cases={"c": "atlsa"}
    ),
    r"case 'c': unknown protocol \['atlas'\]": block(cases={"c": ["atlas"]}),
    "protocol 'p', value 'cortx': no such label; did you mean 'cortex'": block(
        protocols={"p": {"cortx": ["cortex"]}}
    ),
    "protocol 'p', value 'cortex': unknown label 'brain_stem'; did you mean 'brainstem'": block(
        protocols={"p": {"cortex": ["brain_stem"]}}
    ),
    "unknown label 'ignore'": block(protocols={"p": {"ignore": ["ignore"]}}),
    "unknown label 3": block(protocols={"p": {"ignore": [3]}}),
    r"unknown label \['cortex'\]": block(protocols={"p": NESTED}),
    "protocol 'p', value 'ignore': empty label-set": block(protocols={"p": {"ignore": []}}),
    "expected a list of labels, but got 'cortex'": block(protocols={"p": {"ignore": "cortex"}}),
    "expected a list of labels, but got {'cortex'": block(
        protocols={"p": {"ignore": {"cortex": False}}}
    ),
    "expected a list of labels, but got 3": block(protocols={"p": {"ignore": 3}}),
    "protocol 'p' to be an object of value -> labels, but got None": block(protocols={"p": None}),
    "'labels' in dataset.json does not declare 'ignore'": dataset_json(
        labels={"background": 0, "white_matter": 1}
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_fails_closed(message):
    facts = facts_of(message)
    with refusal(LabelSetError, *facts):
        Contract.from_dataset_json(BAD[message])
    problems = Contract.read(BAD[message])[1]
    assert any(all(fact in problem for fact in facts) for problem in problems)


def test_all_problems_are_found_and_the_rest_is_read():
    protocols = {
        "a": {"ignore": [], "cortex": ["cortx"], "white_matter": ["cortex"]},
        "b": None,
        "c": {},
    }
    contract, problems = Contract.read(
        block(protocols=protocols, cases={"x": "a", "y": "b", "z": "d"}, more=1)
    )
    assert [problem.split(":")[0] for problem in problems] == [
        "Unknown key(s) in label_sets of dataset.json",
        "protocol 'a', value 'ignore'",
        "protocol 'a', value 'cortex'",
        "Expected protocol 'b' to be an object of value -> labels, but got None",
        "case 'y'",
        "case 'z'",
    ]
    assert contract is not None
    assert contract.cases == {"x": "a"}
    assert contract.protocol("x").sets == ({0}, {3}, {2}, {3}, {4}, {0, 1, 2, 3, 4})
    assert list(contract.protocols) == ["a", "c"]


def test_a_leaf_that_the_protocol_vouches_for_is_annotated_but_for_disputed_voxels():
    """As in an atlas whose parts are disputed in places: the contract alone cannot tell it from
    "not drawn".
    """
    disputed = {"ignore": ["white_matter", "cortex"]}
    protocols = {
        "not_drawn": disputed,
        "disputed": {**disputed, "white_matter": ["white_matter"], "cortex": ["cortex"]},
    }
    contract = Contract.from_dataset_json(
        block(protocols=protocols, cases={"a": "not_drawn", "b": "disputed"})
    )
    assert contract.annotated("a") == ("background", "ventricles", "brainstem")
    assert contract.annotated("b") == contract.leaf_names
    assert contract.coverage()["cortex"] == 1
    assert contract.protocol("a").sets == contract.protocol("b").sets
    # voxels of a larger label-set are no complete annotation
    assert not contract.is_fully_annotated("b")
    assert contract.to_block()["protocols"] == protocols
    # no value of its own: nobody can vouch for white matter
    merged = {"white_matter": ["white_matter", "brainstem"]}
    contract = Contract.from_dataset_json(block(protocols={"p": merged}, cases={"c": "p"}))
    assert contract.annotated("c") == ("background", "ventricles", "cortex")


def test_thousands_of_protocols_take_moments():
    """Each case its own protocol: quadratic time would take minutes."""
    labels = {f"leaf_{i}": i for i in range(117)}
    protocols = {f"p{i}": {"leaf_0": ["leaf_0", f"leaf_{1 + i % 116}"]} for i in range(2000)}
    cases = {f"c{i}": f"p{i}" for i in range(2000)}
    written = {
        "labels": labels,
        "label_sets": {"version": 1, "protocols": protocols, "cases": cases},
    }
    contract = Contract.from_dataset_json(written)
    assert sum(contract.coverage().values()) == 2000 * 115
    assert contract.to_block() == written["label_sets"]
    wrong = {"version": 1, "protocols": protocols, "cases": {f"c{i}": f"q{i}" for i in range(2000)}}
    assert len(Contract.read({"labels": labels, "label_sets": wrong})[1]) == 2000


LEAVES = {"background": 0, "edema": 1, "necrosis": 2, "enhancing": 3}
REGIONS = {"background": 0, "whole_tumour": [1, 2, 3], "core": [2, 3], "enhancing": 3, "ignore": 4}


def region_json(
    leaves: object = LEAVES, labels: object = REGIONS, order: object = (1, 2, 3), **changes: object
) -> dict:
    protocols = {"full": {}, "outer": {"edema": ["edema", "necrosis", "enhancing"]}}
    written = {
        "version": 2,
        "leaves": leaves,
        "protocols": protocols,
        "cases": {"a": "full", "b": "outer"},
        **changes,
    }
    return copy.deepcopy({"labels": labels, "regions_class_order": order, "label_sets": written})


class TestRegions:
    def test_leaves_and_regions(self):
        contract = Contract.from_dataset_json(region_json())
        assert contract.leaf_names == tuple(LEAVES)
        assert contract.regions == {"whole_tumour": {1, 2, 3}, "core": {2, 3}, "enhancing": {3}}
        # the order of nnU-Net's outputs
        assert list(contract.regions) == ["whole_tumour", "core", "enhancing"]
        assert contract.has_ignore
        assert contract.protocol("b").sets == ({0}, {1, 2, 3}, {2}, {3}, {0, 1, 2, 3})
        assert contract.annotated("b") == ("background",)
        assert Contract.from_dataset_json(dataset_json()).regions is None

    def test_round_trip(self):
        contract = Contract.from_dataset_json(region_json())
        written = json.loads(json.dumps(contract.to_dataset_json()))
        assert Contract.from_dataset_json(written) == contract
        assert written["label_sets"] == region_json()["label_sets"]
        plain = Contract.from_dataset_json(dataset_json())
        assert Contract.from_dataset_json(plain.to_dataset_json()) == plain

    def test_as_nnunet_reads_them(self):
        """The order of regions and what counts as one are nnU-Net's."""
        from nnunetv2.utilities.label_handling.label_handling import LabelManager

        manager = LabelManager(REGIONS, [1, 2, 3])
        ours = Contract.from_dataset_json(region_json()).regions
        assert ours is not None
        theirs = [
            {region} if isinstance(region, int) else set(region)
            for region in manager.foreground_regions
        ]
        assert theirs == list(ours.values())

    BAD: ClassVar = {
        "label 'whole_tumour' is a region .*: say which label each value is, in label_sets.leaves": {
            "labels": REGIONS,
            "label_sets": BLOCK,
        },
        "Expected label_sets.leaves to be an object": region_json(leaves=["background", "edema"]),
        r"values of label_sets.leaves to be 0, 1, 2, ... without gaps": region_json(
            leaves={"background": 0, "edema": 2}
        ),
        r"Expected 'labels' to declare 'background' as 0, but got \[0\]": region_json(
            labels={**REGIONS, "background": [0]}
        ),
        "Expected 'labels' to declare 'background' as 0, but got None": region_json(
            labels={name: REGIONS[name] for name in REGIONS if name != "background"}
        ),
        "region 'core' has no labels": region_json(labels={**REGIONS, "core": []}),
        r"region 'core': \[7\] is no value of label_sets.leaves": region_json(
            labels={**REGIONS, "core": [2, 7]}
        ),
        r"region 'core' holds background \(0\)": region_json(labels={**REGIONS, "core": [0, 2, 3]}),
        r"region 'core' lists a value twice: \[2, 2, 3\]": region_json(
            labels={**REGIONS, "core": [2, 2, 3]}
        ),
        "region 'whole_tumour' holds all of 'core' and is written over it, so that no segmentation shows 'core'": (
            region_json(
                labels={"background": 0, "core": [2, 3], "whole_tumour": [1, 2, 3], "x": [3]},
                order=[2, 1, 3],
            )
        ),
        "region 'core' holds all of 'whole_tumour'": region_json(
            labels={**REGIONS, "core": [1, 2, 3]}
        ),
        "label 'edema' is in no region": region_json(labels={**REGIONS, "whole_tumour": [2, 3]}),
        "'enhancing' is the name of a label and of another region": region_json(
            labels={**REGIONS, "enhancing": [2, 3]}
        ),
        "'regions_class_order' in dataset.json to list 3 values.*but got None": region_json(
            order=None
        ),
        "'regions_class_order' in dataset.json to list 3 values": region_json(order=[1, 2]),
        r"regions_class_order: 1 is no value of region 'core' \(2, 3\)": region_json(
            order=[1, 1, 3]
        ),
        "Expected 'ignore' to be 4, one more than the last label, but got 5": region_json(
            labels={**REGIONS, "ignore": 5}
        ),
        "no region has several labels": region_json(
            labels={"background": 0, "e": 1, "n": 2, "enhancing": [3]}, order=[1, 2, 3]
        ),
        "unknown label 'core'; 'core' is a region: protocols name its labels .necrosis, enhancing.": region_json(
            protocols={"p": {"ignore": ["core"]}}, cases={}
        ),
        "value 'whole_tumour': no such label; 'whole_tumour' is a region": region_json(
            protocols={"p": {"whole_tumour": ["edema"]}}, cases={}
        ),
    }

    @pytest.mark.parametrize("message", BAD)
    def test_fails_closed(self, message):
        with refusal(LabelSetError, *facts_of(message)):
            Contract.from_dataset_json(self.BAD[message])

    def test_one_mistake_is_told_once(self):
        """A region without leaves still has its place in the order."""
        problems = Contract.read(region_json(labels={**REGIONS, "core": []}))[1]
        assert problems == ["region 'core' has no labels: list their values, or remove it"]

    def test_a_case_of_which_nothing_is_known_annotates_no_region(self):
        nothing = {leaf: list(LEAVES) for leaf in LEAVES}
        contract = Contract.from_dataset_json(region_json(protocols={"full": {}, "outer": nothing}))
        assert set(contract.coverage(["b"]).values()) == {0}
        assert set(contract.coverage(["a"]).values()) == {1}

    def test_version_1_has_no_leaves(self):
        with refusal(LabelSetError, "dataset.json", "label_sets", "leaves"):
            Contract.from_dataset_json(block(leaves=LEAVES))


def test_unlisted_cases():
    contract = Contract.from_dataset_json(dataset_json())
    with refusal(LabelSetError, "'case_9'", "label_sets.cases", "did you mean 'case_"):
        contract.protocol("case_9")
    with refusal(LabelSetError, "'xyz'", "label_sets.cases", "dataset.json"):
        contract.annotated("xyz")
    contract.require_cases(["case_1", "case_2"])
    with refusal(LabelSetError, "7 case", "'n0', 'n1', 'n2', 'n3', 'n4', ...", "label_sets.cases"):
        contract.require_cases(["case_1", *(f"n{i}" for i in range(7))])


def test_did_you_mean():
    assert did_you_mean("brain_stem", ["cortex", "brainstem"]) == "; did you mean 'brainstem'?"
    assert did_you_mean("zzz", ["a", "b"]) == "; known: a, b"
    assert did_you_mean("zzz", []) == ""


def test_background_that_may_be_every_leaf_leaves_none_annotated():
    """With two leaves, 'the liver was not drawn' makes the whole set of background; nnU-Net's
    ignore says nothing.
    """
    protocols = {"no_liver": {"background": ["background", "liver"]}, "scribbles": {}}
    content = {
        "labels": {"background": 0, "liver": 1, "ignore": 2},
        "label_sets": {
            "version": 1,
            "protocols": protocols,
            "cases": {"a": "no_liver", "b": "scribbles"},
        },
    }
    contract = Contract.from_dataset_json(content)
    assert contract.coverage() == {"background": 1, "liver": 1}
    assert contract.annotated("a") == ()
    assert contract.is_fully_annotated("b")


@pytest.mark.parametrize("name", ["all", "All", "", " ", "liver\ud800"])
def test_names_that_no_table_or_screen_can_hold(name):
    with pytest.raises(LabelSetError) as raised:
        Contract.of_labels({"labels": {"background": 0, "spleen": 1, name: 2}})
    str(raised.value).encode()
