"""Every public name of the losses has an example that runs."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

from nnunet_labelset import losses
from nnunet_labelset.losses import functional

MODULES = ("dice", "functional", "modules", "conversion", "label_sets")


def examples(module):
    """The examples of a module; all of them start with those at its top."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = {test.name.removeprefix(f"{module.__name__}."): test for test in finder.find(module)}
    top = found.pop(module.__name__, None)
    for test in found.values():
        if top and test.examples:
            test.examples = [*top.examples, *test.examples]
    return {name: test for name, test in found.items() if test.examples}


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, capsys):
    module = importlib.import_module(f"nnunet_labelset.losses.{name}")
    runner = doctest.DocTestRunner()
    for test in examples(module).values():
        runner.run(test)
    assert runner.tries
    assert not runner.failures, capsys.readouterr().out


def test_every_public_name_has_one():
    documented = set()
    for name in MODULES:
        documented |= set(examples(importlib.import_module(f"nnunet_labelset.losses.{name}")))
    public = {name for name in losses.__all__ if not inspect.ismodule(getattr(losses, name))}
    public |= set(functional.__all__)
    assert public - documented == set()
