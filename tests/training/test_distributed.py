"""Two processes, as nnU-Net starts them for two GPUs, but with gloo on the CPU."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from nnunetv2.evaluation.evaluate_predictions import load_summary_json
from torch.multiprocessing import ProcessExitedException, spawn

from nnunet_labelset.trainers.variants import nnUNetTrainerLabelSet_short
from tests.helpers import ranks, tiny
from tests.helpers.tiny import enter

SCORES = ("dice_per_class_or_region", "mean_fg_dice", "val_losses")
REGIONS = "Dataset902_Regions"
TEACHER, LABEL_SET = "nnUNetTrainerLabelSetTeacher_short", "nnUNetTrainerLabelSet_short"
# the teacher is silent in the first of two epochs
TRAININGS = ((tiny.NAME, TEACHER), (REGIONS, LABEL_SET))
SPOILT = ranks.Run(tiny.NAME, LABEL_SET, spoil=True)  # rank 1 meets a value that nobody declared
SECONDS = 1800


def wait(context: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not context.join(timeout=1):
        assert time.monotonic() < deadline, "the ranks hang"


@pytest.fixture(scope="module")
def whole(
    prepared: tiny.NNUNet, prepared_regions: tiny.NNUNet, tmp_path_factory: Any
) -> tiny.NNUNet:
    """Two epochs over two ranks, then the second one anew with `--c`, as after a kill; in the end
    one that fails.
    """
    nnunet = tiny.NNUNet(tmp_path_factory.mktemp("ranks"))
    shutil.copytree(prepared.preprocessed / tiny.NAME, nnunet.preprocessed / tiny.NAME)
    folder = nnunet.preprocessed / REGIONS
    shutil.copytree(prepared_regions.preprocessed / tiny.NAME, folder)
    plans = json.loads((folder / "nnUNetPlans.json").read_text())
    (folder / "nnUNetPlans.json").write_text(json.dumps({**plans, "dataset_name": REGIONS}))
    runs = [ranks.Run(*training, resume) for training in TRAININGS for resume in (False, True)]
    runs[-2] = runs[-2]._replace(validate=True)
    with pytest.MonkeyPatch.context() as patch:
        enter(nnunet, patch, nnunet.results)
        patch.setenv("nnunet_labelset_epochs", "2")
        context = spawn(ranks.train, (str(nnunet.root), [*runs, SPOILT]), nprocs=2, join=False)
    with pytest.raises(ProcessExitedException):
        wait(context)
    for run in runs:
        assert (nnunet.root / run.record(1)).is_file(), (nnunet.root / "stderr_1").read_text()[
            -3000:
        ]
    return nnunet


def test_the_message_of_a_rank_that_fails_is_seen(whole: tiny.NNUNet) -> None:
    """The other one waits for it in the middle of a step."""
    messages = [(whole.root / f"stderr_{rank}").read_text() for rank in (0, 1)]
    assert "nnunet_labelset: error (rank 1)" in messages[1]
    assert "77" in messages[1]
    assert "nnunet_labelset: error" not in messages[0]
    assert not (whole.root / SPOILT.record(0)).exists()


def records(
    nnunet: tiny.NNUNet, dataset: str, trainer: str, resume: bool = False
) -> list[dict[str, Any]]:
    run = ranks.Run(dataset, trainer, resume)
    return [torch.load(nnunet.root / run.record(rank), weights_only=False) for rank in (0, 1)]


def same(one: Any, other: Any) -> bool:
    """Bit for bit, NaN included."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other or np.array_equal(
        np.asarray(one), np.asarray(other), equal_nan=one is not None
    )


@pytest.mark.parametrize(("dataset", "trainer"), TRAININGS)
def test_the_ranks_agree_and_see_different_batches(
    whole: tiny.NNUNet, dataset: str, trainer: str
) -> None:
    first, second = records(whole, dataset, trainer)
    assert len(first["weights"]) == 3
    assert not same(first["weights"][0], first["weights"][1])
    for key in ("weights", "running", "scores", "teacher"):
        assert same(first[key], second[key]), key
    assert bool(first["running"][-1]) == (dataset == tiny.NAME)
    assert (first["teacher"] is not None) == ("Teacher" in trainer)
    for step in ("train_step", "validation_step"):
        assert len(first[step]) == len(second[step]) > 0
        for (_, one), (_, other) in zip(first[step], second[step], strict=True):
            assert len(one["data"]) == len(other["data"]) == 1  # half of the batch of the plans
            assert not torch.equal(one["data"], other["data"])


