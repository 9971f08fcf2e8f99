"""Who is taken in as a worker, and who is not."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from datetime import timedelta

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from apps.access.clock import database_now
from apps.jobs.models import EnrolmentSecret, Incarnation, Job, Pod, Worker
from apps.jobs.services import credentials
from apps.jobs.services.enrolment import AgentStart, Enrolled, Fenced, NotEnrolled, enrol
from apps.nodes.models import Machine, WatchState
from recovery.errors import BadInput
from tests.factories import make_job
from tests.jobs.projected import SigningCluster

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def signing(key: rsa.RSAPrivateKey) -> SigningCluster:
    return SigningCluster(key=key)


@pytest.fixture
def job(signing: SigningCluster) -> Job:
    return make_job(cluster=signing.cluster)


@pytest.fixture
def pod(signing: SigningCluster, job: Job) -> Pod:
    return signing.pod(job)


def start_of(pod: Pod, **overrides: object) -> AgentStart:
    start = AgentStart(
        nonce=uuid.uuid4().hex,
        pod_uid=pod.uid,
        pod_name=pod.name,
        namespace=pod.namespace,
        container="train",
        node_name=pod.node_name,
        ip="127.0.0.9",
        agent_version="1",
        pid=17,
        sent_at=time.time(),
    )
    return replace(start, **overrides)  # type: ignore[arg-type]


def test_agent_of_a_watched_pod_is_taken_in(signing: SigningCluster, job: Job, pod: Pod) -> None:
    now = database_now()
    machine = Machine.objects.create(
        cluster=job.cluster, hardware_key="m", name="node-1", first_seen_at=now, last_seen_at=now
    )
    job.sequence = 7
    job.save()
    answer = enrol(bearer=signing.token(pod), start=start_of(pod))
    assert isinstance(answer, Enrolled)
    assert (answer.worker.role, answer.worker.index) == ("worker", 0)
    assert answer.is_protected
    assert answer.is_new
    assert answer.replaces is None
    life = Incarnation.objects.get()
    assert life.machine == machine
    assert life.cursor == 7, "orders before its time are not for it"
    assert life.restart_count is None, "only the watch tells it"
    assert Worker.objects.get(pk=answer.worker.pk).incarnation == life


def test_same_start_again_finds_its_row(signing: SigningCluster, pod: Pod) -> None:
    start = start_of(pod)
    first = enrol(bearer=signing.token(pod), start=start)
    again = enrol(bearer=signing.token(pod), start=start)
    assert isinstance(first, Enrolled)
    assert isinstance(again, Enrolled)
    assert again.incarnation == first.incarnation
    assert not again.is_new
    assert Incarnation.objects.count() == 1


def test_newer_start_fences_the_older(signing: SigningCluster, pod: Pod) -> None:
    old = start_of(pod)
    first = enrol(bearer=signing.token(pod), start=old)
    second = enrol(bearer=signing.token(pod), start=start_of(pod))
    assert isinstance(first, Enrolled)
    assert isinstance(second, Enrolled)
    assert second.replaces == first.incarnation.pk
    with pytest.raises(Fenced):
        enrol(bearer=signing.token(pod), start=old)


def test_incarnation_that_ended_is_not_replaced(signing: SigningCluster, pod: Pod) -> None:
    enrol(bearer=signing.token(pod), start=start_of(pod))
    Incarnation.objects.update(ended_at=database_now())
    second = enrol(bearer=signing.token(pod), start=start_of(pod))
    assert isinstance(second, Enrolled)
    assert second.replaces is None


def test_agent_of_a_pod_whose_place_is_taken_is_fenced(signing: SigningCluster, job: Job, pod: Pod) -> None:
    signing.pod(job, created_at=pod.created_at + timedelta(seconds=5))
    with pytest.raises(Fenced):
        enrol(bearer=signing.token(pod), start=start_of(pod))
    assert not Incarnation.objects.exists()


def test_pod_not_seen_yet_is_asked_again(signing: SigningCluster, job: Job, pod: Pod) -> None:
    token = signing.token(pod)
    start = start_of(pod)
    Pod.objects.all().delete()
    answer = enrol(bearer=token, start=start)
    assert isinstance(answer, NotEnrolled)
    assert answer.status == "again"
    assert answer.retry_after_seconds > 0


def test_pod_that_the_watch_must_have_seen_is_no_job_of_ours(signing: SigningCluster, pod: Pod) -> None:
    token = signing.token(pod, iat=int(time.time()) - 600)
    start = start_of(pod)
    Pod.objects.all().delete()
    now = database_now()
    WatchState.objects.create(cluster=signing.cluster, resource="pods", state="watching", last_heard_at=now)
    answer = enrol(bearer=token, start=start)
    assert isinstance(answer, NotEnrolled)
    assert answer.status == "unprotected"


def test_job_that_is_not_opted_in_reports_but_is_not_protected(
    signing: SigningCluster, job: Job, pod: Pod
) -> None:
    Job.objects.update(is_protected=False, protection_reason="no annotation")
    answer = enrol(bearer=signing.token(pod), start=start_of(pod))
    assert isinstance(answer, Enrolled)
    assert not answer.is_protected
    assert answer.reason == "no annotation"


def test_cluster_in_observe_protects_nobody(signing: SigningCluster, pod: Pod) -> None:
    signing.cluster.mode = "observe"
    signing.cluster.save()
    answer = enrol(bearer=signing.token(pod), start=start_of(pod))
    assert isinstance(answer, Enrolled)
    assert not answer.is_protected
    assert "observe" in answer.reason


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"aud": ["https://kubernetes.default.svc"]}, "refused"),
        ({"iss": "https://elsewhere.example"}, "refused"),
        ({"exp": 1_000_000}, "again"),
        ({"kubernetes.io": {"namespace": "train"}}, "refused"),
        ({"kubernetes.io": {"namespace": "train", "pod": {"uid": "other", "name": "x"}}}, "refused"),
    ],
    ids=["audience", "issuer", "expired", "no-pod", "other-pod"],
)
def test_token_that_does_not_prove_this_pod(
    signing: SigningCluster, pod: Pod, claims: dict[str, object], status: str
) -> None:
    answer = enrol(bearer=signing.token(pod, **claims), start=start_of(pod))
    assert isinstance(answer, NotEnrolled)
    assert answer.status == status
    assert not Incarnation.objects.exists()


def test_token_signed_by_somebody_else_is_refused(signing: SigningCluster, pod: Pod) -> None:
    forged = signing.token(pod, key=rsa.generate_private_key(65537, 2048))
    answer = enrol(bearer=forged, start=start_of(pod))
    assert isinstance(answer, NotEnrolled)
    assert answer.status == "refused"


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_token_with_a_weaker_algorithm_is_refused(signing: SigningCluster, pod: Pod, algorithm: str) -> None:
    claims = jwt.decode(signing.token(pod), options={"verify_signature": False})
    secret = "" if algorithm == "none" else str(signing.cluster.token_keys["keys"][0]["n"])
    forged = jwt.encode(claims, secret, algorithm=algorithm, headers={"kid": signing.key_id})
    answer = enrol(bearer=forged, start=start_of(pod))
    assert isinstance(answer, NotEnrolled)
    assert answer.status == "refused"


def test_key_that_was_not_read_yet_is_asked_again(signing: SigningCluster, pod: Pod) -> None:
    signing.cluster.token_keys = {}
    signing.cluster.save()
    answer = enrol(bearer=signing.token(pod), start=start_of(pod))
    assert isinstance(answer, NotEnrolled)
    assert answer.status == "again"


def test_token_of_one_pod_enrols_no_other(signing: SigningCluster, job: Job, pod: Pod) -> None:
    other = signing.pod(job, 1)
    answer = enrol(bearer=signing.token(other), start=start_of(pod))
    assert isinstance(answer, NotEnrolled)
    assert answer.status == "refused"


def test_nonsense_is_refused(pod: Pod) -> None:
    answer = enrol(bearer="nonsense", start=start_of(pod))
    assert isinstance(answer, NotEnrolled)
    assert answer.status == "refused"


def test_short_nonce_is_bad_input(signing: SigningCluster, pod: Pod) -> None:
    with pytest.raises(BadInput):
        enrol(bearer=signing.token(pod), start=start_of(pod, nonce="x"))


def bare_job(name: str = "bert") -> tuple[Job, str]:
    job = make_job(name=name, owner_kind="", namespace="slurm")
    plain, digest = credentials.new_secret()
    EnrolmentSecret.objects.create(tenant=job.tenant, job=job, sha256=digest)
    return job, plain


def bare_start(name: str, **overrides: object) -> AgentStart:
    start = AgentStart(nonce=uuid.uuid4().hex, pod_uid="", pod_name=name, namespace="slurm", container="")
    return replace(start, **overrides)  # type: ignore[arg-type]


def test_secret_enrols_its_jobs_workers() -> None:
    job, secret = bare_job()
    answer = enrol(bearer=secret, start=bare_start("bert-2"))
    assert isinstance(answer, Enrolled)
    assert (answer.job, answer.worker.index) == (job, 2)
    assert secret not in str(EnrolmentSecret.objects.values().get())


@pytest.mark.parametrize(
    "name", ["bert-3", "bert-large-0", "bert", "bert-", "bert-00", "bert-٣", "ber-0", "gpt-0", "bert--1"]
)
def test_secret_enrols_nobody_else(name: str) -> None:
    _, secret = bare_job()
    make_job(name="bert-large", namespace="slurm")
    answer = enrol(bearer=secret, start=bare_start(name))
    assert isinstance(answer, NotEnrolled)
    assert answer.status == "refused"
    assert not Incarnation.objects.exists()


def test_secret_of_another_namespace_revoked_or_expired_is_refused() -> None:
    _, secret = bare_job()
    for change in ({"revoked_at": database_now()}, {"revoked_at": None, "expires_at": database_now()}):
        EnrolmentSecret.objects.update(**change)
        answer = enrol(bearer=secret, start=bare_start("bert-0"))
        assert isinstance(answer, NotEnrolled)
        assert answer.status == "refused"
    EnrolmentSecret.objects.update(expires_at=None)
    answer = enrol(bearer=secret, start=bare_start("bert-0", namespace="other"))
    assert isinstance(answer, NotEnrolled)
