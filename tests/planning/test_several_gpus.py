from __future__ import annotations

import pytest
import torch
from records import allocation
from shapes import published_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gpulesson
import published_scaling
from gpulesson_tools.planning.hardware import gpus, links
from gpulesson_tools.planning.hardware.links import Link
from gpulesson_tools.planning.memory import fitting
from gpulesson_tools.planning.recording.record import Operation, Place, Record
from gpulesson_tools.planning.speed.floor import floor
from gpulesson_tools.planning.speed.several_gpus import (
    BUCKET,
    COMMUNICATION,
    COMPUTE,
    DDP,
    FIRST_BUCKET,
    LATENCY,
    SHARDED,
    Collective,
    Compute,
    all_reduce,
    blocks,
    buckets,
    gradients,
    least_step,
    overlapped,
    parts,
    spread_out,
)

MIB = 2**20
INSIDE = Link("inside", "node", False, 100e9, 1e-6, 1e-6)
OWN = Link("own", "network", False, 10e9, 3e-6, 5e-6)
SHARED = Link("shared", "network", True, 10e9, 3e-6, 5e-6)


def train(batch_size: int) -> None:
    """Train with Adam a model of 2 blocks, and of layers that are in none."""
    model = nn.ModuleDict(
        {
            "first": nn.Linear(64, 512),
            "blocks": nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False)),
            "last": nn.Linear(512, 8),
        }
    ).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        outputs = torch.randn(batch_size, 64, device="cuda")
        for layer in model.values():
            outputs = layer(outputs)
        optimizer.zero_grad()
        outputs.sum().backward()
        optimizer.step()


SIZES = {"": 4 * (64 * 512 + 512 + 512 * 8 + 8), "0": 4 * 512 * 512, "1": 4 * 512 * 512}


@pytest.fixture(scope="module")
def plan():
    return gpulesson.plan(train, gpu=["T4", "A100", "P100"], batch_size=4, ranks=(1, 2, 16))


class TestAllReduce:
    @pytest.mark.parametrize("ranks", [2, 3, 8])
    def test_in_a_node_it_is_the_ring_that_is_simulated(self, ranks):
        """Each rank sends one chunk a step: N - 1 steps to add up, N - 1 to hand out."""
        values = [[float(10 * rank + chunk) for chunk in range(ranks)] for rank in range(ranks)]
        expected = [sum(column) for column in zip(*values, strict=True)]
        sent = 0
        for step in range(2 * (ranks - 1)):
            moving = [((rank - step) % ranks, rank) for rank in range(ranks)]
            chunks = [values[rank][chunk] for chunk, rank in moving]
            for (chunk, rank), value in zip(moving, chunks, strict=True):
                neighbour = (rank + 1) % ranks
                added = values[neighbour][chunk] + value
                values[neighbour][chunk] = added if step < ranks - 1 else value
            sent += 1
        assert all(row == expected for row in values)
        found = all_reduce(ranks * 1000, ranks, INSIDE, OWN)
        assert found.transfer == pytest.approx(sent * 1000 / 100e9)
        assert found.latency <= 3.6e-6 + sent * 1e-6 + 1e-12

    def test_between_nodes_the_slower_of_both_counts(self):
        size = 10**9
        within = 2 * 7 / 8 * size / 100e9
        assert all_reduce(size, 8, INSIDE, SHARED).transfer == pytest.approx(within)
        assert all_reduce(size, 16, INSIDE, OWN).transfer == pytest.approx(within), "8 ports carry 80 GB/s"
        assert all_reduce(size, 16, INSIDE, SHARED).transfer == pytest.approx(2 * 1 / 2 * size / 10e9)
        assert all_reduce(size, 16, INSIDE, SHARED, per_node=4).transfer == pytest.approx(
            2 * 3 / 4 * size / 10e9
        )

    def test_many_nodes_are_joined_by_a_tree(self):
        found = all_reduce(8, 1024, INSIDE, OWN)
        assert found.latency == pytest.approx(4.4e-6 + 2 * (7 * 1e-6 + 7 * 5e-6))

    def test_one_rank_sends_nothing(self):
        assert all_reduce(10**9, 1, INSIDE, OWN).seconds == 0


class TestOverlapped:
    def test_what_fits_behind_the_backward_pass_costs_nothing_but_its_last_part(self):
        sent = [Collective(0.001, 0.01)] * 4
        step = overlapped(Compute(0.1, 0.2, 0.05), sent, sent[-1:])
        assert step.seconds == pytest.approx(0.35 + 0.011)
        assert (step.bound, step.efficiency) == (COMPUTE, pytest.approx(0.35 / 0.361))

    @pytest.mark.parametrize(
        ("one", "bound"), [(Collective(0.01, 0.3), COMMUNICATION), (Collective(0.3, 0.01), LATENCY)]
    )
    def test_what_does_not_fit_takes_its_time_after_the_forward_pass(self, one, bound):
        step = overlapped(Compute(0.1, 0.2, 0.05), [one] * 4, [one])
        assert step.seconds == pytest.approx(0.1 + 4 * 0.31 + 0.05)
        assert step.bound == bound

    def test_the_host_binds_as_on_one_gpu(self):
        step = overlapped(Compute(0.1, 0.2, 0.05), [Collective(0, 0.1)], [], alone=2.0, least=2.0)
        assert (step.seconds, step.efficiency, step.bound) == (2.0, 1.0, COMPUTE)


