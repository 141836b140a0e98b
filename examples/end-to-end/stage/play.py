"""A stage: a node with a job, and the agents that watch it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stage.agents import DEPLOYED, HERE, RUN, Agent, free_port
from stage.cluster import Api, Cluster, stamp
from stage.exporters import Exporter, Gpus, Ports
from stage.node import ROTATE, Clock, Container, Kernel, Training
from stage.webhook import Webhook, until

#: Seconds for what a machine does in one: it may be slow and busy.
PATIENCE = 120.0


class Stage:
    """What incidents are played on.

    Args:
        place: an empty directory.
        node: the node's name.
        job: the job's name.
        api: the cluster.
        clock: seconds since the epoch.
        second: the name of a second node, on which two more ranks of the job run; empty for none.
    """

    def __init__(self, place: Path, node: str, job: str, api: Api, clock: Clock = time.time, second: str = "") -> None:
        self.place = place
        self.second = second
        self.second_place = place / "second"
        self.node = node
        self.job = job
        self.api = api
        self.clock = clock
        for folder in (place, self.second_place) if second else (place,):
            for name in ("pods", "dumps"):
                (folder / name).mkdir(parents=True)
        self.kernel = Kernel(place / "kern.log", node, clock)
        self.dumps = place / "dumps"
        self.gpus = Gpus(node)
        self.ports = Ports(node)
        self.dcgm = Exporter(self.gpus.page)
        self.node_exporter = Exporter(self.ports.page)
        self.webhook = Webhook()
        self.pods: list[Any] = []
        self.ranks: list[Container] = []
        #: Ranks on the second node, where all is well.
        self.far: list[Container] = []
        #: Containers of other people.
        self.others: list[Container] = []
        self.training: Training | None = None
        #: Whoever plays says here whether agents are to be asked how far they are.
        self.agent: Agent | None = None
        self.cluster: Agent | None = None

    def close(self) -> None:
        if self.training is not None:
            self.training.stop()
        for container in (*self.ranks, *self.far, *self.others):
            container.close()
        for server in (self.dcgm, self.node_exporter, self.webhook):
            server.close()

    # -- the job -------------------------------------------------------------------------------------------------------

    def start_job(self, ranks: int = 4, rotate: int = ROTATE) -> None:
        """Pods, one for each rank and GPU, that run but have printed nothing yet."""
        self.api.node(self.node, Ready="True", MemoryPressure="False", DiskPressure="False")
        for rank in range(ranks):
            labels = {"training.kubeflow.org/job-name": self.job, "gen-ai.training.io/rank": str(rank)}
            gpu = {"nvidia.com/gpu-PCIDeviceBusID": self.gpus[rank].bus}
            self.pods.append(self.api.pod(f"{self.job}-worker-{rank}", self.node, labels=labels, annotations=gpu))
            self.ranks.append(Container(self.place / "pods", self.pods[-1], self.clock, rotate))
        if self.second:
            self.api.node(self.second, Ready="True", MemoryPressure="False", DiskPressure="False")
            for rank in (ranks, ranks + 1):
                labels = {"training.kubeflow.org/job-name": self.job, "gen-ai.training.io/rank": str(rank)}
                pod = self.api.pod(f"{self.job}-worker-{rank}", self.second, labels=labels)
                self.far.append(Container(self.second_place / "pods", pod, self.clock, rotate))

    def begin(self, ranks: int = 4) -> None:
        """A job that trains well, and has been seen to: lines of every rank, and some scrapes."""
        self.start_job(ranks)
        self.training = Training([*self.ranks, *self.far])
        self.read_logs()
        for rank in range(ranks):
            self.ready(rank)
        self.scraped(6)

    def ready(self, rank: int) -> None:
        """The kubelet says that a pod is ready."""
        self.api.status(self.pods[rank]["metadata"]["name"], running(self.clock()))

    def halt(self) -> int:
        """The job makes no more steps; gives the last one."""
        assert self.training is not None
        self.training.stop()
        return self.training.step

    # -- how far the agents are ----------------------------------------------------------------------------------------

    def scraped(self, times: int) -> None:
        """Wait until both exporters have been scraped so many times more."""
        for exporter in (self.dcgm, self.node_exporter):
            before = exporter.scrapes
            _sure(until(lambda e=exporter, b=before: e.scrapes >= b + times, PATIENCE), "scrapes")  # type: ignore[misc]

    def read_logs(self) -> None:
        """Wait until the agent reads what containers print."""
        agent = self.agent
        if agent is None:
            time.sleep(5)
            return
        before = agent.emitted("filelog/pods")
        _sure(until(lambda: agent.emitted("filelog/pods") > before + 2 * len(self.ranks), PATIENCE), "lines")

    def read_kernel(self) -> None:
        """Wait until the agent has read every line of the kernel."""
        agent = self.agent
        if agent is None:
            time.sleep(2)
            return
        _sure(until(lambda: agent.emitted("filelog/kernel") >= self.kernel.lines, PATIENCE), "kernel lines")


def _sure(came: bool, what: str) -> None:
    if not came:
        raise RuntimeError(f"no {what} are read: see the agents' logs")


def running(now: float) -> dict[str, Any]:
    """The status of a pod that became ready."""
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": stamp(now)}]}


class Local:
    """A stage with the deployed agents beside it, on this machine alone.

    Args:
        place: an empty directory.
        node: the node's name.
        job: the job's name.
        fast: whether patterns wait for seconds instead of minutes.
        second: the name of a second node with an agent of its own; empty for none.
        clock: seconds since the epoch.
        code: what the agents' interpreter runs.
        more: further configuration of each agent, by its name.
        environment: for the agents.
    """

    def __init__(
        self,
        place: Path,
        node: str = "node-7",
        job: str = "llm-7b",
        *,
        fast: bool = True,
        second: str = "",
        clock: Clock = time.time,
        code: str = RUN,
        more: Mapping[str, Path] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._api = Cluster(clock)
        self.stage = Stage(place, node, job, self._api, clock, second)
        ports = ("GATHER", "AGENT", "CLUSTER", "AGENT_METRICS", "CLUSTER_METRICS")
        known = {f"{name}_PORT": str(free_port()) for name in ports}
        known |= {
            "STAGE": str(place),
            "DCGM_PORT": str(self.stage.dcgm.port),
            "NODE_EXPORTER_PORT": str(self.stage.node_exporter.port),
            "WEBHOOK_URL": self.stage.webhook.url,
            "K8S_NODE_NAME": node,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self._api.port),
            **(environment or {}),
        }
        self._agents = []
        for name in ("cluster", "agent"):
            configs = [DEPLOYED / f"{name}.yaml", HERE / f"{name}.yaml"]
            if fast:
                configs.append(HERE / "fast.yaml")
            if more is not None and name in more:
                configs.append(more[name])
            health, metrics = (int(known[f"{name.upper()}{what}_PORT"]) for what in ("", "_METRICS"))
            self._agents.append(Agent(configs, known, place / f"{name}.log", health, metrics, code=code))
        self.stage.cluster, self.stage.agent = self._agents
        if second:
            (self.stage.second_place / "kern.log").touch()
            ports = {f"AGENT{what}_PORT": str(free_port()) for what in ("", "_METRICS")}
            own = {**known, **ports, "STAGE": str(self.stage.second_place), "K8S_NODE_NAME": second}
            configs = [DEPLOYED / "agent.yaml", HERE / "agent.yaml", HERE / "second.yaml"]
            if fast:
                configs.append(HERE / "fast.yaml")
            health, metrics = (int(port) for port in ports.values())
            self._agents.append(Agent(configs, own, place / "second.log", health, metrics, code=code))

    def __enter__(self) -> Stage:
        try:
            for agent in self._agents:
                agent.ready()
        except RuntimeError:
            self.__exit__()
            raise
        return self.stage

    def __exit__(self, *_: object) -> None:
        for agent in reversed(self._agents):
            agent.stop()
        self.stage.close()
        self._api.close()
