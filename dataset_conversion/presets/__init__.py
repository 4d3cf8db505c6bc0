"""Manifests of public data sets, shipped as readable TOML files."""
