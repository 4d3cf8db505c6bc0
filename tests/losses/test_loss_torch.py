"""The losses as PyTorch citizens: compile, autocast, pickle, state, memory, the custom
operators.
"""

from __future__ import annotations

import copy
import functools
import pickle
import warnings

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from nnunet_labelset import losses
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses.engine import chunks
from nnunet_labelset.losses.label_sets import LabelSets
from tests.helpers.errors import refusal
from tests.helpers.problems import ALL, OVERLAPPING, SUMS, make_problem, with_gradient


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    """In one graph, forward and backward. Inductor needs a C++ compiler, which not every machine
    has.
    """
    problem = make_problem(*OVERLAPPING, shape=(4, 4, 4))
    chosen = [losses.LeafDiceCELoss]
    if backend == "aot_eager":  # quick
        chosen = [
            losses.LeafDiceLoss,
            losses.MarginalDiceFocalLoss,
            losses.MarginalCrossEntropyLoss,
        ]
    for loss in chosen:
        torch._dynamo.reset()
        module = loss(problem.label_sets)
        expected = with_gradient(module, problem.logits.float(), problem.target)
        try:
            compiled = with_gradient(
                torch.compile(module, backend=backend, fullgraph=True),
                problem.logits.float(),
                problem.target,
            )
        except torch._inductor.exc.InductorError as error:
            if "compiler" not in str(error).lower():
                raise
            pytest.skip("no C++ compiler for inductor")
        torch.testing.assert_close(compiled, expected)


@pytest.mark.parametrize("loss", ALL)
def test_autocast_sums_in_float32(loss):
    problem = make_problem(*OVERLAPPING, shape=(20, 20))
    module = loss(problem.label_sets)
    logits = problem.logits.detach().bfloat16()
    expected = with_gradient(module, logits, problem.target)
    with torch.autocast("cpu", torch.bfloat16):
        value = with_gradient(module, logits, problem.target)
    assert value[0].dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=0, atol=0)


@pytest.mark.parametrize("loss", ALL)
def test_pickle_copy_state_and_repr(loss):
    problem = make_problem(*OVERLAPPING)
    module = loss(problem.label_sets)
    value = module(problem.logits, problem.target)
    for twin in (
        pickle.loads(pickle.dumps(module)),
        copy.deepcopy(module),
        module.to(torch.float64),
        module.half(),
    ):
        assert torch.equal(twin(problem.logits, problem.target), value)
    assert not module.state_dict()
    assert not list(module.parameters())
    assert "leaves=4, label_sets=8" in repr(module)


def test_options_are_keywords_and_defaults():
    label_sets = make_problem(*OVERLAPPING).label_sets
    module = losses.LeafDiceFocalLoss(
        label_sets,
        1,
        3.0,
        batch_dice=True,
        include_background=False,
        ddp=False,
        weight_dice=2.0,
        weight_ce=0.5,
    )
    for expected in (
        "alpha=1",
        "gamma=3.0",
        "batch_dice=True",
        "include_background=False",
        "weight_ce=0.5",
    ):
        assert expected in repr(module)
    assert losses.LeafDiceLoss(label_sets).alpha == 2


def test_membership_of_a_module_does_not_follow_the_label_sets():
    problem = make_problem(*OVERLAPPING)
    module = losses.LeafDiceLoss(problem.label_sets)
    value = module(problem.logits, problem.target)
    problem.label_sets.membership.fill_(True)
    assert torch.equal(module(problem.logits, problem.target), value)


def test_works_on_the_device_of_its_input_and_stays_where_it_is():
    """The meta device computes nothing but is a device; the target is out of reach of any check on
    the host.
    """
    problem = make_problem(*OVERLAPPING)
    module = losses.LeafDiceCELoss(problem.label_sets)
    before = module(problem.logits, problem.target)
    value = module(problem.logits.to("meta"), problem.target.to("meta"))
    assert value.device.type == "meta"
    assert module.membership.device.type == "cpu"
    assert torch.equal(module(problem.logits, problem.target), before)


@pytest.mark.parametrize("loss", ALL)
def test_other_kinds_of_differentiation_are_right_or_refused(loss):
    problem = make_problem(*OVERLAPPING)

    def value(x):
        return loss(problem.label_sets)(x, problem.target)

    expected = torch.autograd.grad(value(problem.logits), problem.logits)[0]
    torch.testing.assert_close(torch.func.grad(value)(problem.logits.detach()), expected)
    with pytest.raises(NotImplementedError, match="forward mode AD"):
        torch.func.jvp(value, (problem.logits.detach(),), (torch.ones_like(problem.logits),))
    gradient = torch.autograd.grad(value(problem.logits), problem.logits, create_graph=True)[0]
    with refusal(NotImplementedError, "once"):
        torch.autograd.grad(gradient.sum() + problem.logits.sum(), problem.logits)


