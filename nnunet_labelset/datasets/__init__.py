"""A raw data set that exists already: verified, counted, split."""
