"""What a conversion would find, before any volume is read or written (`convert --dry-run`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nnunet_labelset.dataset_conversion.plan import Plan
from nnunet_labelset.io.text import some

MOST_NAMES = 20


def survey(plan: Plan) -> str:
    """Return in how many cases each label is annotated, which names matched nothing, problems."""
    return "\n".join([*_coverage(plan), *_names(plan), *_problems(plan)])


def _coverage(plan: Plan) -> Iterator[str]:
    names = plan.labels.leaf_names
    for source in dict.fromkeys(job.source for job in plan.jobs):
        jobs = [job for job in plan.jobs if job.source == source]
        labelled = [job for job in jobs if job.labels]
        yield f"{source}: {len(jobs)} cases, {len(jobs) - len(labelled)} of them without labels"
        counts = Counter(leaf for job in labelled for leaf in job.protocol.annotated)
        varying = frozenset().union(*(job.protocol.varies for job in labelled))
        for leaf in range(1, len(names)):
            unknown = ", in others where it occurs" if leaf in varying else ""
            yield f"  {names[leaf]} in {counts[leaf]} of {len(labelled)}{unknown}"


def _names(plan: Plan) -> Iterator[str]:
    unmatched = Counter(name for matching in plan.matchings for name in matching.unmatched)
    if unmatched:
        texts = (f"{name} ({count})" for name, count in unmatched.most_common())
        yield f"names that matched nothing: {some(texts, MOST_NAMES)}"
    several = Counter(name for matching in plan.matchings for name in matching.several)
    for name, count in several.items():
        yield f"several structures for '{name}' in {count} cases"


def _problems(plan: Plan) -> Iterator[str]:
    texts = list(dict.fromkeys(text for _, text in plan.problems))
    if texts:
        yield f"{len(texts)} problem(s):"
    yield from (f"  {text}" for text in texts)
