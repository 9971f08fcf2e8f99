"""`manage.py demo_setup`: register the simulated cluster, arm it, and make two people who may act."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from apps.access import services
from apps.access.models import Cluster, Role, Tenant, User
from apps.incidents.services.arming import set_cluster_mode
from apps.incidents.services.retiring import hand_settings_over, retire_cluster
from recovery.decide import Mode
from recovery.errors import InvalidTransition

PEOPLE = (("alex", "Alex Moreau"), ("sam", "Sam Okafor"))
ROLES = (Role.OPERATOR, Role.APPROVER)
TENANT = ("training", "Training")
REQUEST_SECONDS = 10


class Command(BaseCommand):
    help = "Prepare the desk for the demo: tenant, namespaces, simulated cluster in mode auto, two logins."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--endpoint", type=Path, help="endpoint.json of the simulated cluster (INCIDENTDESK_SIM_ENDPOINT)"
        )
        parser.add_argument("--cluster", default="demo", help="slug under which it is registered")
        parser.add_argument(
            "--password", help="of both people (INCIDENTDESK_DEMO_PASSWORD); else one is made and kept"
        )

    def handle(
        self,
        *args: Any,
        endpoint: Path | None = None,
        cluster: str = "demo",
        password: str | None = None,
        **options: Any,
    ) -> None:
        place = endpoint or (Path(settings.SIM_ENDPOINT) if settings.SIM_ENDPOINT else None)
        if place is None:
            raise CommandError("Which simulated cluster? Give --endpoint or set INCIDENTDESK_SIM_ENDPOINT.")
        system_uid = _simulated_uid(place)
        tenant, _ = Tenant.objects.get_or_create(slug=TENANT[0], defaults={"name": TENANT[1]})
        try:
            with transaction.atomic():
                row, unarmed = _register(cluster, system_uid, tenant)
        except InvalidTransition as error:
            raise CommandError(str(error)) from error
        word = password or os.environ.get("INCIDENTDESK_DEMO_PASSWORD") or _kept_password()
        for name, full_name in PEOPLE:
            _person(name, full_name, word)
            self.stdout.write(f"  {name} / {word}   (operator and approver)")
        if unarmed:
            self.stdout.write(f"  {unarmed}")
        elif row.mode != Mode.AUTO:
            self.stdout.write(
                f"  The cluster is in mode {row.mode}, as it was set before; ./desk manage set_cluster_mode changes it."
            )


def _simulated_uid(endpoint: Path) -> str:
    """Uid of the cluster's namespace kube-system, once it has shown that it is a simulated one."""
    try:
        told = json.loads(endpoint.read_text())
        url, token = str(told["url"]).rstrip("/"), str(told["admin_token"])
        _get(f"{url}/sim/v1/faults", token)  # only a simulated cluster has faults to inject
        namespace = _get(f"{url}/api/v1/namespaces/kube-system", token)
        return str(namespace["metadata"]["uid"])
    except urllib.error.HTTPError as error:
        raise CommandError(
            f"{endpoint} leads to no simulated cluster: {error.url} answers {error.code}."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
        raise CommandError(f"No simulated cluster answers for {endpoint}: {error}.") from error


def _get(url: str, token: str) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
        return json.load(answer)


def _register(slug: str, system_uid: str, tenant: Tenant) -> tuple[Cluster, str]:
    """The row of this very cluster, armed, with its namespaces given to the tenant; and why not armed, else empty.

    A simulated one that had the slug before is gone: each start is a new one. What people had set for it holds for
    the new one too. Raises InvalidTransition when the slug, or the cluster, is a real one's.
    """
    before = Cluster.objects.filter(slug=slug).exclude(system_uid=system_uid).first()
    known = Cluster.objects.filter(system_uid=system_uid).first()
    if any(row is not None and not row.is_simulated for row in (before, known)):
        raise InvalidTransition(
            f"The slug {slug} is of a cluster that is not simulated; give the demo another by --cluster."
        )
    if before is not None:
        before = retire_cluster(
            cluster_id=before.pk,
            actor_kind="demo",
            actor="demo",
            reason="the simulated cluster was started anew",
        )
    if known is not None:
        return known, ""
    unarmed = ""
    row = Cluster.objects.create(
        system_uid=system_uid, slug=slug, name="Simulated cluster", is_simulated=True, mode=Mode.OBSERVE
    )
    if before is not None:
        unarmed = hand_settings_over(retired=before, successor=row, actor_kind="demo", actor="demo")
    else:
        services.map_namespace(
            cluster_id=row.pk, pattern="*", tenant_id=tenant.pk, actor_kind="demo", actor="demo"
        )
        set_cluster_mode(
            cluster_id=row.pk,
            mode=Mode.AUTO,
            actor_kind="demo",
            actor="demo",
            reason="the demo arms its own simulated cluster",
        )
    row.refresh_from_db(fields=["mode"])
    return row, unarmed


def _person(name: str, full_name: str, password: str) -> None:
    user, is_new = User.objects.get_or_create(username=name)
    if is_new:
        user.first_name, _, user.last_name = full_name.partition(" ")
    if is_new or not user.check_password(password):
        user.set_password(password)
        user.save()
    for role in ROLES:
        services.grant_role(user_id=user.pk, tenant_id=None, role=role, actor_kind="demo", actor="demo")


def _kept_password() -> str:
    """The password of the demo's people, made at the first start and kept beside the desk's other state."""
    path = Path(settings.STATE_DIR) / "demo_password"
    if path.is_file() and (kept := path.read_text().strip()):
        return kept
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    password = secrets.token_hex(5)
    path.write_text(password)
    return password
