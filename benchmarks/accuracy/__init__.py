"""Accuracy of the methods on real, partially annotated volumes: `python -m benchmarks.accuracy
--help`.
"""
