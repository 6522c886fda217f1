"""The controllers around the operator: those of garbage, Jobs, Deployments and volumes, Dask's, kubelet and trainer.

Each works through what it finds and returns; called again, it changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from batchgrowth import names
from batchgrowth.contract.progress import Progress
from batchgrowth.errors import Interrupted, WorkloadError
from batchgrowth_operator.seen.observed import TRAINER as CONTAINER
from batchgrowth_operator.seen.observed import Ref, labels_of, mounted_claims, ref_of, timestamp
from model_api import FOREGROUND, Body, Server

JOB = "digits"
LONGEST_BACK_OFF = 600.0
"""The longest that Kubernetes waits before it makes a Job's next pod, in seconds."""
TRAINER = Ref("Job", names.of(JOB).trainer)
WORKERS = Ref("Deployment", names.of(JOB).workers)
CLUSTER = Ref("DaskCluster", names.of(JOB).cluster)
SCHEDULER = names.of(JOB).scheduler
PROGRESS = Ref("ConfigMap", names.of(JOB).progress)
MOUNTED = (Ref("ConfigMap", names.of(JOB).plan), Ref("Secret", names.of(JOB).tls))
CLAIM = Ref("PersistentVolumeClaim", names.of(JOB).checkpoints)
CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
DASK_FINALIZER = "kubernetes.dask.org/cluster"
UPDATES, EPOCHS, UPDATES_PER_EPOCH = 460, 30, 45
CRASH_EXIT = 1


