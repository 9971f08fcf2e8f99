"""What the reader of a page may see and do, read once a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import patch_cache_control, patch_vary_headers
from django.utils.http import url_has_allowed_host_and_scheme

from apps.access.models import Cluster, NamespaceMap, Role, RoleBinding, Tenant, User
from apps.access.selectors import visible_tenant_ids
from apps.incidents.selectors import feed_cursor
from apps.jobs.models import Job
from apps.nodes.models import Machine
from apps.nodes.selectors import visible_machines
from recovery.errors import NotFound

FRAGMENT_HEADER = "HX-Request"


class DeskRequest(HttpRequest):
    """A request of somebody who is logged in; ``page`` has set its scope."""

    user: User
    scope: Scope
    live_cursor: str  # where this page stands in the live feed; read before its rows


@dataclass(slots=True)
class Scope:
    """Tenants and clusters that somebody sees, the cluster chosen in the address, and roles by tenant."""

    user: User
    tenant_ids: list[int] | None  # None: all
    clusters: list[Cluster]
    cluster: Cluster | None
    all_nodes: bool  # the fleet's people see every node, others those of their jobs
    operates: frozenset[int | None]  # tenants in which the reader is an operator; None: in all of them

    def may_operate(self, tenant_id: int) -> bool:
        """Whether the reader is an operator of this tenant."""
        return self.user.is_superuser or not self.operates.isdisjoint((None, tenant_id))

    def require_operator(self, tenant: Tenant) -> None:
        """Raise PermissionDenied, saying which role is missing where."""
        if not self.may_operate(tenant.pk):
            raise PermissionDenied(
                f"This needs the role operator in the tenant {tenant.slug}. You may read it; ask an admin to act."
            )

    def machines(self) -> QuerySet[Machine]:
        """Nodes that the reader sees, with ``state``."""
        return visible_machines(self.tenant_ids, all_of_them=self.all_nodes)

    @property
    def cluster_id(self) -> int | None:
        """Row id of the chosen cluster, or None for all of them."""
        return None if self.cluster is None else self.cluster.pk

    @property
    def chosen_clusters(self) -> list[Cluster]:
        """The chosen cluster, or all that the reader sees."""
        return self.clusters if self.cluster is None else [self.cluster]


def scope_of(request: HttpRequest) -> Scope:
    """The scope of a logged-in reader. A cluster in the address that the reader does not see is a 404."""
    user = request.user
    assert isinstance(user, User)
    tenant_ids = visible_tenant_ids(user)
    clusters = Cluster.objects.order_by("slug").defer("token_keys")
    bindings = list(RoleBinding.objects.filter(user=user).values_list("tenant_id", "role"))
    all_nodes = sees_all_nodes(tenant_ids, [tenant_id for tenant_id, _ in bindings])
    if not all_nodes and tenant_ids is not None:
        mapped = NamespaceMap.objects.filter(cluster=OuterRef("pk"), tenant__in=tenant_ids)
        with_jobs = Job.objects.filter(cluster=OuterRef("pk"), tenant__in=tenant_ids)
        clusters = clusters.filter(Q(Exists(mapped)) | Q(Exists(with_jobs)))
    every = list(clusters)
    wanted = request.GET.get("cluster", "")
    chosen = next((cluster for cluster in every if cluster.slug == wanted), None)
    # A cluster that is gone is offered no more; what happened in it stays readable under its address.
    found = [cluster for cluster in every if not cluster.is_retired or cluster == chosen]
    if wanted and chosen is None:
        raise Http404(f"There is no cluster {wanted} here.")
    operates = frozenset(tenant_id for tenant_id, role in bindings if role == Role.OPERATOR)
    return Scope(user, tenant_ids, found, chosen, all_nodes, operates)


def sees_all_nodes(tenant_ids: list[int] | None, bound_to: Iterable[int | None]) -> bool:
    """Whether somebody sees the whole fleet: all tenants (None), or a role that holds in every one of them (None)."""
    return tenant_ids is None or None in bound_to


def is_fragment(request: HttpRequest) -> bool:
    """Whether only the changing part of the page is asked for."""
    return request.headers.get(FRAGMENT_HEADER) == "true"


def is_known(request: HttpRequest) -> bool:
    """Whether somebody is logged in."""
    return bool(request.user.is_authenticated)


def page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """A page for people who are logged in: sets ``request.scope``, maps our errors, forbids caches.

    A fragment that is asked for after the session ended is answered 401 instead of with a login page, so
    that the browser can say so instead of showing a form in the middle of the page.
    """

    @wraps(view)
    def wrapped(request: DeskRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response: HttpResponseBase
        if not is_known(request):
            if is_fragment(request):
                response = HttpResponse(
                    "Your session has ended. Log in again.", status=401, content_type="text/plain"
                )
            else:
                response = redirect_to_login(_way_back(request))
        else:
            request.scope = scope_of(request)
            request.live_cursor = feed_cursor()
            try:
                response = view(request, *args, **kwargs)
            except NotFound as error:
                raise Http404(str(error)) from error
            except BadRequest as error:
                response = render(request, "400.html", {"exception": str(error)}, status=400)
        patch_vary_headers(response, (FRAGMENT_HEADER, "Cookie"))
        patch_cache_control(response, no_store=True, private=True)
        return response

    return wrapped


def _way_back(request: HttpRequest) -> str:
    """Where a login leads: to the page that was asked for, and after a form, which is not sent again, to its page."""
    if request.method in ("GET", "HEAD"):
        return request.get_full_path()
    asked_on = request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(asked_on, allowed_hosts={request.get_host()}):
        return reverse("desk:overview")
    return urlsplit(asked_on)._replace(scheme="", netloc="").geturl()


def held_rows(request: HttpRequest) -> list[int] | None:
    """Rows that an open list shows and wants to keep in their places; None when it asks for the page itself."""
    text = request.GET.get("held", "")
    if not text:
        return None
    try:
        return [int(word) for word in text.split(",")][:200]
    except ValueError:
        raise BadRequest("held is a list of row numbers") from None


def whole(request: HttpRequest, name: str) -> int | None:
    """A whole number of the address, None when it is not there; anything else is a BadRequest."""
    text = request.GET.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 18):
        raise BadRequest(f"{name} must be a number, not {text!r}")
    return int(text)
