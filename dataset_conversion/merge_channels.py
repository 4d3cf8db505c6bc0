"""Channels of data sets that are merged: the same names in another order are put in order."""

from __future__ import annotations

from collections.abc import Sequence


def channel_order(given: Sequence[str], channels: Sequence[str]) -> list[int]:
    """Return which of the given channels comes first, second, ...: by name if the names agree."""
    if not same_channels(given, channels) or plain_channels(given) == plain_channels(channels):
        return list(range(len(given)))
    return [plain_channels(given).index(name) for name in plain_channels(channels)]


def same_channels(given: Sequence[str], channels: Sequence[str]) -> bool:
    """Tell whether the names are the same, in any order if none of them occurs twice."""
    names, others = plain_channels(given), plain_channels(channels)
    return names == others or (sorted(names) == sorted(others) and len(set(names)) == len(names))


def plain_channels(channels: Sequence[str]) -> list[str]:
    """Return names without capitals: 'CT' and 'ct' are one."""
    return [channel.casefold() for channel in channels]
