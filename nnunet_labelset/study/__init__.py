"""Whole studies: the demo, experiments, and the volumes that the package generates itself."""
