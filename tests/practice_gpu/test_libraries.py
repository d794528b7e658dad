"""CUDA's runtime and NVTX, as far as programs call them."""

import pytest
import torch

from practice_gpu import PracticeError


def test_the_runtime(gpu):
    runtime = torch.cuda.cudart()
    assert runtime.cudaProfilerStart() == runtime.cudaError.success
    assert torch.cuda.check_error(runtime.cudaProfilerStop()) is None
    x = torch.ones(200, device="cuda")
    assert runtime.cudaMemGetInfo(0) == (2**30 - 1024, 2**30)
    assert runtime.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == 0
    with pytest.raises(PracticeError, match="cudaStreamCreate"):
        runtime.cudaStreamCreate(0)


def test_an_error_of_the_runtime_is_raised(gpu):
    with pytest.raises(torch.cuda.CudaError, match=r"\(2\)"):
        torch.cuda.check_error(2)


def test_marks_for_a_profiler_do_nothing(gpu):
    with torch.cuda.profiler.profile(), torch.cuda.nvtx.range("step {}", 1):
        torch.cuda.nvtx.mark("here")
        assert torch.cuda.nvtx.range_push("inside") == torch.cuda.nvtx.range_pop() == -2
        first, second = torch.cuda.nvtx.range_start("a"), torch.cuda.nvtx.range_start("b")
        assert first != second
        torch.cuda.nvtx.range_end(first)
