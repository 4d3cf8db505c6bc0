"""What `annotate` tells beside the table: doubts about a declaration, and what it changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.datasets.annotate.declaration import Declarations
from nnunet_labelset.datasets.annotate.labelled import LabelledDataset, Values
from nnunet_labelset.datasets.slips import file_checksums, find_slips
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.text import listed, some


def remarks(
    data: LabelledDataset, contract: Contract, declarations: Declarations, values: Values
) -> Iterator[str]:
    """Yield doubts about a declaration that the voxels do not contradict."""
    yield from _partly_missing_regions(data, declarations)
    yield from _merged_but_separate(data, declarations, values)
    yield from _absent_labels(data, contract, values)
    images = {case.name: case.images[0] for case in data.cases if case.images}
    yield from find_slips(contract, data.training, values, file_checksums(images))
    yield from _undeclared(data, contract)


def _partly_missing_regions(data: LabelledDataset, declarations: Declarations) -> Iterator[str]:
    for region, members in (data.labels.regions or {}).items():
        partly = []
        for case, declaration in declarations.items():
            if members & declaration.missing and members - declaration.missing:
                partly.append(case)
        if partly:
            yield (
                f"in {len(partly)} case(s) ({some(partly, 3)}) only a part of '{region}' is "
                f"missing: what was drawn of it counts as it is; was one outline drawn around "
                f"'{region}'? Then --merged instead of --missing"
            )


def _merged_but_separate(
    data: LabelledDataset, declarations: Declarations, values: Values
) -> Iterator[str]:
    separate = defaultdict(list)
    for case, declaration in declarations.items():
        for group in declaration.merged:
            if len(group & set(values[case])) > 1:
                separate[group].append(case)
    for group, cases in separate.items():
        present = sorted(group & set(values[cases[0]]))
        names = " and ".join(f"'{data.labels.leaf_names[leaf]}'" for leaf in present)
        yield (
            f"{len(cases)} case(s) ({some(cases, 3)}) have voxels of {names}: were they drawn as "
            f"one? They are no longer told apart there"
        )


def _absent_labels(data: LabelledDataset, contract: Contract, values: Values) -> Iterator[str]:
    for leaf, name in enumerate(data.labels.leaf_names[1:], start=1):
        drawn = []
        for case in data.training:
            if case in contract.cases and leaf in contract.protocol(case).annotated:
                drawn.append(case)
        absent = [case for case in drawn if leaf not in values[case]]
        if 0 < len(absent) < len(drawn):
            yield (
                f"'{name}' has no voxel in {len(absent)} of the {len(drawn)} training cases that "
                f"annotate it ({some(absent, 3)}): fine if there is none in these images; if it "
                f"was not drawn, declare it missing"
            )


def _undeclared(data: LabelledDataset, contract: Contract) -> Iterator[str]:
    for kind, names in (("training", data.training), ("test", data.test)):
        undeclared = [name for name in names if name not in contract.cases]
        if undeclared:
            hint = "" if kind == "training" else " (--test makes --in match test cases)"
            yield (
                f"{len(undeclared)} {kind} case(s) are not declared yet: {some(undeclared)}: "
                f"declare them with --add{hint}"
            )


def changes(data: LabelledDataset, contract: Contract) -> list[str]:
    """Return which cases change their protocol, a line for each kind of change."""
    if data.declared is None:
        return []
    kinds = defaultdict(list)
    for case, name in contract.cases.items():
        before = data.declared.cases.get(case)
        after = contract.protocol(case).with_ignore()
        is_same = before is not None and data.declared.protocols[before].with_ignore() == after
        if not is_same:
            kinds[before or "not declared", name].append(case)
    return [
        f"{before} -> {after}: {len(cases)} case(s) ({some(cases)})"
        for (before, after), cases in kinds.items()
    ]


def refuse_loss(
    data: LabelledDataset, contract: Contract, declarations: Declarations, values: Values
) -> None:
    """Fail if labels that were declared as gaps would count as annotated, or as absent."""
    if data.declared is None:
        return
    lines = []
    for case, name in data.declared.cases.items():
        if case not in contract.cases:
            continue
        before, after = data.declared.protocol(case), contract.protocol(case)
        is_masked = case in declarations and declarations[case].masked
        lost = after.annotated - before.annotated
        lost |= _excluded_labels(before, after, values[case], is_masked)
        if lost - {0}:
            labels = some(data.labels.leaf_names[leaf] for leaf in sorted(lost - {0}))
            lines.append(f"{case} ('{name}'): {labels}")
    if lines:
        raise LabelSetError(
            listed(
                f"nothing was written: {len(lines)} case(s) would lose their declaration; these "
                f"labels would count as annotated, or as absent where they may be now. --add "
                f"declares more and keeps the rest, --replace replaces it:",
                lines,
            )
        )


def _excluded_labels(
    before: Protocol, after: Protocol, values: Iterable[int], is_masked: bool
) -> LabelSet:
    """Return the labels that some voxel of a case may be before, but not after.

    A mask turns the unlabelled voxels inside into `ignore`.
    """
    excluded: LabelSet = frozenset()
    for value in values:
        new_value = -1 if is_masked and value == 0 else value
        excluded |= before.sets[value] - after.sets[new_value]
    return excluded
