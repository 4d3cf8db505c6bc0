"""Checks of a data set against its contract."""
