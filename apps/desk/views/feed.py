"""The live feed for browsers that cannot keep a stream open: what changed after a cursor."""

from __future__ import annotations

from django.core.exceptions import BadRequest
from django.http import HttpResponse, HttpResponseBase, JsonResponse
from django.views.decorators.http import require_safe

from apps.desk.scope import DeskRequest, page
from apps.incidents.selectors import feed_after


def read_cursor(text: str) -> tuple[int, int]:
    """(transaction, id) of a cursor such as ``81234:7``. Raises ValueError for anything else."""
    transaction, colon, row = text.partition(":")
    if not (colon and transaction.isascii() and row.isascii() and transaction.isdigit() and row.isdigit()):
        raise ValueError(f"a cursor is transaction:id, not {text[:40]!r}")
    if len(transaction) > 18 or len(row) > 18:
        raise ValueError("a cursor out of range")
    return int(transaction), int(row)


@page
@require_safe
def changes(request: DeskRequest) -> HttpResponseBase:
    """Changes after ``cursor``. Nothing new is answered 304 by the entity tag, which is the cursor itself."""
    text = request.GET.get("cursor", "")
    try:
        transaction, row = read_cursor(text)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    scope = request.scope
    found = feed_after(transaction, row, scope.tenant_ids, all_nodes=scope.all_nodes)
    tag = f'"{found.cursor}"'
    response: HttpResponse
    if request.headers.get("If-None-Match") == tag:
        response = HttpResponse(status=304)
    else:
        response = JsonResponse(
            {"cursor": found.cursor, "changes": [list(change) for change in found.changes]}
        )
    response["ETag"] = tag
    return response
