"""Windows kept as running totals, and a reservation that answers yes or no.

What a window has counted is then the difference of two numbers, where a ring of counts had to be summed, twice for
each counter. The numbers behind a refusal are read by a statement of their own: few reservations are refused.
"""

import importlib

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

_BY_CLUSTER = "incidents_guarduse_cluster_id_5ffec3f3"  # as Django named it with the foreign key, in 0010
_RING = importlib.import_module("apps.incidents.migrations.0012_guard_take")

# Slot n stood at n modulo 13. Total k is what had begun by the end of slot `newest_slot - k + 1`.
_FILL = """
UPDATE incidents_guardcounter AS c SET totals = ARRAY(
    SELECT (
        SELECT coalesce(sum(n), 0) FROM unnest(c.slots) WITH ORDINALITY AS ring(n, place)
        WHERE ((c.newest_slot - place + 1) % 13 + 13) % 13 >= k - 1
    ) FROM generate_series(1, 14) AS k ORDER BY k
) WHERE slot_seconds IS NOT NULL
"""

# The counters of a want are locked in order, looked at, and it is counted in each if none is full. False: it was
# counted in none, because one is full or one is missing; the caller reads which, under the locks that it has now.
# `matching` is how many limits ask for a counter: one that is missing must not be one that does not guard.
# A standing limit counts a machine once (`p_counted`: the kinds of action that hold it already). A window counts
# each kind of action on it once. `ahead` is how many slots have begun since the newest.
# `moment`: who read the clock earlier and had to wait counts in the newest slot, and is noted there, so that a
# recount finds it where it was counted.
_TAKE = """
DROP FUNCTION incidents_guard_take;
CREATE FUNCTION incidents_guard_take(
    p_cluster bigint, p_kind varchar, p_counted varchar[], p_dimensions varchar[], p_groups varchar[],
    p_epoch float8, p_holder varchar
) RETURNS boolean LANGUAGE plpgsql AS $function$
DECLARE
    is_taken boolean;
BEGIN
WITH wanted AS (
    SELECT count(*) FILTER (
        WHERE is_enabled AND p_kind = ANY(actions) AND dimension = ANY(p_dimensions)
            AND CASE WHEN measure = 'standing' THEN NOT actions && p_counted ELSE NOT p_kind = ANY(p_counted) END
    ) AS matching, count(*) AS total
    FROM incidents_guardlimit WHERE cluster_id = p_cluster
), held AS MATERIALIZED (
    SELECT id, cap, used, slot_seconds, totals, newest_slot, cardinality(totals) - 1 AS kept
    FROM incidents_guardcounter
    WHERE cluster_id = p_cluster AND dimension = ANY(p_dimensions) AND "group" = ANY(p_groups)
        AND "group" = p_groups[array_position(p_dimensions, dimension)] AND p_kind = ANY(actions)
        AND CASE WHEN slot_seconds IS NULL THEN NOT actions && p_counted ELSE NOT p_kind = ANY(p_counted) END
    ORDER BY id FOR NO KEY UPDATE
), moment AS (
    SELECT greatest(p_epoch, max(newest_slot * slot_seconds) + 0.001) AS epoch FROM held
), placed AS (
    SELECT held.*, CASE WHEN slot_seconds IS NULL THEN 0
        ELSE least(greatest(floor(epoch / slot_seconds)::bigint - newest_slot, 0), kept)::integer END AS ahead,
        CASE WHEN slot_seconds IS NULL THEN newest_slot
        ELSE greatest(floor(epoch / slot_seconds)::bigint, newest_slot) END AS slot
    FROM held CROSS JOIN moment
), judged AS (
    SELECT *, CASE WHEN slot_seconds IS NULL THEN used ELSE totals[1] - totals[kept + 1 - ahead] END AS live
    FROM placed
), verdict AS (
    SELECT total > 0 AND matching = (SELECT count(*) FROM judged)
        AND coalesce((SELECT bool_and(live < cap) FROM judged), true) AS is_free
    FROM wanted
), taken AS (
    UPDATE incidents_guardcounter AS c SET
        used = j.live + 1,
        newest_slot = j.slot,
        totals = CASE WHEN j.slot_seconds IS NULL THEN j.totals
            ELSE (j.totals[1] + 1) || array_fill(j.totals[1], ARRAY[j.ahead]) || j.totals[2:j.kept + 1 - j.ahead] END
    FROM judged AS j WHERE c.id = j.id AND (SELECT is_free FROM verdict)
), noted AS (
    INSERT INTO incidents_guarduse (cluster_id, kind, holder, groups, at)
    SELECT p_cluster, p_kind, p_holder, jsonb_object(p_dimensions::text[], p_groups::text[]), to_timestamp(epoch)
    FROM verdict CROSS JOIN moment CROSS JOIN wanted WHERE is_free AND matching > 0
)
SELECT is_free INTO STRICT is_taken FROM verdict;
RETURN is_taken;
END $function$
"""

# Backwards the counters go, and are made anew from what has begun when the first of them is asked.
_BACKWARD = ["DELETE FROM incidents_guardcounter", "DROP FUNCTION incidents_guard_take", _RING.FORWARD]


def _no_totals() -> list[int]:
    return [0] * 14


class Migration(migrations.Migration):
    dependencies = [("access", "0004_idempotency_key"), ("incidents", "0015_signal_alert_of_node")]

    operations = [
        migrations.AddField(
            model_name="guardcounter",
            name="totals",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.PositiveBigIntegerField(),
                default=_no_totals,
                size=None,
            ),
            preserve_default=False,
        ),
        migrations.RunSQL(_FILL, migrations.RunSQL.noop),
        migrations.RemoveField(model_name="guardcounter", name="slots"),
        migrations.RunSQL(_TAKE, _BACKWARD),
        # By its name: an altered field would make its foreign key anew, and check every row under a lock.
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    f"DROP INDEX IF EXISTS {_BY_CLUSTER}",
                    f"CREATE INDEX {_BY_CLUSTER} ON incidents_guarduse (cluster_id)",
                )
            ],
            state_operations=[
                migrations.AlterField(
                    model_name="guarduse",
                    name="cluster",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="access.cluster",
                    ),
                )
            ],
        ),
    ]
