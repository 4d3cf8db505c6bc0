"""What was drawn in each case, from options or a table, and the contract that says so.

Label maps stay as they are, and so does all that nnU-Net has preprocessed from them: an unlabelled
voxel (0) of a case in which the spleen was not drawn is `background`, which stands for {background,
spleen} in that case. Only with masks (see `masks`) more is known than value 0 can say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from nnunet_labelset.contract import Contract, LabelSet, Protocol
from nnunet_labelset.contract.annotated_table import AnnotatedTable, refuse_unknown, slice_range
from nnunet_labelset.datasets.annotate.labelled import (
    LabelledDataset,
    Values,
    matching_cases,
    unrequested_test_cases,
)
from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.text import listed, some, variants

COMPLETE = "complete"
MOST_NAMES = 5  # in the name of a protocol
NOT_NAMED = "no option names the case: every label was drawn"
BEFORE = "before"


class Kind(str, Enum):
    """The options that declare something about the cases of the `--in` that follows."""

    MISSING = "--missing"
    MERGED = "--merged"
    SCRIBBLES = "--scribbles"
    SLICES = "--slices"


@dataclass(frozen=True)
class Request:
    """One `--missing`, `--merged`, ... with its words and the patterns of its `--in`."""

    kind: Kind
    names: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join([self.kind.value, *self.names, "--in", *self.patterns])


@dataclass(frozen=True)
class Declaration:
    """What was drawn in a case.

    `missing` labels were not drawn, `wrong` ones were drawn, but are not to be trusted, `merged`
    ones were drawn as one. `scribbles`: what was not drawn is unknown. `masked`: what is unlabelled
    inside the mask of the case is `ignore`. `slices` (first and last, from 0) and `limited`:
    nothing is known outside of them, or of a field of view.
    `reason` is the option or the line of a table that says so.
    """

    missing: LabelSet = frozenset()
    wrong: LabelSet = frozenset()
    merged: tuple[LabelSet, ...] = ()
    scribbles: bool = False
    masked: bool = False
    slices: tuple[int, int] | None = None
    limited: bool = False
    reason: str = ""

    @property
    def is_partly_drawn(self) -> bool:
        return self.limited or self.slices is not None

    def protocol(self, num_leaves: int, has_ignore: bool) -> Protocol:
        """Return what each value may be."""
        complete = Protocol.complete(num_leaves, has_ignore)
        sets = list(complete.sets)
        if self.scribbles:
            sets[0] = complete.full_set
        elif self.masked:
            # One label alone would turn "not drawn" into "certainly this label": no mask is that
            # exact.
            hidden = self.missing if len(self.missing) > 1 else self.missing | {0}
            sets[-1] = hidden
        else:
            sets[0] |= self.missing | self.wrong
        for leaf in self.wrong:
            sets[leaf] = sets[0]
        for group in self.merged:
            for leaf in group:
                sets[leaf] |= group
        # Where `ignore` may be every label, it must still say that nobody drew them.
        states_ignore = self.masked and sets[-1] == complete.full_set
        return Protocol(tuple(sets), num_leaves, states_ignore=states_ignore)

    def name(self, labels: Contract) -> str:
        """Return what was drawn, in words; the name of the protocol."""
        if self.scribbles:
            return "scribbles"
        name = protocol_name(labels, self.missing, self.merged, self.wrong)
        if self.is_partly_drawn:
            return f"{name} (partly drawn)"
        return f"{name} (mask)" if self.masked else name


Declarations = dict[str, Declaration]


def protocol_name(
    labels: Contract,
    missing: LabelSet,
    merged: Iterable[LabelSet] = (),
    wrong: LabelSet = frozenset(),
) -> str:
    """Return what was drawn, in words."""

    def joined(leaves: LabelSet) -> str:
        names = [labels.leaf_names[leaf] for leaf in sorted(leaves)]
        more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
        return "+".join([*names[:MOST_NAMES], *more])

    present = labels.full_set - {0} - missing - wrong
    parts = [f"{joined(leaves)} merged" for leaves in merged]
    if wrong:
        parts.append(f"{joined(wrong)} wrong")
    if missing:
        only = 0 < len(present) < len(missing)
        parts.insert(0, f"only {joined(present)}" if only else f"without {joined(missing)}")
    return ", ".join(parts) or COMPLETE


def declared_by_options(
    data: LabelledDataset, requests: Sequence[Request], add: bool, include_test: bool
) -> Declarations:
    """Return what the options say.

    Every label that they do not name was drawn, in every case; with `add`, they are only about the
    cases that they name. A test case that matches a pattern, but was not asked for, is left out.
    """
    declarations = {} if add else _everything_drawn(data, requests, include_test)
    for request in requests:
        extend = _extension(data, request)
        for case in sorted(matching_cases(request.patterns, data, include_test)):
            before = declarations.get(case) or _declared_before(data, case, add)
            reasons = [] if before.reason in ("", NOT_NAMED) else [before.reason]
            reason = "; ".join([*reasons, request.text])
            declarations[case] = replace(extend(before), reason=reason)
            _check_contradiction(data, case, declarations[case])
    return declarations


def _everything_drawn(
    data: LabelledDataset, requests: Sequence[Request], include_test: bool
) -> Declarations:
    patterns = [pattern for request in requests for pattern in request.patterns]
    unclear = set() if include_test else unrequested_test_cases(patterns, data)
    everything = Declaration(reason=NOT_NAMED)
    return {name: everything for name in data.names if name not in unclear}


def _extension(data: LabelledDataset, request: Request) -> Callable[[Declaration], Declaration]:
    """Return what a request adds to the declaration of a case."""
    if request.kind is Kind.SCRIBBLES:
        return lambda before: replace(before, scribbles=True)
    if request.kind is Kind.SLICES:
        text = " ".join(request.names)
        slices = slice_range(text, f"--slices {text}")
        return lambda before: _with_slices(before, slices)
    if request.kind is Kind.MISSING:
        missing = _missing_labels(data.labels, request.names)
        return lambda before: replace(before, missing=before.missing | missing)
    group = _merged_labels(data.labels, request.names)
    return lambda before: replace(before, merged=tuple(dict.fromkeys((*before.merged, group))))


def _with_slices(before: Declaration, slices: tuple[int, int]) -> Declaration:
    if before.slices not in (None, slices):
        raise LabelSetError(
            "--slices {}-{} and {}-{} for one case: give one range, or mark the other slices as "
            "`ignore` yourself (docs/how-to/scribbles.md)".format(*before.slices, *slices)
        )
    return replace(before, slices=slices)


def _missing_labels(labels: Contract, names: Iterable[str]) -> LabelSet:
    foreground = labels.leaf_names[1:]
    for name in names:
        if name in foreground:
            continue
        if name in (labels.regions or {}):
            members = sorted((labels.regions or {})[name])
            member_names = ", ".join(labels.leaf_names[leaf] for leaf in members)
            raise LabelSetError(
                f"--missing {name}: a region: name its labels ({member_names}); was one outline "
                f"drawn around all of it? Then --merged '{name}'"
            )
        raise LabelSetError(f"--missing {name}: no such label{did_you_mean(name, foreground)}")
    return frozenset(labels.leaf_names.index(name) for name in names)


def _merged_labels(labels: Contract, names: Sequence[str]) -> LabelSet:
    known = {name: frozenset([leaf]) for leaf, name in enumerate(labels.leaf_names) if leaf}
    known |= labels.regions or {}
    for name in names:
        if name not in known:
            raise LabelSetError(f"--merged {name}: no such label{did_you_mean(name, known)}")
    group = frozenset[int]().union(*(known[name] for name in names))
    if len(group) < 2:
        raise LabelSetError(
            f"--merged {' '.join(names)}: expected two or more labels that were drawn as one"
        )
    return group


def _declared_before(data: LabelledDataset, case: str, add: bool) -> Declaration:
    """Return what was declared about a case so far, if it is to be extended."""
    if not add or data.declared is None or case not in data.declared.cases:
        return Declaration()
    protocol = data.declared.protocol(case)
    before = declaration_of(protocol)
    if before is None:
        raise LabelSetError(
            f"--in {case}: its protocol '{data.declared.cases[case]}' says more than annotate can "
            f"extend: edit the block in dataset.json, or --undo first"
        )
    return replace(before, reason=BEFORE)


def declaration_of(protocol: Protocol) -> Declaration | None:
    """Return the declaration that makes this protocol; None if there is none."""
    unsure = protocol.sets[0] - {0}
    own_sets = dict(enumerate(protocol.sets[1 : protocol.num_leaves], start=1))
    wrong = frozenset(leaf for leaf in unsure if 0 in own_sets[leaf])
    larger = [leaves for leaves in own_sets.values() if len(leaves) > 1 and 0 not in leaves]
    declaration = Declaration(
        missing=unsure - wrong, wrong=wrong, merged=tuple(dict.fromkeys(larger))
    )
    is_same = declaration.protocol(protocol.num_leaves, protocol.has_ignore) == protocol
    return declaration if is_same else None


def _check_contradiction(data: LabelledDataset, case: str, declaration: Declaration) -> None:
    merged = frozenset[int]().union(*declaration.merged)
    for leaf in sorted(merged & declaration.missing):
        raise LabelSetError(
            f"{case}: '{data.labels.leaf_names[leaf]}' is declared both missing and merged with "
            f"others: choose one"
        )


def declared_by_table(data: LabelledDataset, table: AnnotatedTable, add: bool) -> Declarations:
    """Return what a table says; it must list every training case, or with `add` every new one."""
    refuse_unknown(
        table.path,
        table.annotated,
        dict.fromkeys(data.names),
        f"with a label map in {data.folder.name}",
    )
    needed = set(data.undeclared) if add else set(data.names)
    absent = [name for name in data.training if name in needed and name not in table.annotated]
    if absent:
        raise LabelSetError(
            f"{table.path}: {len(absent)} training case(s) not listed: {some(absent)}: add a line "
            f"for each"
        )
    foreground = data.labels.full_set - {0}
    declarations = {}
    for case, annotated in table.annotated.items():
        wrong = table.wrong.get(case, frozenset())
        declarations[case] = Declaration(
            missing=foreground - annotated - wrong,
            wrong=wrong,
            scribbles=case in table.scribbles,
            slices=table.slices.get(case),
            reason=table.lines[case],
        )
    return declarations


def declared_complete(data: LabelledDataset, add: bool) -> Declarations:
    """Return that everything was drawn in every case, or with `add` in every new one."""
    cases = data.undeclared if add else data.names
    if not cases:
        raise LabelSetError(f"{data.folder}: --add: every case is declared already")
    return dict.fromkeys(cases, Declaration(reason="--fully-annotated"))


def check_missing(data: LabelledDataset, declarations: Declarations, values: Values) -> None:
    """Fail if a case shows voxels of a label that was declared missing."""
    names = data.labels.leaf_names
    contradictions = []
    for case, declaration in declarations.items():
        for leaf in sorted(declaration.missing & set(values[case])):
            contradictions.append(
                f"{case} has {values[case][leaf]} '{names[leaf]}' voxels although it was declared "
                f"missing"
            )
    if contradictions:
        raise LabelSetError(
            listed(
                "nothing was written: correct the declaration, or the label maps:", contradictions
            )
        )


def declared_contract(data: LabelledDataset, declarations: Mapping[str, Declaration]) -> Contract:
    """Return the contract with a protocol for every kind of declaration.

    Cases that are declared already and not named again keep their protocols.
    """
    uses_ignore = any(each.masked or each.is_partly_drawn for each in declarations.values())
    has_ignore = data.labels.has_ignore or uses_ignore
    protocols: dict[str, Protocol] = {}
    cases: dict[str, str] = {}
    if data.declared is not None:
        for case, name in data.declared.cases.items():
            if case not in declarations and case in data.names:
                cases[case] = name
                kept = data.declared.protocols[name]
                protocols[name] = kept.with_ignore() if has_ignore else kept
    for case, declaration in declarations.items():
        protocol = declaration.protocol(data.labels.num_leaves, has_ignore)
        names = variants(declaration.name(data.labels))  # another one may have this name
        cases[case] = next(n for n in names if protocols.setdefault(n, protocol) == protocol)
    return replace(
        data.labels,
        protocols=dict(sorted(protocols.items())),
        cases={name: cases[name] for name in data.names if name in cases},
        has_ignore=has_ignore,
    )
