"""The contract: what a value of a label file means in a given case."""

from nnunet_labelset.contract.model import BLOCK, IGNORE, VERSION, Contract
from nnunet_labelset.contract.protocol import LabelSet, Protocol

__all__ = ["BLOCK", "IGNORE", "VERSION", "Contract", "LabelSet", "Protocol"]
