"""A standalone cluster from the wheel: it comes up whole, listens here only, and goes entirely."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import psutil
import pytest
from tests.spark.processes import listening

from tidemill.spark.cluster import ClusterError, StandaloneCluster


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_it_comes_up_listens_here_only_and_leaves_no_process(tmp_path: Path) -> None:
    with StandaloneCluster(tmp_path, workers=1, memory_mb=512) as cluster:
        [worker] = cluster.registered()
        assert (worker["host"], worker["cores"], worker["memory"]) == ("127.0.0.1", 1, 512)
        family = [psutil.Process(daemon.pid) for daemon in cluster.daemons]
        assert [listening(each) for each in family] == [{"127.0.0.1"}] * 2
        assert cluster.url.startswith("spark://127.0.0.1:")
        assert "REST" not in cluster.master.said()
    assert not any(each.is_running() for each in family)
    assert cluster.daemons == []


def test_how_many_workers_there_may_be(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="1 to 64 workers, not 0"):
        StandaloneCluster(tmp_path, workers=0)


def test_without_spark_the_message_says_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r"pip install 'tidemill\[spark\]'"):
        StandaloneCluster(tmp_path)


def test_who_is_told_to_stop_while_it_starts_does(tmp_path: Path) -> None:
    cluster = StandaloneCluster(tmp_path, told_to_stop=lambda: True)
    with pytest.raises(ClusterError, match="stopped before the cluster was ready"), cluster:
        pytest.fail("it must not come up")
    assert cluster.daemons == []
