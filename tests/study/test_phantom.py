"""The phantom: anatomy that holds for every seed, and the demo data in its layouts."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from scipy.ndimage import binary_dilation, label

from nnunet_labelset import LabelSetError
from nnunet_labelset.study.phantom import data as phantom_data
from nnunet_labelset.study.phantom.data import FETA_VALUES, demo_cases, write_demo_data
from nnunet_labelset.study.phantom.shapes import capsule, smooth_noise
from nnunet_labelset.study.phantom.volume import (
    BRAINSTEM,
    CALLOSUM,
    CEREBELLUM,
    CORTEX,
    CSF,
    DEEP,
    LEAVES,
    SPACING,
    VENTRICLES,
    WM,
    make_volume,
)

SPECIMENS = [
    (21, 0, False, 0),
    (26, 1, False, 1),
    (34, 2, False, 2),
    (22, 3, True, 0),
    (28, 4, True, 1),
    (34, 5, True, 2),
]


@pytest.fixture(scope="module")
def volumes():
    return {specimen: make_volume(*specimen) for specimen in SPECIMENS}


def share(labels):
    """Fraction of the brain of each leaf."""
    counts = np.bincount(labels.ravel(), minlength=len(LEAVES))
    return counts / counts[1:].sum()


def middle(labels, leaf):
    """Mean position (z, y, x) of a leaf."""
    return np.argwhere(labels == leaf).mean(0)


class TestAnatomy:
    @pytest.mark.parametrize("specimen", SPECIMENS)
    def test_every_tissue_is_there_in_its_place(self, volumes, specimen):
        image, labels, mask = volumes[specimen]
        assert image.dtype == np.float32
        assert image.shape == labels.shape == mask.shape == (48, 56, 48)
        assert np.isfinite(image).all()
        assert image.min() == 0
        counts = np.bincount(labels.ravel(), minlength=len(LEAVES))
        assert counts[1:].min() >= 60, dict(zip(LEAVES, counts, strict=True))
        assert np.array_equal(labels > 0, mask > 0)  # the brain is what is labelled
        assert label(mask)[1] == 1
        edge = np.ones(mask.shape, bool)
        edge[1:-1, 1:-1, 1:-1] = False
        assert not mask[edge].any(), "the brain leaves the grid"
        z = {leaf: middle(labels, leaf)[0] for leaf in range(1, len(LEAVES))}
        assert z[CALLOSUM] > z[VENTRICLES] > z[DEEP] > z[BRAINSTEM] > z[CEREBELLUM] - 3
        assert (
            middle(labels, CEREBELLUM)[1]
            < middle(labels, BRAINSTEM)[1]
            < middle(labels, CALLOSUM)[1]
        )
        for leaf in range(1, len(LEAVES)):
            assert abs(middle(labels, leaf)[2] - middle(labels, WM)[2]) < 3, (
                f"{LEAVES[leaf]} is not in the middle"
            )

    @pytest.mark.parametrize("specimen", SPECIMENS)
    def test_cortex_lies_between_white_matter_and_csf(self, volumes, specimen):
        labels = volumes[specimen][1]
        inside, outside = (
            binary_dilation(np.isin(labels, leaves), iterations=3) for leaves in ([WM], [CSF, 0])
        )
        assert (inside & outside)[labels == CORTEX].mean() > 0.9

    @pytest.mark.parametrize("centre", range(6))
    def test_contrast_of_t2(self, centre):
        """Fluid is bright, cortex and deep gray matter are darker than white matter, whatever the
        centre.
        """
        image, labels, _ = make_volume(35, centre, centre=centre)
        mean = [np.median(image[labels == leaf]) for leaf in range(len(LEAVES))]
        assert mean[VENTRICLES] > mean[WM] > mean[DEEP]
        assert mean[WM] > mean[CORTEX] > mean[0]

    def test_growth_and_folding(self):
        young, old = make_volume(22, 7)[1], make_volume(34, 7)[1]
        assert 1.6 < (old > 0).sum() / (young > 0).sum() < 4
        assert share(old)[CORTEX] > share(young)[CORTEX]

    @pytest.mark.parametrize("age", [23, 30])
    def test_spina_bifida(self, age):
        normal, sick = (
            np.mean([share(make_volume(age, seed, ill)[1]) for seed in range(2)], 0)
            for ill in (False, True)
        )
        assert sick[VENTRICLES] > 2.5 * normal[VENTRICLES]
        assert sick[CEREBELLUM] < 0.7 * normal[CEREBELLUM]
        assert sick[CSF] < 0.6 * normal[CSF]

    def test_seeds_and_centres(self):
        image, labels, _ = make_volume(28, 11)
        again = make_volume(28, 11)
        assert np.array_equal(image, again[0])
        assert np.array_equal(labels, again[1])
        assert (make_volume(28, 12)[1] != labels).mean() > 0.02
        other_image, other_labels, _ = make_volume(28, 11, centre=1)
        assert np.array_equal(other_labels, labels)
        ratios = [
            other_image[labels == leaf].mean() / image[labels == leaf].mean()
            for leaf in range(1, len(LEAVES))
        ]
        assert np.ptp(ratios) / np.mean(ratios) > 0.03  # another contrast, not only another scale

    def test_other_grid(self):
        """Half the resolution shows the same brain."""
        coarse, fine = (
            make_volume(30, 3, shape=(24, 28, 24), spacing=2 * SPACING)[1],
            make_volume(30, 3)[1],
        )
        assert coarse.shape == (24, 28, 24)
        assert (coarse > 0).sum() * 8 == pytest.approx((fine > 0).sum(), rel=0.15)


def test_smooth_noise_is_smooth_and_of_unit_size():
    noise = smooth_noise(np.random.default_rng(0), (40, 50, 60), 6.0)
    assert noise.shape == (40, 50, 60)
    assert noise.std() == pytest.approx(1, abs=0.35)
    assert np.abs(np.diff(noise, axis=1)).max() < 1


def test_capsule_by_hand():
    x = np.arange(-4, 8, dtype=np.float32)
    inside = capsule((x, 0 * x, 0 * x), (0, 0, 0), (4, 0, 0), 1.5, 2.5)
    assert x[inside].tolist() == [-1, 0, 1, 2, 3, 4, 5, 6]


class TestDemoData:
    @pytest.fixture
    def few(self, monkeypatch):
        """As few cases as show every rule."""
        numbers = {
            "atlas": 1,
            "controls": 2,
            "csf": 1,
            "callosum": 1,
            "spina_bifida": 1,
            "test": 1,
            "feta": 1,
        }
        monkeypatch.setitem(phantom_data.SIZES, "small", numbers)

    def read(self, path):
        return sitk.GetArrayFromImage(sitk.ReadImage(str(path)))

    @pytest.mark.parametrize("size", ["small", "full"])
    def test_pattern_of_the_paper(self, size):
        cases = demo_cases(size)
        assert len({case.name for case in cases}) == len(cases)
        complete = [case for case in cases if case.folder == "atlas"]
        assert not any(case.spina_bifida for case in complete)
        assert all(set(case.annotated) == set(LEAVES[1:]) for case in complete)
        controls = [case for case in cases if case.folder == "controls"]
        assert (
            sum("external_csf" in case.annotated for case in controls)
            == phantom_data.SIZES[size]["csf"]
        )
        assert (
            sum("corpus_callosum" in case.annotated for case in controls)
            == phantom_data.SIZES[size]["callosum"]
        )
        assert all(len(case.annotated) == 3 for case in cases if case.folder == "spina_bifida")
        for folder in ("test", "feta"):
            assert {case.spina_bifida for case in cases if case.folder == folder} == {False, True}

    def test_written(self, few, tmp_path):
        description = write_demo_data(tmp_path / "data")
        assert json.loads((tmp_path / "data" / "demo_data.json").read_text()) == description
        assert [source["source"] for source in description["sources"]] == [
            "atlas",
            "leuven_controls",
            "leuven_spina_bifida",
            "case_folders",
            "feta",
        ]
        rows = (tmp_path / "data" / "annotated.csv").read_text().splitlines()
        assert rows[0] == "case,source,annotated"
        for row in rows[1:]:
            name, _, leaves = row.split(",")
            present = set(
                np.unique(self.read(tmp_path / "data" / "controls" / name / "parcellation.nii.gz"))
            ) - {0}
            assert {LEAVES[value] for value in present} == set(leaves.split(";"))
        case = tmp_path / "data" / "spina_bifida" / "spina_bifida_001"
        parcellation, mask = (
            self.read(case / "parcellation.nii.gz"),
            self.read(case / "mask.nii.gz"),
        )
        assert set(np.unique(parcellation)) == {0, WM, VENTRICLES, CEREBELLUM}
        assert (mask[parcellation == 0] == 1).sum() > 500  # the unannotated part of the brain
        anat = tmp_path / "data" / "feta" / "sub-001" / "anat"
        assert sorted(path.name for path in anat.iterdir()) == [
            "sub-001_rec-mial_T2w.nii.gz",
            "sub-001_rec-mial_dseg.nii.gz",
        ]
        values = self.read(anat / "sub-001_rec-mial_dseg.nii.gz")
        assert values.dtype == np.float32
        assert set(np.unique(values)) == set(range(8))
        people = (tmp_path / "data" / "participants.tsv").read_text().splitlines()
        assert len(people) == 1 + sum(map(len, description["cases"].values()))
        assert not list(tmp_path.rglob(".*"))

    def test_again_and_other_data(self, few, tmp_path):
        """The same is left alone, an interrupted run is finished, other data is not touched."""
        write_demo_data(tmp_path, seed=3)
        files = {path: path.read_bytes() for path in tmp_path.rglob("*.nii.gz")}
        victim = tmp_path / "atlas" / "atlas_001" / "srr.nii.gz"
        victim.unlink()
        write_demo_data(tmp_path, seed=3)
        assert not victim.exists()
        unfinished = {**json.loads((tmp_path / "demo_data.json").read_text()), "complete": False}
        (tmp_path / "demo_data.json").write_text(json.dumps(unfinished))
        assert write_demo_data(tmp_path, seed=3)["complete"]
        assert np.array_equal(self.read(victim), make_volume(*self.atlas(), seed=3000)[0])
        assert {
            path: path.read_bytes() for path in tmp_path.rglob("*.nii.gz")
        }.keys() == files.keys()
        with pytest.raises(LabelSetError, match=re.escape(str(tmp_path))):
            write_demo_data(tmp_path, seed=4)
        (tmp_path / "demo_data.json").unlink()
        with pytest.raises(LabelSetError, match=re.escape(str(tmp_path))):
            write_demo_data(tmp_path, seed=3)
        with pytest.raises(LabelSetError, match="huge"):
            write_demo_data(tmp_path, size="huge")

    def atlas(self):
        return (demo_cases("small")[0].age,)

    def test_feta_values(self):
        """FeTA: 1 external CSF, 2 cortex, 3 white matter (with corpus callosum), 4 ventricles, 5
        cerebellum, 6, 7.
        """
        order = [CSF, CORTEX, WM, VENTRICLES, CEREBELLUM, DEEP, BRAINSTEM]
        assert FETA_VALUES[order].tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert FETA_VALUES[CALLOSUM] == 3
