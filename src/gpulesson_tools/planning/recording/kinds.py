"""What an allocation is for: known from the model and the optimizer, or from how long it lasted."""

from __future__ import annotations

import bisect

from gpulesson_tools.planning.recording.record import BACKWARD, FORWARD, Allocation, Record

PARAMETER, BUFFER, GRADIENT, STATE = "parameters", "buffers", "gradients", "optimizer state"
ACTIVATION, DATA, OTHER, TEMPORARY = "activations", "data", "other", "temporary"
KINDS = {
    PARAMETER: "the model's weights",
    BUFFER: "what a module keeps besides, such as the averages of batch normalisation",
    GRADIENT: "one number for each parameter, from backward to the next zero_grad",
    STATE: "what the optimizer remembers of each parameter",
    ACTIVATION: "results of the forward pass that backward needs",
    DATA: "the batch: what was copied from the host or filled with numbers on the device",
    OTHER: "what else lasts, such as an average of the weights",
    TEMPORARY: "everything that does not last from the forward pass into backward",
}
"""The kinds of memory, with what each holds."""


def assign(record: Record) -> None:
    """Set what each allocation is for, unless a module or an optimizer has claimed it.

    What was made of nothing on the device is data. What was made in the forward pass and is still there when
    backward begins are activations, if autograd recorded how, or if it goes by the end of the next step; so
    is what backward computes once more (activation checkpointing). What else lasts is other, and the rest is
    temporary. The record's allocations are changed in place.

    Examples
    --------
    >>> from gpulesson_tools.planning.recording.record import Allocation, Place, Record
    >>> kept = Allocation(512, 0, "forward", "relu", Place(), differentiable=True, born=0)
    >>> passing = Allocation(512, 0, "backward", "mm", Place(), born=1)
    >>> record = Record([kept, passing], [0, 1])
    >>> assign(record)
    >>> kept.kind, passing.kind
    ('activations', 'temporary')
    """
    backward = [each.born for each in record.allocations if each.phase == BACKWARD]
    for each in record.allocations:
        each.kind = each.kind or _kind(each, record.ends, backward)


def _kind(each: Allocation, ends: list[int], backward: list[int]) -> str:
    if each.phase == BACKWARD:
        return ACTIVATION if each.differentiable else TEMPORARY
    if each.phase != FORWARD:
        return TEMPORARY
    if each.from_outside:
        return DATA
    following = bisect.bisect_right(backward, each.born)
    if following == len(backward) or 0 <= each.died <= backward[following]:
        return TEMPORARY
    later = bisect.bisect_right(ends, each.born) + 1  # a name may keep it into the next step
    outlasts = later < len(ends) and (each.died < 0 or each.died > ends[later])
    return ACTIVATION if each.differentiable or not outlasts else OTHER
