"""The tenant of what no namespace map row claims. Every row has a tenant from its first moment.

Going back keeps it: rows may refer to it, and an unused tenant harms nobody.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def make_tenant(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("access", "Tenant").objects.get_or_create(
        slug="unassigned", defaults={"name": "Unassigned"}
    )


class Migration(migrations.Migration):
    dependencies = [("access", "0002_audit_append_only")]

    operations = [migrations.RunPython(make_tenant, migrations.RunPython.noop)]
