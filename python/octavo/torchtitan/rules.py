"""torchtitan's rules of which layers are converted, whatever its version."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from octavo.convert import is_small
from octavo.names import NameFilter

log = logging.getLogger("octavo")

# Among filter_fqns: also leave linears that are too small to gain.
AUTO_FILTER = "auto_filter_small_kn"


def split_filters(filter_fqns: Iterable[str]) -> tuple[list[str], bool]:
    """The names, and whether the size filter is on. The list itself is left as it is."""
    names = [name for name in filter_fqns if name != AUTO_FILTER]
    return names, AUTO_FILTER in filter_fqns


def wanted(in_features: int, out_features: int, auto_filter: bool) -> bool:
    """torchtitan converts linears whose sizes are multiples of 16, and with the size filter those that
    octavo.convert.is_small() does not name. (Octavo pads other sizes; the rule keeps runs comparable.)"""
    if in_features % 16 or out_features % 16:
        return False
    return not (auto_filter and is_small(in_features, out_features))


def warn_unmatched(names: NameFilter) -> None:
    """torchtitan lets names match nothing; so it is said, not raised."""
    complaint = names.complaint()
    if complaint:
        log.warning("%s", complaint)