class TestBuckets:
    def test_they_are_those_of_pytorch(self):
        sizes = [3000, 300_000, 5, 2_000_000, 6_000_000, 900_000, 7_000_000, 10]
        tensors = [torch.empty(size) for size in sizes]
        groups, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, [FIRST_BUCKET, BUCKET])
        expected = [4 * sum(sizes[at] for at in group) for group in groups]
        assert buckets(4 * size for size in sizes) == expected
        assert len(expected) == 4

    def test_the_limits_are_ddps(self):
        assert torch.distributed._DEFAULT_FIRST_BUCKET_BYTES == FIRST_BUCKET
        assert "25 MiB" in (DistributedDataParallel.__doc__ or "")
        assert BUCKET == 25 * MIB

    def test_no_gradients_need_no_bucket(self):
        assert buckets([]) == []


class TestRecord:
    def test_gradients_come_from_the_last_layer_to_the_first(self, plan):
        found = gradients(plan.record)
        assert sum(found) == sum(SIZES.values())
        assert found.index(4 * 512 * 8) < found.index(4 * 512 * 512) < found.index(4 * 64 * 512)

    def test_blocks_are_what_lists_hold_and_the_rest_is_one(self, plan):
        assert sorted(blocks(plan.record).values()) == sorted(SIZES.values())

    def test_the_parts_of_a_step_add_up(self, plan):
        on = plan.gpus[0]
        found = parts(on.floor)
        assert found.seconds == pytest.approx(on.floor.kernels)
        assert min(found.before, found.beside, found.after) > 0

    def test_a_step_without_backward_has_one_part(self):
        one = Operation("mm", "float32", 10**9, 10**9, 0, 1, 0, "forward", Place())
        found = parts(floor(Record(operations=[one], ends=[0]), gpus.find("T4")))
        assert (found.before, found.after) == (0, 0) and found.beside > 0


class TestMemory:
    """With Adam in float32: parameters and gradients once, the optimizer's state twice."""

    def peak(self, record: Record) -> int:
        return fitting.replay(record).peak_allocated

    def test_ddp_holds_the_gradients_once_more(self, plan):
        more = self.peak(spread_out(plan.record, 2, DDP)) - self.peak(plan.record)
        assert more == pytest.approx(sum(SIZES.values()), abs=2048)
        assert self.peak(spread_out(plan.record, 64, DDP)) == self.peak(spread_out(plan.record, 2, DDP))

    def test_the_state_is_repeated_or_divided(self, plan):
        """At the end of a step, when all is there that stays: sizes by hand, for 16 ranks."""
        model, largest = sum(SIZES.values()), max(SIZES.values())
        expected = {
            DDP: model + model + 2 * model + model,
            SHARDED: model / 16 + model / 16 + 2 * model / 16 + 3 * largest,
        }
        for strategy, nbytes in expected.items():
            record = spread_out(plan.record, 16, strategy)
            alive: set[int] = set()
            for event in record.events[: record.ends[-1]]:
                alive.symmetric_difference_update({max(event, ~event)})
            kinds = "parameters", "gradients", "optimizer state", "other"
            held = [record.allocations[number] for number in alive]
            # Adam counts its steps in tensors of their own: 4 bytes each
            found = sum(each.nbytes for each in held if each.kind in kinds and each.nbytes > 4)
            assert found == pytest.approx(nbytes, abs=300), strategy

    def test_one_rank_needs_what_it_needs(self, plan):
        assert spread_out(plan.record, 1, SHARDED) is plan.record

    def test_events_still_belong_to_their_allocations(self, plan):
        record = spread_out(plan.record, 4, SHARDED)
        for position, event in enumerate(record.events):
            each = record.allocations[max(event, ~event)]
            assert (each.born if event >= 0 else each.died) == position
        last = [plan.record.events[end - 1] for end in plan.record.ends]
        assert [record.events[end - 1] for end in record.ends] == last

    def test_a_record_without_gradients_has_nothing_to_add(self):
        record = Record([allocation(4096, kind="parameters")], [0])
        assert self.peak(spread_out(record, 8, DDP)) == 4096
        assert spread_out(record, 8, SHARDED).allocations[0].nbytes == 512