@pytest.mark.parametrize(("dataset", "trainer"), TRAININGS)
def test_a_training_that_goes_on_ends_as_if_it_had_not_stopped(
    whole: tiny.NNUNet, dataset: str, trainer: str
) -> None:
    straight, resumed = records(whole, dataset, trainer), records(whole, dataset, trainer, True)
    for one, other in zip(straight, resumed, strict=True):
        assert (one["epochs"], other["epochs"]) == ([0, 1], [1])
        assert same(one["weights"][1:], other["weights"])
        assert same(one["running"][1:], other["running"])
        assert same(one["teacher"], other["teacher"])
        assert same(one["scores"], other["scores"])


def joined(batches: Sequence[dict]) -> dict:
    """The batches of all ranks as one."""
    scales = zip(*(batch["target"] for batch in batches), strict=True)
    return {
        "data": torch.cat([batch["data"] for batch in batches]),
        "target": [torch.cat(scale) for scale in scales],
        "keys": np.concatenate([batch["keys"] for batch in batches]),
    }


@pytest.mark.parametrize(("dataset", "trainer"), TRAININGS)
def test_one_process_with_the_same_batches(
    whole: tiny.NNUNet,
    dataset: str,
    trainer: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Learns the same, remembers the same, and has the same pseudo-Dice.

    In the first epoch cross entropy has no gradient. Its value is part of the loss, and differs: a
    rank averages over its own voxels, as nnU-Net does.
    """
    monkeypatch.setenv("nnunet_labelset_epochs", "2")
    pair = records(whole, dataset, trainer)
    nnunet = request.getfixturevalue("regions_in_process" if dataset == REGIONS else "in_process")
    alone = tiny.make(nnunet, nnUNetTrainerLabelSet_short)
    alone.initialize()
    alone.network.load_state_dict(pair[0]["weights"][0])
    steps = {
        name: [
            (epoch, joined([one, other]))
            for (epoch, one), (_, other) in zip(*(r[name] for r in pair), strict=True)
        ]
        for name in ("train_step", "validation_step")
    }
    for epoch in (0, 1):
        alone.current_epoch = epoch
        alone.on_train_epoch_start()
        if epoch == 0:
            for at, batch in steps["train_step"]:
                if at == epoch:
                    alone.train_step(batch)
            # what the network says, since AdamW makes steps out of rounding where a weight has no
            # gradient
            data = steps["train_step"][0][1]["data"]
            trained = alone.network(data)[0]
            alone.network.load_state_dict(pair[0]["weights"][1])
            torch.testing.assert_close(trained, alone.network(data)[0], rtol=1e-3, atol=1e-3)
            for scale, state in getattr(alone.loss.loss, "running", {}).items():
                torch.testing.assert_close(
                    state, pair[0]["running"][0][scale], rtol=1e-4, atol=1e-4
                )
        alone.network.load_state_dict(pair[0]["weights"][epoch + 1])
        with torch.no_grad():
            alone.on_validation_epoch_start()
            alone.on_validation_epoch_end(
                [alone.validation_step(b) for at, b in steps["validation_step"] if at == epoch]
            )
    dice, mean, _ = (alone.logger.get_value(key, step=None) for key in SCORES)
    np.testing.assert_allclose(dice, pair[0]["scores"][0], rtol=1e-6)
    np.testing.assert_allclose(mean, pair[0]["scores"][1], rtol=1e-6)


def test_the_final_validation_is_shared(whole: tiny.NNUNet) -> None:
    """Every rank predicts some of the cases; one of them writes the summary, by region."""
    model = whole.results / REGIONS / f"{LABEL_SET}__nnUNetPlans__3d_fullres"
    summary = load_summary_json(str(model / "fold_0" / "validation" / "summary.json"))
    assert list(summary["mean"]) == [(1, 2, 3), (2, 3), 3]
    assert len(summary["metric_per_case"]) == 2