@dataclass
class Nature:
    """The controllers' own memory: the updates of each trainer's process, and the checkpoint in each volume.

    A volume is known by the uid of the operator's own claim, or by the name of another.
    """

    server: Server
    pods_made: int = 0
    dask_turns: int = 0
    updates: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)

    def run(self, rounds: int = 1) -> None:
        """Lets every controller but the trainer's process work."""
        for _ in range(rounds):
            for controller in (self.collect, self.run_jobs, self.run_deployments, self.run_dask, self.run_volumes):
                controller()
            self.run_kubelet()

    def collect(self) -> None:
        """Deletes objects whose owners are all gone, or of which one waits for it."""
        alive = {body["metadata"]["uid"]: body for body in self.server.objects.values()}
        for ref, body in sorted(self.server.objects.items()):
            owners = [owner["uid"] for owner in body["metadata"].get("ownerReferences") or ()]
            waits = any(_is_foreground(alive[uid]) for uid in owners if uid in alive)
            if owners and (waits or not alive.keys() & set(owners)) and "deletionTimestamp" not in body["metadata"]:
                self.server.delete(ref)
        for ref, body in sorted(self.server.objects.items()):
            if _is_foreground(body) and not self._blockers(body):
                self.server.release(ref, FOREGROUND)

    def run_jobs(self) -> None:
        """The Job controller: at most one pod that has not ended, its counts, and the Job's end."""
        job = self.server.get(TRAINER)
        if job is None or "template" not in job["spec"]:
            return
        pods = [pod for pod in self.server.of_kind("Pod") if _owner(pod) == job["metadata"]["uid"]]
        running = [pod for pod in pods if not _has_ended(pod)]
        active = [pod for pod in running if "deletionTimestamp" not in pod["metadata"]]
        status = dict(job.get("status") or {})
        over, halted = bool(status.get("conditions")), bool(job["spec"].get("suspend"))
        if "deletionTimestamp" in job["metadata"] or halted or over:
            for pod in active:
                self.server.delete(ref_of(pod))
            active = []
        counted = set(status.get("counted", ()))
        for pod in pods:
            if _has_ended(pod) and pod["metadata"]["uid"] not in counted:
                counted.add(pod["metadata"]["uid"])
                self._count(job, status, pod)
                status["waitsUntil"] = self.server.seconds + min(LONGEST_BACK_OFF, 10.0 * 2 ** (len(counted) - 1))
        over = bool(status.get("conditions"))
        waits = self.server.seconds < status.get("waitsUntil", 0.0)
        if not (running or over or halted or waits or "deletionTimestamp" in job["metadata"]):
            self._make_pod(job, "Job", CONTAINER)
            status.setdefault("startTime", timestamp(self.server.now))
            active = [{"status": {}}]
        ready = sum((pod["status"] or {}).get("phase") == "Running" for pod in active)
        status |= {"active": len(active), "ready": ready, "counted": sorted(counted)}
        self.server.change(TRAINER, lambda body: body.update(status=status))

    def run_deployments(self) -> None:
        """The controllers of Deployments and ReplicaSets in one: as many pods as replicas, and how many are ready."""
        for deployment in self.server.of_kind("Deployment"):
            uid = deployment["metadata"]["uid"]
            if "replicas" not in deployment["spec"] or "deletionTimestamp" in deployment["metadata"]:
                continue  # one that goes gets no pods any more, or it would never be gone
            pods = [
                p for p in self.server.of_kind("Pod") if _owner(p) == uid and "deletionTimestamp" not in p["metadata"]
            ]
            wanted = deployment["spec"].get("replicas", 1)
            for pod in pods[wanted:]:
                self.server.delete(ref_of(pod))
            for _ in range(wanted - len(pods)):
                self._make_pod(deployment, "ReplicaSet", labels_of(deployment).get(names.ROLE_LABEL, ""))
            ready = sum((pod["status"] or {}).get("phase") == "Running" for pod in pods[:wanted])
            self.server.change(
                ref_of(deployment), lambda body, ready=ready: body.update(status={"readyReplicas": ready})
            )

    def run_dask(self) -> None:
        """The Dask operator: parts are made in the phase Created alone, and a finalizer is taken off at the end.

        It is slow: at every other turn it sees nothing.
        """
        self.dask_turns += 1
        if self.dask_turns % 2 == 0:
            return
        cluster = self.server.get(CLUSTER)
        if cluster is None or "scheduler" not in cluster["spec"]:
            return
        if "deletionTimestamp" in cluster["metadata"]:
            if DASK_FINALIZER in cluster["metadata"].get("finalizers", ()):
                self.server.release(CLUSTER, DASK_FINALIZER)
            return
        if (cluster.get("status") or {}).get("phase", "Created") != "Created":
            return
        self.server.change(CLUSTER, lambda body: body["metadata"].update(finalizers=[DASK_FINALIZER]))
        owner = {"kind": "DaskCluster", "name": JOB, "uid": cluster["metadata"]["uid"], "controller": True}
        for kind in ("Deployment", "Service"):
            metadata = {"name": SCHEDULER, "labels": names.labels(JOB, "scheduler"), "ownerReferences": [owner]}
            if Ref(kind, SCHEDULER) not in self.server.objects:
                spec = {"replicas": 1} if kind == "Deployment" else {}
                self.server.create({"kind": kind, "metadata": metadata, "spec": spec})
        self.server.change(CLUSTER, lambda body: body.update(status={"phase": "Running"}))

    def run_volumes(self) -> None:
        """Provisioner and protection: a new claim gets class and volume; a deleted one goes with its last pod."""
        claim = self.server.get(CLAIM)
        if claim is None or "resources" not in claim["spec"]:
            return
        uid = claim["metadata"]["uid"]
        used = any(self.volumes.get(pod["metadata"]["uid"]) == uid for pod in self.trainers)
        if "deletionTimestamp" not in claim["metadata"]:
            self.server.change(CLAIM, _bind)
        elif CLAIM_FINALIZER in claim["metadata"].get("finalizers", ()) and not used:
            self.server.release(CLAIM, CLAIM_FINALIZER)

    def run_kubelet(self) -> None:
        """Starts pods whose volumes exist, and ends those that are being deleted: a trainer writes a checkpoint."""
        has_volumes = all(ref in self.server.objects for ref in MOUNTED)
        for pod in self.server.of_kind("Pod"):
            if "deletionTimestamp" in pod["metadata"]:
                self.end_trainer(pod, Interrupted.exit_code)
                self.server.remove(ref_of(pod))
            elif not (pod["status"] or {}).get("phase") and has_volumes:
                self._start(pod)

    def _volume(self) -> str:
        """What the trainer's Job mounts; empty if its claim has no volume yet."""
        job, claim = self.server.get(TRAINER), self.server.get(CLAIM)
        [name, *_] = [*mounted_claims(job), ""] if job is not None else [""]
        if name != CLAIM.name:
            return name
        usable = claim is not None and "volumeName" in claim["spec"] and "deletionTimestamp" not in claim["metadata"]
        return str(claim["metadata"]["uid"]) if usable and claim is not None else ""

    @property
    def trainers(self) -> list[Body]:
        """The pods of trainers that may still be working, of any Job, by name."""
        pods = [pod for pod in self.server.of_kind("Pod") if labels_of(pod).get(names.ROLE_LABEL) == CONTAINER]
        return [pod for pod in pods if not _has_ended(pod)]

    def train(self, updates: int) -> None:
        """The trainer commits that many updates and reports, if it has a scheduler and a worker."""
        pods = [pod for pod in self.trainers if pod["metadata"]["uid"] in self.starts]
        ready = [(self.server.get(ref) or {}).get("status") or {} for ref in (WORKERS, Ref("Deployment", SCHEDULER))]
        if not pods or not all(status.get("readyReplicas") for status in ready):
            return
        uid = pods[0]["metadata"]["uid"]
        self.updates[uid] = min(self.updates[uid] + updates, UPDATES)
        last = self._report(uid, ready[0]["readyReplicas"])
        if self.updates[uid] == UPDATES:
            self._end(pods[0], 0, last)

    def fail(self, exit_code: int) -> None:
        """The trainer's process ends by an error."""
        for pod in self.trainers[:1]:
            if pod["metadata"]["uid"] in self.starts:
                self._end(pod, exit_code)

    def end_trainer(self, pod: Body, exit_code: int) -> None:
        """A trainer that is asked to stop keeps its state in the volume."""
        uid = pod["metadata"]["uid"]
        if uid in self.updates and not _has_ended(pod):
            self.checkpoints[self.volumes[uid]] = self.updates[uid]
            self._end(pod, exit_code)

    def _start(self, pod: Body) -> None:
        is_trainer, volume = labels_of(pod).get(names.ROLE_LABEL) == CONTAINER, self._volume()
        if is_trainer and not volume:
            return
        self.server.change(ref_of(pod), lambda body: body.update(status={"phase": "Running"}))
        if is_trainer:
            config_map = self.server.get(PROGRESS) or {"metadata": {}}
            known = (config_map["metadata"].get("annotations") or {}).get(names.LAST_START, "-1")
            reported = json.loads((config_map.get("data") or {}).get(names.PROGRESS_KEY, '{"start": -1}'))["start"]
            self.starts[pod["metadata"]["uid"]] = max(int(known), reported) + 1
            self.volumes[pod["metadata"]["uid"]] = volume
            self.updates[pod["metadata"]["uid"]] = self.checkpoints.get(volume, 0)

    def _report(self, uid: str, workers: int) -> str:
        done = self.updates[uid]
        report = Progress(update=done, updates=UPDATES, epoch=min(done / UPDATES_PER_EPOCH, EPOCHS), epochs=EPOCHS,
            stage=0, batch_size=32, learning_rate=0.05, workers=workers, ready=workers, start=self.starts[uid],
            seconds_per_update=0.5, loss=1.0)  # fmt: skip
        if (self.server.get(PROGRESS) or {"metadata": {}})["metadata"].get("ownerReferences"):  # it is not another's
            self.server.change(PROGRESS, lambda body: body.update(data={names.PROGRESS_KEY: report.to_json()}))
        return report.to_json()

    def _end(self, pod: Body, exit_code: int, message: str = "") -> None:
        ended = {"exitCode": exit_code, "finishedAt": timestamp(self.server.now), "message": message}
        containers = [{"name": CONTAINER, "state": {"terminated": ended}}]
        phase = "Failed" if exit_code else "Succeeded"
        self.server.change(ref_of(pod), lambda b: b.update(status={"phase": phase, "containerStatuses": containers}))

    def _count(self, job: Body, status: dict[str, Any], pod: Body) -> None:
        """What the end of a pod means for its Job, by the Job's own rules."""
        phase, rules = pod["status"]["phase"], job["spec"]["podFailurePolicy"]["rules"]
        if phase == "Succeeded":
            status["conditions"] = [{"type": "Complete", "status": "True"}]
            return
        code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        action = next((r["action"] for r in rules if code in r.get("onExitCodes", {}).get("values", ())), "Count")
        status["failed"] = status.get("failed", 0) + (action == "Count")
        if action == "FailJob" or status["failed"] > job["spec"]["backoffLimit"]:
            message = f"container {CONTAINER} failed with exit code {code}"
            status["conditions"] = [{"type": "Failed", "status": "True", "message": message}]

    def _make_pod(self, owner: Body, kind: str, role: str) -> None:
        self.pods_made += 1
        name = owner["metadata"]["name"]
        reference = {
            "kind": kind,
            "name": name if kind == "Job" else f"{name}-set",
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        metadata = {
            "name": f"{name}-{self.pods_made}",
            "labels": names.labels(JOB, role),
            "ownerReferences": [reference],
        }
        self.server.create({"kind": "Pod", "metadata": metadata, "status": {}})

    def _blockers(self, owner: Body) -> list[Body]:
        uid = owner["metadata"]["uid"]
        return [
            body
            for body in self.server.objects.values()
            for reference in body["metadata"].get("ownerReferences") or ()
            if reference["uid"] == uid and reference.get("blockOwnerDeletion")
        ]


FAILURES = (CRASH_EXIT, WorkloadError.exit_code)
"""Exit codes of a crash, which the Job restarts, and of a workload's error, which ends it."""


def _bind(claim: Body) -> None:
    claim["metadata"].setdefault("finalizers", [CLAIM_FINALIZER])
    claim["spec"].setdefault("storageClassName", "standard")
    claim["spec"]["volumeName"] = f"volume-of-{claim['metadata']['uid']}"


def _is_foreground(body: Body) -> bool:
    return "deletionTimestamp" in body["metadata"] and FOREGROUND in body["metadata"].get("finalizers", ())


def _has_ended(pod: Body) -> bool:
    return (pod["status"] or {}).get("phase") in ("Succeeded", "Failed")


def _owner(body: Body) -> str:
    return next((o["uid"] for o in body["metadata"].get("ownerReferences") or () if o.get("controller")), "")
