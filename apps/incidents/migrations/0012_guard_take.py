"""A function that counts one action in all of its guards, or in none.

The statement is long for what it does, and a decision makes it once: PostgreSQL needed more time to plan it than to
run it. Inside a function the plan is kept with the session, also behind a pool of connections.
"""

from django.db import migrations

# The counters of a want are locked in order, looked at, and it is counted in each if none is full.
# `matching` is how many limits ask for a counter: one that is missing must not be one that does not guard.
# A standing limit counts a machine once (`p_counted`: the kinds of action that hold it already). A window counts
# each kind of action on it once. Its counts stand in a ring: slot n at n modulo the length of `slots`.
# `moment`: who read the clock earlier and had to wait counts in the newest slot, and is noted there, so that a
# recount finds it where it was counted.
FORWARD = """
CREATE FUNCTION incidents_guard_take(
    p_cluster bigint, p_kind varchar, p_counted varchar[], p_dimensions varchar[], p_groups varchar[],
    p_epoch float8, p_holder varchar
) RETURNS TABLE (
    is_free boolean, matching bigint, total bigint, counter_id bigint, of_limit bigint, in_group varchar,
    counter_members integer, counter_cap integer, live bigint, counter_slot_seconds float8, counter_slots integer[],
    counter_newest_slot bigint
) LANGUAGE plpgsql AS $function$
#variable_conflict use_column
BEGIN
RETURN QUERY WITH wanted AS (
    SELECT count(*) FILTER (
        WHERE is_enabled AND p_kind = ANY(actions) AND dimension = ANY(p_dimensions)
            AND CASE WHEN measure = 'standing' THEN NOT actions && p_counted ELSE NOT p_kind = ANY(p_counted) END
    ) AS matching, count(*) AS total
    FROM incidents_guardlimit WHERE cluster_id = p_cluster
), held AS MATERIALIZED (
    SELECT id, limit_id, "group", members, cap, used, slot_seconds, slots, newest_slot, cardinality(slots) AS kept
    FROM incidents_guardcounter
    WHERE cluster_id = p_cluster AND dimension = ANY(p_dimensions) AND "group" = ANY(p_groups)
        AND "group" = p_groups[array_position(p_dimensions, dimension)] AND p_kind = ANY(actions)
        AND CASE WHEN slot_seconds IS NULL THEN NOT actions && p_counted ELSE NOT p_kind = ANY(p_counted) END
    ORDER BY id FOR NO KEY UPDATE
), moment AS (
    SELECT greatest(p_epoch, max(newest_slot * slot_seconds) + 0.001) AS epoch FROM held
), placed AS (
    SELECT held.*, CASE WHEN slot_seconds IS NULL THEN newest_slot
        ELSE greatest(newest_slot, floor(epoch / slot_seconds)::bigint) END AS slot
    FROM held CROSS JOIN moment
), judged AS (
    SELECT *, CASE WHEN slot_seconds IS NULL THEN used ELSE (
        SELECT coalesce(sum(n), 0) FROM unnest(slots) WITH ORDINALITY AS ring(n, place)
        WHERE newest_slot - (newest_slot - place + 1) % kept > slot - kept
    ) END AS live
    FROM placed
), verdict AS (
    SELECT count(*) = (SELECT matching FROM wanted) AND coalesce(bool_and(live < cap), true) AS is_free,
        count(*) AS n
    FROM judged
), taken AS (
    UPDATE incidents_guardcounter AS c SET
        used = j.live + 1,
        newest_slot = j.slot,
        slots = CASE WHEN j.slot_seconds IS NULL THEN j.slots ELSE ARRAY(
            SELECT CASE WHEN j.newest_slot - (j.newest_slot - place + 1) % j.kept > j.slot - j.kept
                THEN n ELSE 0 END + CASE WHEN place - 1 = j.slot % j.kept THEN 1 ELSE 0 END
            FROM unnest(j.slots) WITH ORDINALITY AS ring(n, place) ORDER BY place
        ) END
    FROM judged AS j WHERE c.id = j.id AND j.live < j.cap AND (SELECT is_free FROM verdict)
), noted AS (
    INSERT INTO incidents_guarduse (cluster_id, kind, holder, groups, at)
    SELECT p_cluster, p_kind, p_holder, jsonb_object(p_dimensions::text[], p_groups::text[]), to_timestamp(epoch)
    FROM verdict CROSS JOIN moment WHERE is_free AND n > 0
)
SELECT verdict.is_free, wanted.matching, wanted.total, judged.id, limit_id, "group", members, cap, live,
    slot_seconds, slots, newest_slot
FROM verdict CROSS JOIN wanted LEFT JOIN judged ON true ORDER BY judged.id;
END $function$
"""

_BACKWARD = "DROP FUNCTION incidents_guard_take"


class Migration(migrations.Migration):
    dependencies = [("incidents", "0011_guard_counter_one_index")]

    operations = [migrations.RunSQL(FORWARD, _BACKWARD)]
