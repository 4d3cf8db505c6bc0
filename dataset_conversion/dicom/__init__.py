"""DICOM: image series, structure sets (RTSTRUCT) and segmentations (SEG), indexed by UIDs.

Only a DICOM source imports this package, because pydicom is an extra.
"""
