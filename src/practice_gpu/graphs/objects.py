"""CUDA graphs: ``torch.cuda.CUDAGraph`` and ``torch.cuda.graph``. ``make_graphed_callables`` stays PyTorch's.

What a graph consists of is in :mod:`practice_gpu.graphs.recording`. Time is not simulated: a replay
computes its operators one by one, and is no faster than they are.
"""

import itertools
import warnings
import weakref
from typing import Any
from weakref import WeakValueDictionary

import torch

from practice_gpu import errors
from practice_gpu.device.allocator import Pool
from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.graphs.recording import Node, Recording
from practice_gpu.operators.dispatch import as_on_device
from practice_gpu.patching.absent import refuse
from practice_gpu.patching.keys import unobserved
from practice_gpu.patching.patches import Patches

_MODES = ("global", "thread_local", "relaxed")

Handle = tuple[int, int]


class GraphMemory:
    """The private memory pool of one graph, or of several that share it; freed with the last of them."""

    def __init__(self, gpu: PracticeGPU, index: int, handle: Handle) -> None:
        self.handle = handle
        self.pool = Pool()
        pools = gpu.ledger.allocators[index].pools
        pools.append(self.pool)
        weakref.finalize(self, _remove, pools, self.pool)


def _remove(pools: list[Pool], pool: Pool) -> None:
    pools[:] = [each for each in pools if each is not pool]
    pool.released = True


class PracticeGraph:
    """``torch.cuda.CUDAGraph``; `keep_graph` has no effect."""

    gpu: PracticeGPU
    memories: WeakValueDictionary[Handle, GraphMemory]
    """The pools, by handle."""
    numbers: "itertools.count[int]"

    def __init__(self, keep_graph: bool = False) -> None:
        self._recording: Recording | None = None
        self._generators: list[torch.Generator] = []
        self._forget()

    def _forget(self) -> None:
        self._nodes: list[Node] = []
        self._copies: list[tuple[str, int]] = []
        self._memory: GraphMemory | None = None
        self._index = -1

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        """Begin to record what this thread does on the devices."""
        gpu = self.gpu
        if capture_error_mode not in _MODES:
            raise errors.wrong_capture_mode(capture_error_mode)
        if self._index >= 0:
            raise errors.second_capture()
        if gpu.capture is not None:
            gpu.capture.refuse_wait()
        stream = torch.cuda.current_stream()
        if stream is torch.cuda.default_stream():
            raise errors.default_stream()
        mode = gpu.thread_state.mode
        if mode is None:
            raise errors.not_simulated("the capture of a CUDA graph in a thread that Python did not start")
        gpu.ledger.use()
        self._memory = self._memory_of(pool)
        self._recording = Recording(gpu, mode, stream, self._memory.pool, self._generators)
        self._recording.start()

    def _memory_of(self, pool: Any) -> GraphMemory:
        handle: Handle = (next(self.numbers), 0) if pool is None else tuple(getattr(pool, "id", pool))
        memory = self.memories.get(handle)
        if memory is None:
            memory = self.memories[handle] = GraphMemory(self.gpu, self.gpu.current, handle)
        return memory

    def capture_end(self) -> None:
        """End the capture and undo what its operators computed."""
        recording, self._recording = self._recording, None
        if recording is None:
            raise RuntimeError("capture_end() called before capture_begin().")
        recording.finish()
        if recording.spoilt:
            self._forget()
            raise errors.capture_spoilt()
        if not recording.nodes:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on "
                "wrong device or stream.",
                stacklevel=3,
            )
        self._nodes, self._copies, self._index = recording.nodes, recording.copies, self.gpu.current

    def instantiate(self) -> None:
        """Do nothing: a graph needs no preparation."""

    def replay(self) -> None:
        """Run the operators again, or raise an error if memory that they use was freed."""
        if self._index < 0:
            raise errors.nothing_captured("replay")
        if self.gpu.capture_here() is not None:
            raise errors.not_simulated("the replay of a CUDA graph in a capture")
        for kind, nbytes in self._copies:
            self.gpu.record(kind, "CUDAGraph.replay()", nbytes, waits=False)
        as_recorded = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutocastCPU, True)
        unseen = unobserved(), torch._C.DisableTorchFunction()
        # oneDNN's LSTM saves what its backward pass needs only where gradients are enabled
        with unseen[0], unseen[1], as_recorded, torch.enable_grad():
            try:
                for node in self._nodes:
                    node.run()
            except (RuntimeError, IndexError) as error:
                if (on_device := as_on_device(self.gpu, error, self._index)) is None:
                    raise
                raise on_device from None

    def reset(self) -> None:
        """Forget the graph and free its memory."""
        self._generators.clear()
        self._forget()

    def pool(self) -> Handle:
        """Return the handle of the graph's memory pool, which another graph may share."""
        if self._memory is None or self._index < 0:
            raise errors.nothing_captured("pool()")
        return self._memory.handle

    def pools(self) -> list[Handle]:
        """Return the handles of all its memory pools."""
        return [self.pool()]

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let the graph draw from a generator other than the device's default one."""
        self._generators.append(generator)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(_GRAPH, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return refuse(f"torch.cuda.CUDAGraph.{name}")


_GRAPH = torch.cuda.CUDAGraph  # PyTorch's own


class PracticeCapture:
    """``torch.cuda.graph``, a context manager.

    The arguments of newer versions have no effect: the practice GPU always notices inputs that were freed.
    """

    default_capture_stream: Any = None

    def __init__(
        self,
        cuda_graph: PracticeGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        annotation_config: dict[str, Any] | None = None,
        check_input_liveness: bool = False,
    ) -> None:
        kind = type(self)
        if stream is None and kind.default_capture_stream is None:
            kind.default_capture_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_stream = kind.default_capture_stream if stream is None else stream
        self.stream_ctx: Any = torch.cuda.stream(self.capture_stream)
        self.capture_error_mode = capture_error_mode

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.stream_ctx.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self.stream_ctx.__exit__(None, None, None)
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            self.cuda_graph.capture_end()
        finally:
            self.stream_ctx.__exit__(*exception)


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the graphs of :mod:`torch.cuda` and :mod:`torch.cuda.graphs`."""
    numbers = itertools.count(1)
    shared = {"gpu": gpu, "memories": WeakValueDictionary(), "numbers": numbers}
    replacements = {
        "CUDAGraph": type("CUDAGraph", (PracticeGraph,), shared),
        "graph": type("graph", (PracticeCapture,), {}),
        "graph_pool_handle": lambda: (0, next(numbers)),
        "is_current_stream_capturing": lambda: torch.cuda.current_stream().is_capturing(),
    }
    for owner in (torch.cuda, torch.cuda.graphs):
        for name, value in replacements.items():
            patches.set(owner, name, value)
