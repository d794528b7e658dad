"""Streams and events: operators run immediately and in order, so there is little to do."""

import time
from typing import Any

import torch

from practice_gpu import errors
from practice_gpu.device.events import WAIT
from practice_gpu.device.gpu import PracticeGPU, as_device
from practice_gpu.patching.absent import refuse
from practice_gpu.patching.patches import Patches


class PracticeStream:
    """A stream on which nothing is ever pending."""

    gpu: PracticeGPU

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = self.gpu.devices[self.gpu.number(device)]
        self.device_index = self.device.index
        self.priority = priority
        self._before: list[tuple[int, Any]] = []
        self.cuda_stream = self.stream_id = 0
        self.device_type = 1  # DeviceType.CUDA

    native_handle = property(refuse("torch.cuda.Stream.native_handle"))
    _as_parameter_ = property(refuse("handing a stream to another library"))
    __cuda_stream__ = refuse("handing a stream to another library")

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority; they have no effect."""
        return 0, -1

    def synchronize(self) -> None:
        """Log a wait; there is nothing to wait for."""
        self.gpu.record(WAIT, "Stream.synchronize()")

    def query(self) -> bool:
        """Return True: all work is done."""
        if self.is_capturing() and self.gpu.capture is not None:
            self.gpu.capture.refuse_wait()
        return True

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured on this stream."""
        return self.gpu.capture is not None and self in self.gpu.capture.streams

    def wait_event(self, event: Any) -> None:
        """Do nothing, but join a capture if the event belongs to one."""
        self._join(event.captured)

    def wait_stream(self, stream: Any) -> None:
        """Do nothing, but join a capture if the other stream belongs to one."""
        self._join(stream.is_capturing())

    def _join(self, captured: bool) -> None:
        if captured and self.gpu.capture is not None and not self.is_capturing():
            self.gpu.capture.streams.append(self)

    def record_event(self, event: Any = None) -> Any:
        """Record an event on this stream."""
        event = torch.cuda.Event() if event is None else event  # type: ignore[no-untyped-call]
        event.record(self)
        return event

    def __enter__(self) -> "PracticeStream":
        self._before.append((self.gpu.current, self.gpu.streams[self.device.index]))
        self.make_current()
        return self

    def __exit__(self, *_: object) -> None:
        self.gpu.current, self.gpu.streams[self.device.index] = self._before.pop()

    def make_current(self) -> None:
        """Make this the current stream of its device, and that device the current one."""
        self.gpu.streams[self.device.index] = self
        self.gpu.current = self.device.index

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class PracticeEvent:
    """A point in the CPU's time, which says nothing about a GPU's."""

    gpu: PracticeGPU

    def __init__(
        self, device: Any = None, *, enable_timing: bool = False, external: bool = False, **_: Any
    ) -> None:
        self.enable_timing = enable_timing
        self.external = external
        self.cuda_event = self.event_id = 0
        self.captured = False
        self.device = self.gpu.devices[self.gpu.current]
        self.moment: float | None = None

    ipc_handle = refuse("torch.cuda.Event.ipc_handle")
    from_ipc_handle = staticmethod(refuse("torch.cuda.Event.from_ipc_handle"))
    _as_parameter_ = property(refuse("handing an event to another library"))

    def record(self, stream: Any = None) -> None:
        """Record the present time."""
        stream = torch.cuda.current_stream() if stream is None else stream
        self.captured = stream.is_capturing() and not self.external
        self.moment = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing, but let the stream join a capture if this event belongs to one."""
        waiting: Any = torch.cuda.current_stream() if stream is None else stream
        waiting.wait_event(self)

    def query(self) -> bool:
        """Return True: the event has happened."""
        self._require_moment()
        return True

    def synchronize(self) -> None:
        """Log a wait; there is nothing to wait for."""
        self._require_moment()
        self.gpu.record(WAIT, "Event.synchronize()", tolerated=True)

    def _require_moment(self) -> None:
        """Raise CUDA's error if the host may not query this event."""
        capture = self.gpu.capture_here()
        if capture is not None:
            capture.refuse_wait()
        if self.captured:
            raise errors.captured_event()

    def elapsed_time(self, end_event: "PracticeEvent") -> float:
        """Return the milliseconds of CPU time from this event to another."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.moment is None or end_event.moment is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self._require_moment()
        end_event._require_moment()
        return (end_event.moment - self.moment) * 1e3

    def __repr__(self) -> str:
        return "<torch.cuda.Event>"


class CudaEvent(PracticeEvent):
    """``torch.cuda.Event``, which takes no device."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        super().__init__(enable_timing=enable_timing, external=external)


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the streams and events of :mod:`torch.cuda`, :mod:`torch.accelerator` and :mod:`torch`."""
    Stream = type("Stream", (PracticeStream,), {"gpu": gpu, "__module__": "torch.cuda"})
    AnyEvent = type("Event", (PracticeEvent,), {"gpu": gpu, "__module__": "torch"})
    Event = type("Event", (CudaEvent, AnyEvent), {"__module__": "torch.cuda"})
    refused = {"__new__": refuse("torch.cuda.ExternalStream"), "__module__": "torch.cuda"}
    ExternalStream = type("ExternalStream", (Stream,), refused)
    defaults = [Stream(index) for index in range(gpu.count)]

    def number(device: Any) -> int:
        given = device if device is None or isinstance(device, int) else as_device(device).index
        if given is not None and not 0 <= given < gpu.count:
            raise errors.no_stream(given, gpu.count)
        return gpu.number(device)

    def current_stream(device: Any = None) -> Any:
        index = number(device)
        return defaults[index] if gpu.streams[index] is None else gpu.streams[index]

    def default_stream(device: Any = None) -> Any:
        return defaults[number(device)]

    def set_stream(stream: Any) -> None:
        if stream is not None:
            stream.make_current()

    for owner in (torch.cuda, torch.cuda.streams):
        patches.set(owner, "Stream", Stream)
        patches.set(owner, "Event", Event)
        patches.set(owner, "ExternalStream", ExternalStream)
    patches.set(torch.cuda, "default_stream", default_stream)
    patches.set(torch, "Stream", Stream)
    patches.set(torch, "Event", AnyEvent)
    for owner in (torch.cuda, torch.accelerator):
        patches.set(owner, "current_stream", current_stream)
        patches.set(owner, "set_stream", set_stream)
