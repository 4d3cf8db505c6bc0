"""Scores that know what was annotated, and what follows from them."""