@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("gamma", [None, 0.0, 2.0])
def test_dice_function_of_a_user(alpha, gamma):
    """Nothing is known of a function but its tables: a wrapper, a partial and a new one get what
    they weigh.
    """
    problem = make_problem(*OVERLAPPING)

    def wrapped(membership, alpha):
        return losses.leaf_dice(membership, alpha)

    def doubled(membership, alpha):
        tables = losses.leaf_dice(membership, alpha)
        return losses.DiceTables(2 * tables.intersection, tables.reference, tables.prediction)

    def loss(dice):
        module = losses.LeafDiceCELoss(problem.label_sets, alpha)
        module.dice, module.gamma = dice, gamma
        value = module(problem.logits, problem.target)
        return value, torch.autograd.grad(value, problem.logits)[0]

    expected = loss(losses.leaf_dice)
    for dice in (wrapped, functools.partial(losses.leaf_dice)):
        assert torch.equal(loss(dice)[0], expected[0])
        assert torch.equal(loss(dice)[1], expected[1])
    entropy = loss(losses.leaf_dice)[0] - losses.LeafDiceLoss(problem.label_sets, alpha)(
        problem.logits, problem.target
    )
    dice = 1 - (expected[0] - entropy)
    torch.testing.assert_close(loss(doubled)[0], 1 - 2 * dice + entropy)


class Half(torch.nn.Module):
    def forward(self, membership, alpha):
        tables = losses.leaf_dice(membership, alpha)
        return tables._replace(prediction=tables.prediction / 2)


def test_dice_function_of_a_user_wherever_it_stands():
    """A function, a module, or assigned later."""
    problem = make_problem(*OVERLAPPING)
    assigned = losses.LeafDiceLoss(problem.label_sets)
    assigned.dice = Half().__call__
    halves = [
        assigned,
        losses.LabelSetLoss(problem.label_sets, Half()),
        losses.LabelSetLoss(problem.label_sets, lambda *arguments: Half()(*arguments)),
    ]
    plain = losses.LeafDiceLoss(problem.label_sets)(problem.logits, problem.target)
    values = {loss(problem.logits, problem.target).item() for loss in halves}
    assert len(values) == 1
    assert max(values) < plain


@pytest.mark.parametrize("loss", ALL)
def test_inference_mode(loss, monkeypatch):
    """On several threads too, each of which has a mode of its own."""
    monkeypatch.setattr(chunks, "CHUNK", 256)
    problem = make_problem(*OVERLAPPING)
    module, threads = loss(problem.label_sets), torch.get_num_threads()
    expected = module(problem.logits, problem.target)
    torch.set_num_threads(2)
    try:
        with torch.inference_mode():
            assert torch.equal(module(problem.logits, problem.target), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda tables: None, ["`dice`", "DiceTables", "NoneType"]),
        (
            lambda tables: tables._replace(reference=torch.ones(99, 4)),
            ["`reference`", "`dice`", "(99, 4)"],
        ),
        (
            lambda tables: tables._replace(intersection=tables.intersection * torch.nan),
            ["`intersection`", "NaN"],
        ),
        (
            lambda tables: tables._replace(prediction=tables.prediction.requires_grad_()),
            ["`prediction`", "gradient"],
        ),
    ],
)
def test_wrong_tables_of_a_user(change, facts):
    problem = make_problem(*OVERLAPPING)
    loss = losses.LeafDiceLoss(problem.label_sets)
    loss.dice = lambda membership, alpha: change(losses.leaf_dice(membership, alpha))
    with refusal(LabelSetError, *facts):
        loss(problem.logits, problem.target)


def test_a_loss_of_nothing():
    problem = make_problem(*OVERLAPPING)
    with refusal(LabelSetError, "`dice`", "`gamma`"):
        losses.LabelSetLoss(problem.label_sets)(problem.logits, problem.target)


