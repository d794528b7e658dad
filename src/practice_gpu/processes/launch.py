"""Start a program once for each practice GPU of this machine, as ``torchrun --standalone`` does."""

import os
import sys
import uuid
from collections.abc import Mapping, Sequence


def launch(number: int, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in several processes that form a group, with PyTorch's launcher.

    `environment` is added to theirs. Return 0, the exit status of the process that failed first (128 plus the
    signal that ended it), or 130 after Ctrl-C. The other processes have ended by then, too.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.update(environment)  # after PyTorch's import: this process needs no practice GPU
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // number)))
    if sys.platform == "win32":  # PyTorch wants libuv but is built without it: pytorch/pytorch#139990
        os.environ.setdefault("USE_LIBUV", "0")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=number,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(
            f"rank {rank} failed with exit status {failure.exitcode}, the others were ended", file=sys.stderr
        )
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except SignalException as error:
        return 128 + error.sigval
    return 0
