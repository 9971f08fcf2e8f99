"""The audit takes new rows and nothing else: the database refuses to change or delete one.

In the database, because a promise kept only by our services would end with the first shell on a server.
"""

from django.db import migrations

_FORWARD = """
CREATE FUNCTION access_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is append-only: % of entry % refused', lower(TG_OP), OLD.id
        USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON access_auditentry
    FOR EACH ROW EXECUTE FUNCTION access_audit_is_append_only();
"""
_BACKWARD = """
DROP TRIGGER audit_append_only ON access_auditentry;
DROP FUNCTION access_audit_is_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("access", "0001_initial")]

    operations = [migrations.RunSQL(_FORWARD, _BACKWARD)]