# -- published throughputs: none may be above what a floor allows


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    published_scaling.read(),
    ids=lambda row: "-".join(row[key] for key in ("model", "gpu", "precision", "gpus")),
)
def test_no_published_step_takes_less_than_its_floor(row):
    batch = int(row["batch"])
    if row["model"] == "resnet50":
        step = published_step("resnet50", batch, "training", row["precision"])
        alone = floor(step, gpus.find(row["gpu"])).seconds  # all of it hides what is sent
    else:  # two operations for each parameter and token in the forward pass, four in the backward pass
        alone = 6 * int(row["parameters"]) * batch / gpus.find(row["gpu"]).rates[row["precision"]]
    found = published_scaling.with_communication(row, Compute(0.0, alone, 0.0))
    ratio = published_scaling.seconds(row, "gpus", "rate") / found.seconds
    print(f"{ratio:.2f}")
    assert 1 <= ratio < 6


class TestPlan:
    def test_one_rank_is_the_plan_for_one(self, plan):
        for on in plan.gpus[:2]:
            for each in on.several[:2]:
                assert each.step.seconds == pytest.approx(on.floor.seconds)
                assert each.step.efficiency == pytest.approx(1)
                assert each.replay.peak_allocated >= plan.peak.nbytes

    def test_more_ranks_never_take_less_time_with_ddp(self, plan):
        for on in plan.gpus[:2]:
            times = [each.step.seconds for each in on.several if each.strategy == DDP]
            assert times == sorted(times)
            assert all(each.step.efficiency <= 1 for each in on.several if each.strategy == DDP)

    def test_the_time_is_worked_out_by_hand(self, plan):
        """Two T4: all gradients fill one bucket and a rest, over PCIe."""
        on = plan.gpus[0]
        size, link = sum(SIZES.values()), links.of_gpu("T4")
        compute, count = parts(on.floor), len(buckets(gradients(plan.record)))
        sent = size / link.bandwidth + count * min(3.6e-6 + 2e-6, 4.4e-6 + 2e-6)
        step = least_step(plan.record, on.floor, 2, DDP, link, links.network("InfiniBand NDR"))
        assert sent > compute.beside, "so that it cannot hide"
        assert step.seconds >= compute.before + sent + compute.after - 1e-12

    def test_sharded_ranks_share_the_work_of_the_optimizer(self):
        """Seconds of arithmetic at the peak rate: 1 forward, 2 backward, 1.6 in the optimizer's step."""
        t4 = gpus.find("T4")
        seconds = {"forward": 1.0, "backward": 2.0, "optimizer": 1.6}
        flop = {phase: round(each * t4.rates["float32"]) for phase, each in seconds.items()}
        ran = [
            Operation("mm", "float32", each, each, 0, 1, 0, phase, Place()) for phase, each in flop.items()
        ]
        record = Record(operations=ran, ends=[0])
        alone = floor(record, t4)
        for strategy, expected in ((DDP, 4.6), (SHARDED, 3.1)):
            found = least_step(record, alone, 16, strategy, INSIDE, OWN)
            assert found.seconds == pytest.approx(expected)
            assert found.efficiency == pytest.approx(4.6 / expected)

    def test_a_gpu_whose_link_is_not_known_has_memory_and_no_time(self, plan):
        on = plan.gpus[2]
        assert on.node is None
        assert all(each.step is None and each.verdict.answer == "fits" for each in on.several)
        assert "a link that is not known" in str(plan) and "not known" in str(plan)

    def test_the_report_and_the_numbers_agree(self, plan):
        text, numbers = str(plan), plan.to_json()["gpus"][1]
        assert "Several A100, each with a batch of 4: NVLink 3 in nodes of 8" in " ".join(text.split())
        assert max(map(len, text.splitlines())) <= 120
        assert "not promises" in text and "no switch adds up" in " ".join(text.split())
        assert {on.floor.bound for on in plan.gpus} == {"launches"}  # so small a step waits for the CPU
        assert "the CPU will be the limit" in " ".join(text.split())
        assert numbers["links"] == ["NVLink 3", "InfiniBand NDR"]
        assert [row["ranks"] for row in numbers["ranks"]] == [1, 1, 2, 2, 16, 16]
        assert set(numbers["ranks"][0]["least_time"]) == {"seconds", "efficiency", "bound"}
        assert sum(" DDP " in line for line in text.splitlines()) == 9

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"ranks": (2, 0)}, "ranks=0: give a whole number, 1 or more"),
            ({"ranks": (2.5,)}, r"ranks=2\.5"),
            ({"network": "carrier pigeon"}, "unknown network 'carrier pigeon'; expected one of InfiniBand"),
        ],
    )
    def test_wrong_calls_say_what_to_give(self, options, message):
        with pytest.raises(ValueError, match=message):
            gpulesson.plan(train, batch_size=4, **options)

    def test_the_command_takes_them(self, tmp_path, monkeypatch, capfd):
        from gpulesson.__main__ import main

        with pytest.raises(SystemExit, match="2"):
            main(["plan", "--ranks", "two", "train.py"])
        assert "found 'two', expected whole numbers with commas between" in capfd.readouterr().err
        (tmp_path / "train.py").write_text("raise SystemExit('it ran')")
        assert main(["plan", "--network", "x", str(tmp_path / "train.py")]) == 1
        said = capfd.readouterr().err
        assert "unknown network 'x'" in said and "it ran" not in said