@pytest.mark.parametrize("batch_dice", [False, True])
def test_dice_of_other_terms(batch_dice):
    """The hook between sums and division: here, as if the batch had been seen twice with other
    logits.
    """
    problem = make_problem(*OVERLAPPING)
    other = torch.randn_like(problem.logits)

    class Twice(losses.LeafDiceCELoss):
        def dice_of(self, terms):
            assert terms.prediction.shape == ((1 if batch_dice else 2), 4)
            if not hasattr(self, "kept"):
                self.kept = [term.detach() for term in terms]
                return terms.dice()
            both = [term + kept for term, kept in zip(terms, self.kept, strict=True)]
            return losses.DiceTerms(*both).dice()

    module = Twice(problem.label_sets, batch_dice=batch_dice, weight_ce=0.0)
    module(other, problem.target)
    value = module(problem.logits, problem.target)
    both, target = torch.cat([problem.logits, other], 2), torch.cat([problem.target] * 2, 2)
    expected = losses.LeafDiceLoss(problem.label_sets, batch_dice=batch_dice)(both, target)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(
        torch.autograd.grad(value, problem.logits)[0],
        torch.autograd.grad(expected, problem.logits)[0],
    )


@pytest.mark.parametrize("shape", [(0, 4, 5, 5), (2, 4, 0, 5)])
@pytest.mark.parametrize("loss", ALL)
def test_empty_batch_is_one_clear_error(loss, shape):
    label_sets = make_problem(*OVERLAPPING).label_sets
    with refusal(LabelSetError, "`logits`", shape):
        loss(label_sets)(
            torch.zeros(shape), torch.zeros((shape[0], 1, *shape[2:]), dtype=torch.int64)
        )


@pytest.mark.parametrize("loss", ALL)
def test_messages_that_a_device_asserts_are_short(loss, monkeypatch):
    """CUDA refuses 255 bytes and more, whether or not anything is wrong."""
    seen = []
    monkeypatch.setattr(torch, "_assert_async", lambda condition, message: seen.append(message))
    names = [f"a_case_with_a_long_name_and_ümlauts_{number:03d}" for number in range(49)]
    dataset_json = {
        "labels": {"background": 0, "a": 1, "b": 2, "c": 3, "ignore": 4},
        "label_sets": {
            "version": 1,
            "protocols": {"full": {}},
            "cases": dict.fromkeys(names, "full"),
        },
    }
    label_sets = LabelSets.from_dataset_json(dataset_json)
    values = torch.zeros(49, 1, 2, device="meta")
    loss(label_sets)(torch.zeros(49, 4, 2, device="meta"), label_sets.encode(values, names))
    assert len(seen) >= 3  # whole numbers and range of the values, range of the set indices
    assert all(0 < len(message.encode()) < 255 for message in seen)


@pytest.mark.parametrize("layout", [torch.channels_last_3d, torch.contiguous_format])
def test_memory_layout_of_the_logits(layout):
    problem = make_problem(*OVERLAPPING, shape=(3, 4, 5))
    module = losses.MarginalDiceCELoss(problem.label_sets)
    expected = with_gradient(module, problem.logits, problem.target)
    value = with_gradient(module, problem.logits.detach().to(memory_format=layout), problem.target)
    torch.testing.assert_close(value, expected)
    swapped = with_gradient(
        module, problem.logits.detach().transpose(2, 3), problem.target.transpose(2, 3)
    )
    torch.testing.assert_close(swapped[0], expected[0])
    torch.testing.assert_close(swapped[1].transpose(2, 3), expected[1])


