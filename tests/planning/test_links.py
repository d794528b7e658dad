from __future__ import annotations

import pytest

from gpulesson_tools.planning.hardware import gpus, links


def test_the_table_holds_together():
    table = links.read()
    assert len({link.name for link in table}) == len(table)
    assert {link.where for link in table} == {"node", "network"}
    for link in table:
        assert link.source.startswith("https://") and link.seen, link.name
        assert 1e9 < link.bandwidth < 1e12
        assert 0 < link.ring <= link.tree < 1e-4


def test_each_gpu_of_the_table_has_one_link_at_most():
    named = [name for link in links.read() for name in link.gpus]
    assert len(set(named)) == len(named)
    assert set(named) <= {gpu.name for gpu in gpus.read()}
    assert all(not link.gpus for link in links.read() if link.where == "network")


def test_links_are_slower_than_the_memory_of_the_gpus_that_have_them():
    for gpu in gpus.read():
        link = links.of_gpu(gpu.name)
        assert link is None or link.bandwidth < gpu.bandwidth / 4


def test_a_shared_port_does_not_grow_with_the_gpus_of_a_node():
    assert links.network("InfiniBand HDR").out_of_node(8) == 8 * 25e9
    assert links.network("10gbe").out_of_node(8) == links.network("10 GbE").out_of_node(1) == 1.25e9


def test_an_unknown_network_is_answered_with_all_there_are():
    with pytest.raises(
        ValueError, match=r"unknown network 'NVLink 3'; expected one of InfiniBand NDR, .*10 GbE"
    ):
        links.network("NVLink 3")


def test_the_default_is_the_quickest():
    networks = [link for link in links.read() if link.where == "network"]
    assert max(networks, key=lambda link: link.out_of_node(8)) is links.network(links.NETWORK)
