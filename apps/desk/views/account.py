"""Login, logout and the reader's own settings."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods

from apps.desk.forms import LoginForm, PreferencesForm, time_zones
from apps.desk.scope import DeskRequest, page

login = LoginView.as_view(
    template_name="desk/login.html", authentication_form=LoginForm, redirect_authenticated_user=True
)
logout = LogoutView.as_view()


@page
@require_http_methods(["GET", "HEAD", "POST"])
def preferences(request: DeskRequest) -> HttpResponseBase:
    """Zone, theme and single keys. The user menu posts here too and goes back to where it was."""
    if request.method == "POST":
        form = PreferencesForm(request.POST)
        if form.is_valid():
            form.save(request.user)
            target = request.POST.get("next", "")
            return redirect(
                target if url_has_allowed_host_and_scheme(target, allowed_hosts=None) else "desk:preferences"
            )
        messages.error(request, str(next(iter(form.errors.values()))[0]))
    return render(request, "desk/preferences.html", {"nav": "", "zones": time_zones(), "topics": ""})
