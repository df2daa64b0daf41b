from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from shop.jobs import ship
from shop.models import Order
from shop.tasks import confirm
from windlass.contrib.django import enqueue_on_commit


def order(request: HttpRequest) -> JsonResponse:
    """The row, the mail and the parcel: all of it or nothing of it."""
    with transaction.atomic():
        made = Order.objects.create(customer=request.POST["customer"])
        job = enqueue_on_commit(ship, made.pk)
    mail = confirm.enqueue(made.pk)  # after the commit
    return JsonResponse({"order": made.pk, "job": job, "mail": mail.id})


urlpatterns = [path("order", order)]
