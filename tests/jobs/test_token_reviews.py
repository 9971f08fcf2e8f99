"""A token without a known key is shown to its cluster: by hash and once, sealed on the way, judged by the answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta

import jwt
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.db import connection
from pytest_django import DjangoAssertNumQueries, Settings

from apps.access.async_database import conninfo
from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.jobs.models import Incarnation, Pod, ReviewedToken
from apps.jobs.services import token_reviews
from apps.jobs.services.credentials import AUDIENCE
from apps.jobs.services.enrolment import Enrolled, NotEnrolled, enrol
from apps.jobs.services.token_reviews import NotSealedHere, Question
from recovery.ports import TokenReview
from tests.factories import make_cluster, make_job
from tests.jobs.projected import SigningCluster
from tests.jobs.test_enrolment import start_of

pytestmark = pytest.mark.django_db
told = pytest.mark.django_db(
    transaction=True
)  # a notification is sent by a commit; to clear up after one takes long


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def signing(key: rsa.RSAPrivateKey) -> SigningCluster:
    """A cluster of which neither issuer nor keys can be read; its row in memory still knows its issuer."""
    cluster = SigningCluster(key=key)
    Cluster.objects.update(token_issuer="", token_keys={})
    return cluster


@pytest.fixture
def pod(signing: SigningCluster) -> Pod:
    return signing.pod(make_job(cluster=signing.cluster))


class Ear:
    """What was told on the channel since it was last asked."""

    def __init__(self, listener: psycopg.Connection) -> None:
        self._listener = listener

    def heard(self) -> list[str]:
        # The server hands over what was committed before this statement with its answer.
        self._listener.execute("SELECT 1")
        return [note.payload for note in self._listener.notifies(timeout=0)]


@pytest.fixture
def ear() -> Iterator[Ear]:
    with psycopg.connect(conninfo(), autocommit=True) as listener:
        listener.execute(f"LISTEN {token_reviews.CHANNEL}")
        yield Ear(listener)


def review_of(pod: Pod, **overrides: object) -> TokenReview:
    values: dict[str, object] = {
        "is_authentic": True,
        "audiences": (AUDIENCE,),
        "namespace": pod.namespace,
        "service_account": "default",
        "pod_name": pod.name,
        "pod_uid": pod.uid,
    }
    return TokenReview(**{**values, **overrides})  # type: ignore[arg-type]


def question_about(cluster: Cluster, token: str) -> Question:
    return Question(cluster.pk, hashlib.sha256(token.encode()).hexdigest(), token)


def answer(cluster: Cluster, token: str, review: TokenReview) -> None:
    """As the watch does it."""
    token_reviews.store_review(
        question=question_about(cluster, token), review=review, audience=AUDIENCE, now=database_now()
    )


def refused(outcome: object) -> NotEnrolled:
    assert isinstance(outcome, NotEnrolled)
    return outcome


@told
def test_agent_is_taken_in_by_its_clusters_word(
    signing: SigningCluster, pod: Pod, ear: Ear, settings: Settings
) -> None:
    token = signing.token(pod)
    other = make_cluster(token_issuer=signing.cluster.token_issuer, token_keys={"keys": []})
    first = refused(enrol(bearer=token, start=start_of(pod)))
    assert (first.status, first.retry_after_seconds > 0) == ("again", True)
    (payload,) = ear.heard()
    assert token.rpartition(".")[2] not in payload, "it is sealed"
    assert token.rpartition(".")[2] not in str(ReviewedToken.objects.values().get()), "it is stored nowhere"
    assert token_reviews.question_of(payload, cluster=other) is None, "the pod tells whose it is"
    sealed_with, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    with pytest.raises(NotSealedHere, match="SECRET_KEY"):
        token_reviews.question_of(payload, cluster=signing.cluster)
    settings.SECRET_KEY_FALLBACKS = [sealed_with]
    question = token_reviews.question_of(payload, cluster=signing.cluster)
    assert question == question_about(signing.cluster, token)
    answer(signing.cluster, token, review_of(pod))
    assert token_reviews.question_of(payload, cluster=signing.cluster) is None, "it is answered"
    outcome = enrol(bearer=token, start=start_of(pod))
    assert isinstance(outcome, Enrolled)
    assert outcome.incarnation.pod_uid == pod.uid
    assert ear.heard() == [], "an answer is good until the token expires"


@told
def test_question_is_told_again_only_after_a_while(
    signing: SigningCluster, pod: Pod, ear: Ear, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    plain = len(signing.token(pod, padding=""))
    token = signing.token(pod, padding="x" * ((token_reviews.MOST_TOKEN_BYTES - plain) * 3 // 4 - 3))
    assert len(token) > token_reviews.MOST_TOKEN_BYTES - 10, "the longest fits into a notification"
    for _ in range(3):
        refused(enrol(bearer=token, start=start_of(pod)))
    assert len(ear.heard()) == 1
    long_ago = database_now() - timedelta(seconds=token_reviews.ASK_AGAIN_SECONDS)
    ReviewedToken.objects.update(asked_at=long_ago)
    for _ in range(3):
        with django_assert_max_num_queries(8):
            refused(enrol(bearer=token, start=start_of(pod)))
    assert len(ear.heard()) == 1
    assert ReviewedToken.objects.count() == 1


@pytest.mark.parametrize(
    ("review", "words"),
    [
        ({"is_authentic": False, "error": "token has been invalidated"}, "has been invalidated"),
        ({"audiences": ()}, "audience"),
        ({"audiences": ("https://kubernetes.default.svc",)}, "audience"),
        ({"pod_uid": ""}, "not bound to a pod"),
        ({"namespace": "", "service_account": ""}, "no service account"),
        ({"pod_uid": "another"}, "another pod"),
        ({"namespace": "elsewhere"}, "another namespace"),
        ({"service_account": "other"}, "service account"),
    ],
)
def test_review_that_does_not_prove_this_pod_refuses_it(
    signing: SigningCluster, pod: Pod, review: dict[str, object], words: str
) -> None:
    token = signing.token(pod)
    enrol(bearer=token, start=start_of(pod))
    answer(signing.cluster, token, review_of(pod, **review))
    outcome = refused(enrol(bearer=token, start=start_of(pod)))
    assert outcome.status == "refused"
    assert words in outcome.reason
    assert not Incarnation.objects.exists()


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"aud": ["https://kubernetes.default.svc"]}, "refused"),
        ({"aud": "incidentdesk-too"}, "refused"),
        ({"exp": 1_000_000}, "again"),
        ({"exp": "soon"}, "refused"),
        ({"kubernetes.io": {"namespace": "train"}}, "refused"),
        ({"kubernetes.io": {"pod": {"uid": "nul\0", "name": "x"}}}, "refused"),
        ({"iss": "nul\0"}, "refused"),
        ({"kubernetes.io": {"namespace": "train", "pod": {"uid": "unseen", "name": "x"}}}, "again"),
        ({"iat": float("-inf"), "kubernetes.io": {"pod": {"uid": "unseen", "name": "x"}}}, "again"),
        ({"padding": "x" * token_reviews.MOST_TOKEN_BYTES}, "refused"),
    ],
)
def test_cluster_is_not_asked_about_what_cannot_be_good(
    signing: SigningCluster, pod: Pod, claims: dict[str, object], status: str
) -> None:
    assert refused(enrol(bearer=signing.token(pod, **claims), start=start_of(pod))).status == status
    assert not ReviewedToken.objects.exists()


def test_one_pods_tokens_cannot_crowd_out_anothers(signing: SigningCluster, pod: Pod) -> None:
    for number in range(token_reviews.MOST_OPEN_OF_POD + 2):
        refused(enrol(bearer=signing.token(pod, jti=str(number)), start=start_of(pod)))
    assert ReviewedToken.objects.count() == token_reviews.MOST_OPEN_OF_POD
    other = signing.pod(pod.job, 1)
    refused(enrol(bearer=signing.token(other), start=start_of(other)))
    assert ReviewedToken.objects.filter(claimed_pod_uid=other.uid).exists()


def test_refusal_and_proof_end_with_their_time(signing: SigningCluster, pod: Pod) -> None:
    token = signing.token(pod)
    enrol(bearer=token, start=start_of(pod))
    answer(signing.cluster, token, review_of(pod))
    claims = jwt.decode(token, options={"verify_signature": False})
    row = ReviewedToken.objects.get()
    assert row.expires_at.timestamp() == claims["exp"]
    ReviewedToken.objects.update(expires_at=database_now(), asked_at=database_now() - timedelta(hours=1))
    assert refused(enrol(bearer=token, start=start_of(pod))).status == "again"
    answer(signing.cluster, token, review_of(pod, is_authentic=False, error="the pod is gone"))
    row.refresh_from_db()
    assert row.state == "refused"
    assert row.expires_at < database_now() + timedelta(seconds=token_reviews.REFUSED_SECONDS + 1)
    ReviewedToken.objects.update(expires_at=database_now() - timedelta(seconds=1))
    assert token_reviews.forget_old_reviews(now=database_now()) == 1


def test_key_that_is_not_known_yet_is_left_to_the_cluster(signing: SigningCluster, pod: Pod) -> None:
    Cluster.objects.update(
        token_issuer=signing.cluster.token_issuer, token_keys={"keys": [{"kty": "RSA", "kid": "older"}]}
    )
    token = signing.token(pod)
    assert refused(enrol(bearer=token, start=start_of(pod))).status == "again"
    answer(signing.cluster, token, review_of(pod))
    assert isinstance(enrol(bearer=token, start=start_of(pod)), Enrolled)


def test_what_keeps_the_cluster_from_being_asked_reaches_the_agent(signing: SigningCluster, pod: Pod) -> None:
    token = signing.token(pod)
    enrol(bearer=token, start=start_of(pod))
    token_reviews.note_trouble(
        question=question_about(signing.cluster, token), reason="403 Forbidden: tokenreviews"
    )
    outcome = refused(enrol(bearer=token, start=start_of(pod)))
    assert outcome.status == "again"
    assert "403" in outcome.reason


def test_proof_without_a_pod_is_no_row(signing: SigningCluster) -> None:
    now = database_now()
    with pytest.raises(Exception, match="proven_token_names_its_pod"), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobs_reviewedtoken (cluster_id, sha256, claimed_pod_uid, state, reason, namespace,"
            " service_account, pod_name, pod_uid, asked_at, expires_at)"
            " VALUES (%s, 'x', '', 'proven', '', '', '', '', '', %s, %s)",
            [signing.cluster.pk, now, now],
        )
