"""Declare what is annotated in a raw data set that exists already."""