def peak_memory(run) -> int:
    """Peak of what PyTorch allocates on the CPU during `run`, in bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("loss", [losses.LeafDiceLoss, *SUMS.values()])
def test_memory_does_not_grow_with_the_number_of_label_sets(loss, monkeypatch):
    monkeypatch.setattr(
        chunks, "CHUNK", 2**13
    )  # as small beside the logits as it is for a real patch
    logits = torch.randn(2, 8, 32, 32, 32, requires_grad=True)
    peaks = []
    for number in (1, 50):
        supersets = [[leaf for leaf in range(8) if bits >> leaf & 1] for bits in range(256)]
        supersets = [labels for labels in supersets if len(labels) > 1][:number]
        label_sets = LabelSets.from_superset_map(8, dict(enumerate(supersets, 8)))
        target = torch.randint(label_sets.num_sets, (2, 1, 32, 32, 32))
        module = loss(label_sets)

        def run(module=module, target=target):
            torch.autograd.grad(module(logits, target), logits)

        run()
        peaks.append(peak_memory(run))
    size = logits.nbytes
    assert size <= peaks[0] <= 2.3 * size
    assert peaks[1] <= peaks[0] + 0.1 * size


BAD_CALLS = {
    ("`logits`", "(B, 4, *S)", "(2, 3, 5, 5)"): lambda x, t: (x[:, :3], t),
    ("`logits`", "torch.int64"): lambda x, t: (x.long(), t),
    ("`target`", "(2, 1, 5, 5)", "(2, 5, 5)"): lambda x, t: (x, t[:, 0]),
    ("`target`", "(2, 1, 5, 5)", "(2, 1, 5, 4)"): lambda x, t: (x, t[..., 1:]),
    ("`target`", "integers", "fractions"): lambda x, t: (x, t + 0.5),
    ("`target`", "integers", "NaN"): lambda x, t: (x, t * torch.nan),
    ("`target`", "integers", "torch.bool"): lambda x, t: (x, t > 0),
    ("`target`", "0..7", "LabelSets.encode"): lambda x, t: (x, t + 1),
    ("`target`", "0..7"): lambda x, t: (x, t - 1),
    ("`target`", "cpu", "meta"): lambda x, t: (x, t.to("meta")),
}


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("facts", BAD_CALLS, ids=" ".join)
def test_bad_call(loss, facts):
    problem = make_problem(*OVERLAPPING, shape=(5, 5))
    target = problem.target.clone()
    target[0, 0, 0, 0], target[0, 0, 0, 1] = 0, 7
    with refusal(LabelSetError, *facts):
        loss(problem.label_sets)(*BAD_CALLS[facts](problem.logits.detach().float(), target))


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("bad", [-1, -3, 8, 9, 300])
def test_one_bad_voxel_of_many(loss, bad):
    """In a volume of several blocks, where neighbours are summed in lanes."""
    problem = make_problem(*OVERLAPPING, shape=(10000,))
    problem.target[1, 0, 5001] = bad
    with refusal(LabelSetError, "`target`", "0..7"):
        loss(problem.label_sets)(problem.logits, problem.target)


def test_bad_options():
    label_sets = make_problem(*OVERLAPPING).label_sets
    with refusal(LabelSetError, "`alpha`", "3"):
        losses.LeafDiceLoss(label_sets, alpha=3)
    with refusal(LabelSetError, "`gamma`", "-1"):
        losses.MarginalFocalLoss(label_sets, gamma=-1)
    with refusal(LabelSetError, "`gamma`", "nan"):
        losses.LeafDiceFocalLoss(label_sets, gamma=float("nan"))
    with refusal(LabelSetError, "`label_sets`", "LabelSets", "dict"):
        losses.LeafDiceLoss({4: [0, 1]})


def test_bad_input_of_the_conversion():
    problem = make_problem(*OVERLAPPING)
    p = problem.logits.detach().softmax(1)
    for bad in (-1, 8):
        with refusal(LabelSetError, "`target`", "0..7"):
            losses.soft_target(torch.full_like(problem.target, bad), problem.label_sets)
    with refusal(LabelSetError, "`probabilities`", "(2, 4, 3, 4)", "(2, 3, 3, 4)"):
        losses.marginalize(p[:, :3], problem.target, problem.label_sets)
    with refusal(LabelSetError, "`target`", "(B, 1, *S)", "(2, 3, 4)"):
        losses.marginalize(p, problem.target[:, 0], problem.label_sets)
    with refusal(LabelSetError, "`label_sets`"):
        losses.to_label_set_loss(torch.nn.functional.mse_loss)(p, problem.target)


def test_targets_of_floats_and_small_integers():
    problem = make_problem(*OVERLAPPING)
    module = losses.LeafDiceCELoss(problem.label_sets)
    expected = module(problem.logits, problem.target)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.float32, torch.float64):
        assert torch.equal(module(problem.logits, problem.target.to(dtype)), expected)


def test_tensors_of_monai_are_taken() -> None:
    """Its loaders give tensors of a class of their own, which lacks some methods of PyTorch's."""
    from monai.data import MetaTensor

    problem = make_problem(*OVERLAPPING)
    loss = losses.LeafDiceCELoss(problem.label_sets)
    logits = problem.logits.detach().clone().requires_grad_()
    value = loss(MetaTensor(logits), MetaTensor(problem.target))
    value.backward()
    plain = problem.logits.detach().clone().requires_grad_()
    expected = loss(plain, problem.target)
    expected.backward()
    torch.testing.assert_close(value.as_subclass(torch.Tensor), expected)
    torch.testing.assert_close(logits.grad, plain.grad)
